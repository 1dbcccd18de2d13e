# SPDX-License-Identifier: Apache-2.0
"""Which of the candidate recipes do the source domains of a target choose, without the target?

A recipe that was chosen once for all targets has seen each of them as somebody's source. Here the choice is made anew
for every target, from the candidates in ``common.py``, by vMFNet with seed 0 and as many labelled batches as in
``generalisation.py`` (vMFPseudo takes the same; the U-Net has nothing to choose). What the candidates are was found out
before, with all domains in sight: see ``results/levers.md``.

* hearts: by the Dice on source validation, with the target's vendor left out;
* cords (``--data cords --folder DIR``), whose sites have no scan to spare for validation: by leaving out one more site.
  A network learns on two sites; the third, with all its masks, is scored; the target is not read. The mean over the
  three sites that can be the third decides. (A network that learnt on two sites serves both others, each as the
  target of the other.)

Writes ``results/choice_<data>.json``, a line a run in the ``.jsonl`` beside it, and a table in the ``.md``; ``python
benchmarks/generalisation.py --chosen`` then trains every target by its own recipe.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import combinations
from pathlib import Path

import torch
from common import CANDIDATES, ITERATIONS, Problem, candidate, cord_problem, heart_problem, train, train_and_score

RESULTS = Path(__file__).parent / "results"


def heart_rows(target: str, name: str, iterations: int) -> list[dict]:
    """Score source validation of one split."""
    score = train_and_score(heart_problem(target, 0), candidate("vmfnet", name, iterations), 0, unseen=False)
    return [{"target": target, "judge": "source validation", "dice": score["validation"]}]


def cord_rows(left_out: tuple[str, str], name: str, iterations: int, folder: str) -> list[dict]:
    """Learn on all sites but two; each of the two judges for the other."""
    network, rows = None, []
    for target, judge in (left_out, left_out[::-1]):
        problem = cord_problem(judge, 0, folder, without=target)
        if network is None:
            network = train(problem, candidate("vmfnet", name, iterations), 0)
        rows.append({"target": target, "judge": judge, "dice": problem.score(network, "target")["mean_dice"]})
    return rows


def table(rows: list[dict], data: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """Return a Markdown table of all that was run, and the choice from ``names`` for each target."""
    lines = [f"# The recipe that its sources choose for each target, {data}", ""]
    lines += [f"vMFNet, seed 0, {ITERATIONS[data]} labelled batches; Dice on what is left of the sources.", ""]
    chosen = {}
    for target in sorted({row["target"] for row in rows}):
        judges = sorted({row["judge"] for row in rows if row["target"] == target})
        header = ["target " + target, *judges, *(["mean"] if len(judges) > 1 else [])]
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        means: dict[str, float] = {}
        for name in CANDIDATES:
            found = {r["judge"]: r["dice"] for r in rows if (r["target"], r["recipe"]) == (target, name)}
            if len(found) < len(judges):
                continue
            means[name] = statistics.mean(found.values())
            cells = [found[judge] for judge in judges] + ([means[name]] if len(judges) > 1 else [])
            lines.append("| " + " | ".join([name, *(f"{value:.4f}" for value in cells)]) + " |")
        if all(name in means for name in names):
            chosen[target] = max(names, key=lambda name: means[name])
            lines += ["", f"Chosen: {chosen[target]}."]
        lines.append("")
    return "\n".join(lines), chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("hearts", "cords"), default="hearts")
    parser.add_argument("--folder", default="", help="folder of the cords (images, *_label), for --data cords")
    parser.add_argument(
        "--recipes", default=";".join(CANDIDATES), help="semicolon-separated; the choice is made between these"
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    output = RESULTS / f"choice_{arguments.data}.jsonl"
    domains, iterations = Problem.domains(arguments.data, arguments.folder), ITERATIONS[arguments.data]
    for name in arguments.recipes.split(";"):
        for left_out in combinations(domains, 2) if arguments.data == "cords" else [(domain,) for domain in domains]:
            done = {(row["recipe"], row["target"], row["judge"]) for row in _read(output)}
            wanted = (name, left_out[0], left_out[1] if len(left_out) > 1 else "source validation")
            if wanted in done:
                continue
            if arguments.data == "cords":
                rows = cord_rows((left_out[0], left_out[1]), name, iterations, arguments.folder)
            else:
                rows = heart_rows(left_out[0], name, iterations)
            with open(output, "a") as stream:
                stream.writelines(json.dumps({"recipe": name, **row}) + "\n" for row in rows)
            print(name, rows, flush=True)
    text, chosen = table(_read(output), arguments.data, arguments.recipes.split(";"))
    output.with_suffix(".md").write_text(text)
    if len(chosen) == len(domains):
        output.with_suffix(".json").write_text(json.dumps(chosen, indent=2) + "\n")
    print(text)


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main()
