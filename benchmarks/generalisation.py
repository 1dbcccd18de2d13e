# SPDX-License-Identifier: Apache-2.0
"""Does it generalise? vMFNet and vMFPseudo against a supervised U-Net of the same encoder, on domains never seen.

One command, fixed seeds: ``python benchmarks/generalisation.py`` (phantom hearts, all four vendors in turn) or
``python benchmarks/generalisation.py --data cords --folder DIR`` (real cords, all sites in turn). All methods get the
same labelled slices, the same number of labelled batches, the same augmentation and Dice + cross-entropy on the labels;
the last weights are scored, so nothing is selected; the U-Net sees no unlabelled data. Every finished run is a line of
a JSON-lines file, so that the command goes on where it was stopped; the table is written from that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from common import METHODS, Problem, cord_problem, heart_problem, replace, train_and_score

RESULTS = Path(__file__).parent / "results"


def table(rows: list[dict], title: str) -> str:
    """Return a Markdown table: method × target, mean ± sd over seeds, and the source-validation Dice."""
    targets = sorted({row["target"] for row in rows})
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    classes = list(rows[0]["classes"])
    budget = ", ".join(str(n) for n in sorted({row["iterations"] for row in rows}))
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"# {title}", "", f"Seeds {seeds}, {budget} labelled batches; Dice per volume on the native grid.", ""]
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
    for other in [m for m in methods if m != "unet"]:
        pairs = _pairs(rows, other)
        if pairs:
            wins = sum(a > b for a, b in pairs)
            gain = [a - b for a, b in pairs]
            lines.append("")
            lines.append(
                f"{other} minus U-Net: {_spread(gain, sign=True)} over {len(pairs)} pairs of target and seed, "
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


def _pairs(rows: list[dict], other: str) -> list[tuple[float, float]]:
    unet = {(r["target"], r["seed"]): r["mean_dice"] for r in rows if r["method"] == "unet"}
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
    parser.add_argument("--data", choices=("hearts", "cords"), default="hearts")
    parser.add_argument("--folder", default="", help="folder of the cords (images, *_label), for --data cords")
    parser.add_argument("--targets", default="", help="comma-separated; all by default")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--iterations", type=int, default=600, help="labelled batches, the same for every method")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", default="", help="JSON-lines file; default results/generalisation_<data>.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    output = Path(arguments.output or RESULTS / f"generalisation_{arguments.data}.jsonl")
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.is_file() else []
    done = {(row["method"], row["target"], row["seed"]) for row in rows}
    for seed in (int(s) for s in arguments.seeds.split(",")):
        problems = Problem.domains(arguments.data, arguments.folder)
        for target in arguments.targets.split(",") if arguments.targets else problems:
            problem = None
            for method in arguments.methods.split(","):
                if (method, target, seed) in done:
                    continue
                if problem is None:
                    make = heart_problem if arguments.data == "hearts" else cord_problem
                    problem = make(target, seed, arguments.folder)
                start = time.process_time()
                recipe = replace(METHODS[method], iterations=arguments.iterations)
                row = train_and_score(problem, recipe, seed)
                row = {"method": method, "target": target, "seed": seed, "iterations": recipe.iterations, **row}
                row["cpu_seconds"] = round(time.process_time() - start)
                rows.append(row)
                output.parent.mkdir(parents=True, exist_ok=True)
                with open(output, "a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    text = table(rows, f"Generalisation to unseen domains, {arguments.data}")
    output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
