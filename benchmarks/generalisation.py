# SPDX-License-Identifier: Apache-2.0
"""Does it generalise? vMFNet and vMFPseudo against a supervised U-Net of the same encoder, on domains never seen.

One command, fixed seeds: ``python benchmarks/generalisation.py`` (phantom hearts, all four vendors in turn) or
``python benchmarks/generalisation.py --data cords --folder DIR`` (real cords, all sites in turn). All methods get the
same labelled slices, the same number of labelled batches, the same augmentation and Dice + cross-entropy on the labels;
the last weights are scored, so nothing is selected; the U-Net sees no unlabelled data. ``unet_long`` is the U-Net with
twice the labelled batches: as many optimizer steps as the others take, in turn with and without labels.

The recipe is the default one for all targets, or ``--recipe``; with ``--chosen`` it is, for each target, the one that
its sources chose (``choice.py``). Every finished run is a line of a JSON-lines file, so that the command goes on where
it was stopped; the tables are written from that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from common import CANDIDATES, ITERATIONS, METHODS, Problem, candidate, cord_problem, heart_problem, train_and_score

RESULTS = Path(__file__).parent / "results"
DEFAULT = next(iter(CANDIDATES))
BASELINES = ("unet", "unet_long")


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
    parser.add_argument("--data", choices=("hearts", "cords"), default="hearts")
    parser.add_argument("--folder", default="", help="folder of the cords (images, *_label), for --data cords")
    parser.add_argument("--targets", default="", help="comma-separated; all by default")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--iterations", type=int, default=0, help="labelled batches; default 600, cords 400")
    parser.add_argument("--recipe", choices=tuple(CANDIDATES), default=DEFAULT, help="of the vMF methods")
    parser.add_argument("--chosen", action="store_true", help="for each target the recipe that its sources chose")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", default="", help="JSON-lines file; default results/generalisation_<data>[...].jsonl"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    iterations = arguments.iterations or ITERATIONS[arguments.data]
    stem = f"generalisation_{arguments.data}"
    if (arguments.recipe, iterations) != (DEFAULT, ITERATIONS[arguments.data]):  # a table of its own
        stem += f"_{arguments.recipe.replace(', ', ' ').replace(' ', '_')}_{iterations}"
    output = Path(arguments.output or RESULTS / f"{stem}.jsonl")
    if arguments.chosen and arguments.recipe != DEFAULT:
        parser.error("--chosen and --recipe exclude each other")
    choice = RESULTS / f"choice_{arguments.data}.json"
    if arguments.chosen and not choice.is_file():
        parser.error(f"--chosen needs {choice.name}, which choice.py --data {arguments.data} writes")
    chosen = json.loads(choice.read_text()) if arguments.chosen else {}

    def recipe_of(method: str, target: str) -> str:
        if method in BASELINES:
            return DEFAULT
        return chosen[target] if chosen else arguments.recipe

    done = {_key(row) for row in _read(output)}
    for seed in (int(s) for s in arguments.seeds.split(",")):
        problems = Problem.domains(arguments.data, arguments.folder)
        for target in arguments.targets.split(",") if arguments.targets else problems:
            problem = None
            for method in arguments.methods.split(","):
                name = recipe_of(method, target)
                known = {"method": method, "target": target, "seed": seed, "recipe": name, "iterations": iterations}
                if _key(known) in done:
                    continue
                if problem is None:
                    make = heart_problem if arguments.data == "hearts" else cord_problem
                    problem = make(target, seed, arguments.folder)
                start = time.process_time()
                row = train_and_score(problem, candidate(method, name, iterations), seed)
                row = {**known, **row, "cpu_seconds": round(time.process_time() - start)}
                output.parent.mkdir(parents=True, exist_ok=True)
                with open(output, "a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    rows = [
        r
        for r in _read(output)
        if (r.get("recipe", DEFAULT), r["iterations"]) == (recipe_of(r["method"], r["target"]), iterations)
    ]
    remark = f"vMF methods: {arguments.recipe}{', the default' if arguments.recipe == DEFAULT else ''}."
    if chosen:
        remark = "vMF methods, chosen by the sources of each target alone: "
        remark += "; ".join(f"{target} {name}" for target, name in chosen.items()) + "."
    text = table(rows, f"Generalisation to unseen domains, {arguments.data}", remark)
    output.with_name(output.stem + ("_chosen" if chosen else "") + ".md").write_text(text)
    print(text)


def _key(row: dict) -> tuple:
    return row["method"], row["target"], row["seed"], row.get("recipe", DEFAULT), row["iterations"]


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main()
