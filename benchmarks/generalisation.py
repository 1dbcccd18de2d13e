# SPDX-License-Identifier: Apache-2.0
"""Does it generalise? vMFNet and vMFPseudo against a supervised U-Net of the same encoder, on domains never seen.

One command, fixed seeds: ``python benchmarks/generalisation.py`` (phantom hearts, all four vendors in turn) or
``python benchmarks/generalisation.py --data cords --folder DIR`` (real cords: a folder with a table, see
``vmfseg.data.FolderDataset``, all domains in turn). Every run is a bundle command, as a user types it: ``train.json``
of the bundle with another target and seed; the U-Net is ``vmfnet`` with another ``network_def`` and Dice and
cross-entropy alone, and sees no unlabelled data. The last weights are scored, so nothing is selected. ``unet_long`` has
twice the labelled batches: as many optimizer steps as the others take, in turn with and without labels.

Every finished run is a line of a JSON-lines file, so that the command goes on where it was stopped; the table is
written from that file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOMAINS = {"hearts": ("A", "B", "C", "D"), "cords": ("chum", "juntendo", "milan", "nwu")}
ITERATIONS = {"hearts": 600, "cords": 400}  # labelled batches
CLASSES = {"hearts": 4, "cords": 3}
BASELINES = ("unet", "unet_long")
METHODS = ("unet", "unet_long", "vmfnet", "vmfpseudo")


def run(method: str, data: str, folder: str, target: str, seed: int, iterations: int, threads: int) -> dict:
    """Train a bundle with one domain left out and return its scores and CPU seconds."""
    bundle = f"{'vmfpseudo' if method == 'vmfpseudo' else 'vmfnet'}_{'mnms' if data == 'hearts' else 'scgm'}"
    keys: dict[str, object] = {"target_domain": target, "seed": seed, "max_iterations": iterations, "selection": "last"}
    if method in BASELINES:
        keys["max_iterations"] = iterations * (2 if method == "unet_long" else 1)
        keys["loss_weights"], keys["loss_ramps"] = {"dice": 1.0, "cross_entropy": 1.0}, {}
        keys["network_def"] = {
            "_target_": "vmfseg.methods.SegmentationUNet",
            "out_channels": CLASSES[data],
            "channels": [16, 32, 64, 128, 128],
        }
    if folder:
        keys |= {"dataset": "folder", "dataset_dir": str(Path(folder).resolve()), "labeled_fraction": 1.0}
    with tempfile.TemporaryDirectory() as place:
        keys |= {"output_dir": place, "ckpt_dir": f"{place}/models"}
        words = [word for key, value in keys.items() for word in (f"--{key}", str(value).replace(" ", ""))]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(  # noqa: S603 - the command is built here
            [sys.executable, "-m", "monai.bundle", "run", "training", "--config_file",
             str(ROOT / "bundles" / bundle / "configs" / "train.json"), *words],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)}, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        scores = json.loads(Path(place, "metrics.json").read_text())
        manifest = json.loads(Path(place, "models", "manifest.json").read_text())
    return {
        "mean_dice": scores["mean_dice"],
        "classes": {name: entry["dice"]["mean"] for name, entry in scores["domains"][target]["classes"].items()},
        "validation": manifest["selection"]["source_validation_dice"],
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
    }


def table(rows: list[dict], title: str, remark: str) -> str:
    """Return a Markdown table: method × target, mean ± sd over seeds, and the source-validation Dice."""
    targets = sorted({row["target"] for row in rows})
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    classes = list(rows[0]["classes"])
    budget = ", ".join(str(n) for n in sorted({row["iterations"] for row in rows}))
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        f"# {title}",
        "",
        f"Seeds {seeds}, {budget} labelled batches; Dice per volume on the native grid. {remark}",
    ]
    if "unet_long" in methods:
        lines += ["", "unet_long: the U-Net with twice the labelled batches, as many steps as the others take in turn."]
    lines.append("")
    header = ["method", *[f"target {t}" for t in targets], "mean over targets", *classes, "source validation", "CPU s"]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        cells = [method]
        for target in targets:
            cells.append(_spread([row["mean_dice"] for row in mine if row["target"] == target]))
        cells.append(_spread([row["mean_dice"] for row in mine]))
        cells += [_spread([row["classes"][name] for row in mine]) for name in classes]
        cells.append(_spread([row["validation"] for row in mine]))
        cells.append(f"{statistics.mean(row['cpu_seconds'] for row in mine):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *_by_class(rows, methods, targets, classes)]
    for other, base in [(m, b) for m in methods for b in BASELINES if m not in BASELINES]:
        pairs = _pairs(rows, other, base)
        if pairs:
            wins = sum(a > b for a, b in pairs)
            gain = [a - b for a, b in pairs]
            lines.append("")
            lines.append(
                f"{other} minus {base}: {_spread(gain, sign=True)} over {len(pairs)} pairs of target and seed, "
                f"better in {wins}."
            )
    return "\n".join(lines) + "\n"


def _by_class(rows: list[dict], methods: list[str], targets: list[str], classes: list[str]) -> list[str]:
    header = ["method", *[f"{target} {name}" for target in targets for name in classes]]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for method in methods:
        chosen = [[r for r in rows if (r["method"], r["target"]) == (method, target)] for target in targets]
        cells = [_spread([row["classes"][name] for row in mine]) for mine in chosen for name in classes]
        lines.append("| " + " | ".join([method, *cells]) + " |")
    return lines


def _pairs(rows: list[dict], other: str, base: str) -> list[tuple[float, float]]:
    unet = {(r["target"], r["seed"]): r["mean_dice"] for r in rows if r["method"] == base}
    return [
        (r["mean_dice"], unet[r["target"], r["seed"]])
        for r in rows
        if r["method"] == other and (r["target"], r["seed"]) in unet
    ]


def _spread(values: list[float], sign: bool = False) -> str:
    if not values:
        return "-"
    mean = f"{statistics.mean(values):+.3f}" if sign else f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(DOMAINS), default="hearts")
    parser.add_argument("--folder", default="", help="folder of your own scans with a table; default the phantom")
    parser.add_argument("--targets", default="", help="comma-separated; all by default")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--iterations", type=int, default=0, help="labelled batches; default 600, cords 400")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", default="", help="JSON-lines file; default results/bundles_<data>.jsonl")
    arguments = parser.parse_args()
    iterations = arguments.iterations or ITERATIONS[arguments.data]
    output = Path(arguments.output or RESULTS / f"bundles_{arguments.data}.jsonl")
    done = {_key(row) for row in _read(output)}
    for seed in (int(s) for s in arguments.seeds.split(",")):
        for target in arguments.targets.split(",") if arguments.targets else DOMAINS[arguments.data]:
            for method in arguments.methods.split(","):
                row = {"method": method, "target": target, "seed": seed, "iterations": iterations}
                if _key(row) in done:
                    continue
                row |= run(method, arguments.data, arguments.folder, target, seed, iterations, arguments.threads)
                output.parent.mkdir(parents=True, exist_ok=True)
                with open(output, "a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    rows = [row for row in _read(output) if row["iterations"] == iterations]
    text = table(rows, f"Generalisation to unseen domains, {arguments.data}", "Each run is a bundle command.")
    output.with_suffix(".md").write_text(text)
    print(text)


def _key(row: dict) -> tuple:
    return row["method"], row["target"], row["seed"], row["iterations"]


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main()
