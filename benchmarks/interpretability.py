# SPDX-License-Identifier: Apache-2.0
"""Are the kernels what the paper says they are? Interpretability and compositional equivariance of trained bundles.

One command: ``python benchmarks/interpretability.py`` measures ``bundles/*_mnms`` where ``models/model.pt`` is there;
other folders (with ``models/model.pt``) are given as ``FOLDER`` or ``NAME=FOLDER``, for instance ``"weak, seed 1=DIR"``
or a vMFNet that was trained with ``--augmentation '$None'``, since flips and turns are learnt from augmentation.
Channels are matched on labelled source subjects and judged on the unseen domain. Three nulls go with them: a random
network with fitted kernels (N1), k-means on intensity and position (N2) and an encoder that learnt to copy its input
(N3); a fourth, the labels of another subject, is part of "meaningful". The tables, and the claims of the paper beside
them, are written as they come out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inspection import (
    PROBE_SLICES,
    STRUCTURES,
    Candidate,
    Material,
    cluster_candidate,
    measure,
    network_candidate,
    random_candidate,
    reconstruction_candidate,
    yardstick,
)

from vmfseg.model import Predictor
from vmfseg.utils import read_json, write_json
from vmfseg.visualize import run_experiment

HERE = Path(__file__).parent
TITLES = {
    "unsupervised_mnms": "unsupervised",
    "weak_mnms": "weak",
    "vmfweak_mnms": "vMFWeak",
    "vmfnet_mnms": "vMFNet",
    "vmfpseudo_mnms": "vMFPseudo",
}
TISSUES = ("LV blood", "LV myocardium", "papillaries", "RV blood", "lung", "liver", "fat")
MOTIONS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "flips": lambda row: row["motion"].startswith("flip"),
    "turns": lambda row: row["motion"].startswith("turn"),
    "shift by stride": lambda row: row["motion"].startswith("shift") and row["family"] == "exact",
    "smaller shifts": lambda row: row["family"] == "aliasing",
    "rotations": lambda row: row["motion"].startswith("rotate"),
    "scalings": lambda row: row["motion"].startswith("scale"),
}
NULLS = ("N1 random network", "N2 k-means", "N3 reconstruction")


def score(rows: Sequence[Mapping[str, Any]], test: str, choose: Callable[[Mapping[str, Any]], bool], fill: str | None,
          mask: str = "foreground") -> float | None:  # fmt: skip
    """Return the mean CE of the chosen motions, or ``None`` if it is undefined for one of them."""
    chosen = [
        row["score"] for row in rows if (row["test"], row["mask"], row["fill"]) == (test, mask, fill) and choose(row)
    ]
    return None if not chosen or None in chosen else float(np.mean(chosen))


def headline(figures: Mapping[str, Any]) -> float | None:
    """Return the CE of motion and separation together, over exact motions; the figure that ranks the settings."""
    return score(figures["equivariance"], "ce", lambda row: row["family"] == "exact", "local_mean")


def tables(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown of all tables."""
    return "\n".join(
        [
            *_yardstick(results),
            "",
            *_meaning(results),
            "",
            *_tissues(results),
            "",
            *_independence(results),
            "",
            *_equivariance(results),
        ]
    )


def _yardstick(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## What a representation is worth", "",
             "Dice on the unseen domain, mean over subjects: winner region of the best kernel / of the best set of "
             "kernels [95 %] (number of kernels), chosen on source subjects. Probe n: softmax regression on log "
             "activations (N2: intensity; N3: features) and position, fitted on n labelled source slices, mean of LV, "
             "MYO and RV over five draws of slices (± their spread). Box: share of slices with heart in which the box "
             "around the heart's kernels overlaps the true one by half or more.", ""]  # fmt: skip
    rows = []
    for name, figures in results.items():
        known = figures["yardstick"]
        cells = []
        for structure in STRUCTURES:
            entry = known["structures"].get(structure)
            if entry is None:
                cells.append("–")
                continue
            limits = entry["set"]["interval_95"]
            interval = "" if limits is None else f" [{limits[0]:.2f}, {limits[1]:.2f}]"
            kernels = len(entry["set"]["kernels"])
            cells.append(f"{entry['one']['dice']:.2f} / {entry['set']['dice']:.2f}{interval} ({kernels})")
        probes = [known["probe"][str(n)] for n in PROBE_SLICES]
        cells.append("–" if known["box"] is None else f"{known['box']['hit_rate']:.2f}")
        rows.append([name, *cells, *(f"{p['dice']:.2f} ± {p['spread']:.2f}" for p in probes)])
    return [*lines, *_table(["setting", *STRUCTURES, "box", *(f"probe {n}" for n in PROBE_SLICES)], rows)]


def _meaning(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## Meaningful and homologous", "",
             "Matched on source subjects, judged on the unseen domain. Entropy: 0 one class a channel, 1 all alike. "
             "Homology: 1 the same class profile in all subjects (domains).", ""]  # fmt: skip
    first = next(iter(results.values()))["classes"]["classes"]
    head = ["setting", "segmentation Dice", "matched Dice [95 %]", *first, "meaningful", "entropy", "homology subjects",
            "homology domains", "AMI", "channels in use"]  # fmt: skip
    rows = []
    for name, figures in results.items():
        c = figures["classes"]
        limits = c["matched_dice_interval_95"]
        interval = "" if limits is None else f" [{limits[0]:.2f}, {limits[1]:.2f}]"
        known = c["n_meaningful"]
        rows.append([
            name, _text(figures["segmentation_dice"]), _text(c["matched_dice"]) + interval,
            *(_text(entry["matched_dice"]) for entry in c["classes"].values()),
            "–" if known is None else f"{known} of {len(c['channels'])}", _text(c["mean_class_entropy"]),
            _text(figures["homology_subjects"]), _text(figures["homology_domains"]), _text(c["partition"]["ami"]),
            f"{c['usage']['perplexity']:.1f}",
        ])  # fmt: skip
    return [*lines, *_table(head, rows)]


def _tissues(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## Tissues, labelled or not", "",
             "Dice of the channel that is best for a tissue on source subjects, on the unseen domain (channel). The "
             "phantom knows the true tissue of every voxel; only LV, MYO and RV were ever labelled.", ""]  # fmt: skip
    rows = []
    for name, figures in results.items():
        cells = [figures["tissues"].get(tissue) for tissue in TISSUES]
        rows.append([name, *("–" if c is None else f"{_text(c['matched_dice'])} ({c['channel']})" for c in cells)])
    return [*lines, *_table(["setting", *TISSUES], rows)]


def _independence(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## Content, style and image", "",
             "Bias-corrected distance correlation (squared; * = above the permutation null at 5 %) of image I, content "
             "C (activations) and three stand-ins for style: kernel residuals, feature norms, appearance. IoB: "
             "information over bias, 1 = none. Leakage: balanced accuracy of a linear probe for the vendor (chance).",
             ""]  # fmt: skip
    head = ["setting", "I, C", "C, residuals", "C, norms", "C, appearance", "IoB(I, C)", "leakage"]
    rows = []
    for name, figures in results.items():
        entry = figures["independence"]
        keys = ("image_content", "content_residuals", "content_norms", "content_appearance")
        leak = figures["domain_leakage"]
        rows.append([
            name, *(_correlation(entry.get(key)) for key in keys), _text(figures["iob"]["iob"]),
            f"{leak['balanced_accuracy']:.2f} ({leak['chance']:.2f})",
        ])  # fmt: skip
    return [*lines, *_table(head, rows)]


def _equivariance(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## Compositional equivariance", "",
             "CE = 1 - E / E_chance inside the foreground: 1 perfect, 0 chance, – undefined (E_chance < 0.1: a "
             "collapsed representation is equivariant for nothing). To be read with the matched Dice. Motions alone; "
             "separation alone with two fills; both together over exact motions, fill by the local mean, which ranks. "
             "(floor) marks errors within what interpolation alone costs.", ""]  # fmt: skip
    head = ["setting", "matched Dice", *MOTIONS, "separation", "separation, zero fill", "both", "chance"]
    rows = []
    for name, figures in results.items():
        e = figures["equivariance"]
        chances = [row["chance"] for row in e if row["mask"] == "foreground" and row["chance"] is not None]
        motions = [_moved(e, choose) for choose in MOTIONS.values()]
        separate = [_text(score(e, "sep", lambda row: True, fill)) for fill in ("local_mean", "zero")]
        spread = f"{min(chances):.2f}–{max(chances):.2f}" if chances else "–"
        rows.append(
            [name, _text(figures["classes"]["matched_dice"]), *motions, *separate, _text(headline(figures)), spread]
        )
    ranked = sorted(
        ((value, name) for name, figures in results.items() if (value := headline(figures)) is not None), reverse=True
    )
    order = ", ".join(f"{name} ({value:.3f})" for value, name in ranked) or "no setting is defined"
    return [*lines, *_table(head, rows), "", f"Ranked by both: {order}.", "",
            "The paper's order, by eye: unsupervised < weak; vMFNet < vMFPseudo (other channels more homologous); "
            "vMFWeak interpretable but less of the rest of the image."]  # fmt: skip


def claims(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a paragraph that holds the paper's claims against the figures; verdicts follow from stated rules."""
    parts = ["A claim counts as supported where a figure exceeds all nulls (N1, N2, N3) and 0.5 Dice."]
    nulls = [results[name] for name in NULLS if name in results]

    def tissue(figures: Mapping[str, Any], name: str) -> float:
        return float((figures["tissues"].get(name) or {}).get("matched_dice") or 0.0)

    def class_dice(figures: Mapping[str, Any], name: str) -> float:
        return float(figures["classes"]["classes"].get(name, {}).get("matched_dice") or 0.0)

    for what, names, kind in (
        ("Channels for LV, RV and MYO", ("LV", "RV", "MYO"), class_dice),
        ("A channel for the papillary muscles", ("papillaries",), tissue),
        ("A channel for the lungs without supervision", ("lung",), tissue),
    ):
        bars = {name: max([0.5, *(kind(null, name) for null in nulls)]) for name in names}
        trained = {title: figures for title, figures in results.items() if title not in NULLS}
        yes = [t for t, figures in trained.items() if all(kind(figures, n) > bars[n] for n in names)]
        no = [t for t in trained if t not in yes]
        values = "; ".join(f"{t} {', '.join(f'{kind(f, n):.2f}' for n in names)}" for t, f in trained.items())
        limits = ", ".join(f"{n} {bars[n]:.2f}" for n in names)
        parts.append(f"{what} (to beat: {limits}): supported by {_list(yes)}, not by {_list(no)} ({values}).")
    orders = (("unsupervised", "weak"), ("vMFNet", "vMFPseudo"))
    seeds = sorted({name.partition(", seed ")[2] for name in results})
    for less, more in (
        tuple(f"{name}, seed {seed}" if seed else name for name in pair) for pair in orders for seed in seeds
    ):
        if less in results and more in results:
            pairs = []
            for label, value in (("matched Dice", lambda f: f["classes"]["matched_dice"]), ("CE", headline)):
                a, b = value(results[less]), value(results[more])
                verdict = "undefined" if a is None or b is None else ("supported" if b > a else "not supported")
                pairs.append(f"by {label} {verdict} ({_text(b)} against {_text(a)})")
            parts.append(f"{more} above {less}: {', '.join(pairs)}.")
    parts.append(_augmentation(results))
    parts.append("Phantom data, small networks: the figures speak of these models, not of the paper's.")
    return " ".join(parts)


def _augmentation(results: Mapping[str, Mapping[str, Any]]) -> str:
    plain = next((name for name in results if "without augmentation" in name), None)
    if plain is None or "vMFNet" not in results:
        return (
            "No model without augmentation was given, so no equivariance under flips and turns is credited to kernels."
        )
    both = [
        score(results[name]["equivariance"], "eq", lambda row: row["family"] == "exact", None)
        for name in (plain, "vMFNet")
    ]
    text = f"Under exact motions vMFNet has CE {_text(both[1])}, without augmentation {_text(both[0])}"
    if None in both:
        return f"{text}: undefined, nothing can be credited."
    if both[0] < both[1]:
        return f"{text}: the difference comes from augmentation and is no merit of the kernels."
    return f"{text}: augmentation is not where it comes from."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def _moved(rows: Sequence[Mapping[str, Any]], choose: Callable[[Mapping[str, Any]], bool]) -> str:
    value = score(rows, "eq", choose, None)
    chosen = [row for row in rows if row["test"] == "eq" and row["mask"] == "foreground" and choose(row)]
    at = [row for row in chosen if row["floor"] > 0 and row["error"] is not None and row["error"] <= row["floor"]]
    return _text(value) + (" (floor)" if value is not None and len(at) == len(chosen) else "")


def _correlation(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["dcor2"] is None:
        return "–"
    return f"{entry['dcor2']:.2f}" + ("*" if entry["p_value_permutation"] <= 0.05 else "")


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _worth(candidate: Candidate, material: Material) -> dict[str, Any]:
    return {"yardstick": yardstick(candidate, material)}


def find_bundles(given: Sequence[str]) -> dict[str, Path]:
    """Return the folders by the name to show, in the order of the paper."""
    if not given:
        found = {title: HERE.parent / "bundles" / folder for folder, title in TITLES.items()}
        return {title: path for title, path in found.items() if (path / "models" / "model.pt").is_file()}
    named = [
        entry.split("=", 1) if "=" in entry else [TITLES.get(Path(entry).name, Path(entry).name), entry]
        for entry in given
    ]
    return {title: Path(folder) for title, folder in named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", metavar="[NAME=]FOLDER", help="default: bundles/*_mnms with a model")
    parser.add_argument("--dataset_dir", default="", help="the data; default: the phantom")
    parser.add_argument("--output", default=str(HERE / "results" / "interpretability.md"))
    parser.add_argument("--yardstick", action="store_true", help="the first table alone, in minutes")
    parser.add_argument("--reconstruction_iterations", type=int, default=1000, help="of null N3, batches of 12 slices")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bundles = find_bundles(arguments.bundles)
    if not bundles:
        print("no bundle has models/model.pt: train them first (vmfseg train vmfnet_mnms, ...)")
        return
    judge = _worth if arguments.yardstick else measure
    results: dict[str, Any] = {}
    material, shape = None, None
    for title, folder in bundles.items():
        start = time.process_time()
        predictor = Predictor.from_bundle(folder, "cpu")
        experiment, _ = run_experiment(predictor.model, arguments.dataset_dir or None)
        wanted = predictor.model.preprocessing, experiment.fingerprint
        if material is None or shape != wanted:
            material, shape = Material.load(predictor, experiment), wanted
        written = [place for place in (folder / "output", folder) if (place / "metrics.json").is_file()]
        dice = read_json(written[0] / "metrics.json")["mean_dice"] if written else None
        results[title] = judge(network_candidate(title, predictor.network, dice), material)
        print(f"{title}: {time.process_time() - start:.0f} CPU s", flush=True)
    nulls = [random_candidate(predictor, material), cluster_candidate(predictor, material)]
    nulls.append(reconstruction_candidate(predictor, material, arguments.reconstruction_iterations))
    for candidate in nulls:
        results[candidate.name] = judge(candidate, material)
    target = sorted({view.domain for view in material.target})
    title = f"# Interpretability and compositional equivariance, unseen domain {', '.join(target)}"
    note = f"N3 was trained for {arguments.reconstruction_iterations} batches of 12 slices."
    parts = [title, "", "\n".join(_yardstick(results)), "", note, ""]
    if not arguments.yardstick:
        parts = [title, "", tables(results), "", "## The paper's claims", "", claims(results), ""]
    text = "\n".join(parts)
    output = Path(arguments.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    write_json(output.with_suffix(".json"), json.loads(json.dumps(results)))
    print(text)


if __name__ == "__main__":
    main()
