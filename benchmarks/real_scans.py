# SPDX-License-Identifier: Apache-2.0
"""Score a model on the real scans that are at hand: volume by volume, with flags and ejection fractions.

    python benchmarks/real_scans.py hearts [--folder ../shared/data/real_mini] [--checkpoint MODEL] [-o TABLE.md]
    python benchmarks/real_scans.py hearts --shift 1 1      # labels of Sunnybrook lie beside the edges: see below
    python benchmarks/real_scans.py cords --plot FILE.png   # predicted against true Dice

Hearts: the labelled Sunnybrook patients at ED and ES on their annotated slices, and the ukdhp stacks, whose files have
lost their orientation and whose labels are automatic. Cords: five scans of four sites, on the slices with a label.
These scans judged choices of the phantom and of the recipe: a development set. None of them trains a model.

The contours of Sunnybrook were rasterized up to a pixel beside the edges in its images, all alike. ``--shift`` moves
the predictions of Sunnybrook by whole pixels along the axes of the files before they are scored, to tell how much of a
miss that offset is; the figures of a model are those without it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt

from vmfseg.metrics import evaluate_volume
from vmfseg.model import Predictor

Row = dict[str, Any]
Mask = npt.NDArray[np.bool_]


def heart_cases(folder: Path) -> Iterator[Row]:
    """Yield image, frame, label and annotated slices of every labelled heart."""
    for note in sorted((folder / "sunnybrook").glob("*_E[DS]_annotated.json")):
        stem, phase, _ = note.name.rsplit("_", 2)
        slices = json.loads(note.read_text())
        cine = json.loads((note.parent / f"{stem}_cine.json").read_text())
        yield {
            "domain": "sunnybrook",
            "subject": stem.removeprefix("sunnybrook_"),
            "phase": phase,
            "image": note.parent / f"{stem}_cine.nii.gz",
            "frame": int(cine[phase.lower()]),
            "label": note.parent / f"{stem}_{phase}_label.nii.gz",
            "slices": {1: slices["slices"], 2: slices["myo_slices"]},
            "classes": {"ED": ("LV", "MYO"), "ES": ("LV",)}[phase],
        }
    for label in sorted((folder / "cardiac").glob("ukdhp_*_label.nii.gz")):
        image = label.with_name(label.name.replace("_label", ""))
        yield {
            "domain": "ukdhp", "subject": label.name[:7], "phase": "ED", "image": image, "frame": None, "label": label,
            "slices": None, "classes": ("LV", "MYO", "RV"),
        }  # fmt: skip


def cord_cases(folder: Path) -> Iterator[Row]:
    """Yield image, label and drawn slices of every labelled cord."""
    for label in sorted((folder / "spinal").glob("*_label.nii.gz")):
        drawn = np.flatnonzero(np.asarray(nib.load(label).dataobj).any(axis=(0, 1))).tolist()
        yield {
            "domain": label.name.split("_")[0], "subject": label.name.removesuffix("_label.nii.gz"), "phase": "",
            "image": label.with_name(label.name.replace("_label", "")), "frame": None, "label": label,
            "slices": {1: drawn, 2: drawn}, "classes": ("GM", "WM"),
        }  # fmt: skip


def score(predictor: Predictor, case: Row, shift: tuple[int, int] = (0, 0)) -> list[Row]:
    """Segment one volume; return a row for each class that its readers drew."""
    prediction = predictor.predict(case["image"], None if case["frame"] is None else [case["frame"]])
    labels = prediction.labels if case["frame"] is None else prediction.labels[..., case["frame"]]
    truth = nib.load(case["label"])
    labels = labels.reshape(truth.shape)
    if case["domain"] == "sunnybrook":
        labels = np.roll(labels, shift, axis=(0, 1))
    found = evaluate_volume(
        labels, np.asarray(truth.dataobj), truth.header.get_zooms()[:3], predictor.labels, slices=case["slices"]
    )
    quality = prediction.quality["frames"][0]
    values = {name: value for value, name in predictor.labels.items()}
    drawn = np.asarray(truth.dataobj)
    return [
        {
            **at_the_ends(labels == values[row.class_name], drawn == values[row.class_name], case["slices"]),
            "domain": case["domain"], "subject": case["subject"], "phase": case["phase"], "class": row.class_name,
            "dice": row.dice or 0.0, "hd95": row.hd95_mm, "pred_ml": row.volume_pred_ml, "true_ml": row.volume_true_ml,
            "flag": quality["light"], "predicted": quality["predicted_dice"],
        }
        for row in found if row.class_name in case["classes"]
    ]  # fmt: skip


def at_the_ends(found: Mask, true: Mask, slices: dict[int, list[int]] | None) -> Row:
    """Count slices that readers drew and the model leaves empty (below a quarter of the area); Dice without them."""
    drawn = [z for z in range(true.shape[2]) if true[:, :, z].any()]
    empty = [z for z in drawn if 4 * found[:, :, z].sum() < true[:, :, z].sum()]
    judged = range(true.shape[2]) if slices is None else slices[1]
    rest = [z for z in judged if z not in empty]
    a, b = found[:, :, rest], true[:, :, rest]
    return {"drawn": len(drawn), "empty": len(empty), "rest": 2 * float((a & b).sum()) / max(1, a.sum() + b.sum())}


def head(*names: str) -> str:
    """Return the first two lines of a Markdown table."""
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def report(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the table: means by domain, phase and class; then every volume; then ejection fractions."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["domain"], row["phase"], row["class"]), []).append(row)
    yield head("domain", "phase", "class", "n", "Dice", "lowest", "HD95 mm", "volume / readers'")
    for (domain, phase, name), part in groups.items():
        dice = np.array([row["dice"] for row in part])
        far = [row["hd95"] for row in part if row["hd95"] is not None]
        ratio = sum(row["pred_ml"] for row in part) / max(1e-9, sum(row["true_ml"] for row in part))
        spread = f" ± {dice.std(ddof=1):.3f}" if len(part) > 1 else ""
        yield (
            f"| {domain} | {phase} | {name} | {len(part)} | {dice.mean():.3f}{spread} | {dice.min():.3f} | "
            f"{np.mean(far):.1f} | {ratio:.2f} |"
        )
    for name in dict.fromkeys(row["class"] for row in rows):
        means = [np.mean([r["dice"] for r in part]) for (_, _, which), part in groups.items() if which == name]
        yield f"\nMean of {name} over groups: {np.mean(means):.3f}"
    yield "\n" + head("domain", "phase", "class", "slices drawn", "of these left empty", "Dice without these")
    for (domain, phase, name), part in groups.items():
        slices = [sum(row[key] for row in part) for key in ("drawn", "empty")]
        rest = np.mean([row["rest"] for row in part])
        yield f"| {domain} | {phase} | {name} | {slices[0]} | {slices[1]} | {rest:.3f} |"
    yield "\n" + head("subject", "phase", "class", "Dice", "HD95 mm", "ml", "readers' ml", "flag", "predicted Dice")
    for row in rows:
        far = "-" if row["hd95"] is None else f"{row['hd95']:.1f}"
        yield (
            f"| {row['subject']} | {row['phase']} | {row['class']} | {row['dice']:.3f} | {far} | {row['pred_ml']:.1f} "
            f"| {row['true_ml']:.1f} | {row['flag']} | {row['predicted']} |"
        )
    yield from ejection(rows)
    yield from trust(rows)


def ejection(rows: list[Row]) -> Iterator[str]:
    """Yield ejection fractions over the annotated slices, and their error."""
    cavity = {
        (row["subject"], row["phase"]): row for row in rows if row["class"] == "LV" and row["domain"] == "sunnybrook"
    }
    errors = []
    for subject in dict.fromkeys(subject for subject, _ in cavity):
        ed, es = cavity[subject, "ED"], cavity[subject, "ES"]
        true, pred = (100 * (1 - es[key] / max(ed[key], 1e-9)) for key in ("true_ml", "pred_ml"))
        if not errors:
            yield "\n" + head("subject", "EF %", "readers' EF %")
        errors.append(pred - true)
        yield f"| {subject} | {pred:.1f} | {true:.1f} |"
    if errors:
        error, bias = np.mean(np.abs(errors)), np.mean(errors)
        yield f"\nEjection fraction: mean absolute error {error:.1f} points, bias {bias:+.1f}"


def judged_volumes(rows: list[Row]) -> list[tuple[float, Row]]:
    """Return the Dice of every volume that has a prediction of it (mean over its classes), with one of its rows."""
    volumes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        volumes.setdefault((row["subject"], row["phase"]), []).append(row)
    return [
        (float(np.mean([r["dice"] for r in part])), part[0])
        for part in volumes.values() if part[0]["predicted"] is not None
    ]  # fmt: skip


def plot(rows: list[Row], path: Path) -> None:
    """Draw predicted against true Dice, a point a volume, in the color of its flag."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.4, 1], [0.4, 1], color="0.7", linewidth=1)
    for flag, color in (("green", "#2a9d3a"), ("amber", "#e0a000"), ("red", "#c8322b")):
        points = [(row["predicted"], dice) for dice, row in judged_volumes(rows) if row["flag"] == flag]
        if points:
            axes.scatter(*zip(*points, strict=True), s=26, color=color, label=f"{flag} ({len(points)})")
    axes.set(xlim=(0.4, 1), ylim=(0.4, 1), xlabel="predicted Dice", ylabel="true Dice", aspect="equal")
    axes.legend(title="flag", loc="upper left", frameon=False)
    figure.savefig(path, dpi=110)


def trust(rows: list[Row]) -> Iterator[str]:
    """Yield how flags and predicted Dice agree with the Dice of the volumes."""
    judged = judged_volumes(rows)
    if len(judged) < 3:
        return
    true, predicted = np.array([d for d, _ in judged]), np.array([r["predicted"] for _, r in judged])
    green = [d for d, r in judged if r["flag"] == "green"]
    yield (
        f"\nPredicted against true Dice: correlation {np.corrcoef(true, predicted)[0, 1]:.2f}, mean absolute error "
        f"{np.abs(true - predicted).mean():.3f}; {len(green)} of {len(judged)} volumes green, "
        f"{sum(d < 0.6 for d in green)} of them below 0.6"
    )


def main() -> None:
    """Segment and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("hearts", "cords"))
    parser.add_argument("--bundle", help="default: the shipped model of that name")
    parser.add_argument("--checkpoint", help="other weights than those of the bundle")
    parser.add_argument(
        "--folder", type=Path, default=Path(os.environ.get("VMFSEG_REAL_DATA", "../shared/data/real_mini"))
    )
    parser.add_argument("--shift", type=int, nargs=2, default=(0, 0), help="move predictions of Sunnybrook, in pixels")
    parser.add_argument("--plot", type=Path, help="draw predicted against true Dice there")
    parser.add_argument("-o", "--output", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    predictor = Predictor.from_bundle(arguments.bundle or arguments.kind, checkpoint=arguments.checkpoint)
    cases = (heart_cases if arguments.kind == "hearts" else cord_cases)(arguments.folder)
    rows = [row for case in cases for row in score(predictor, case, tuple(arguments.shift))]
    if not rows:
        sys.exit(f"{arguments.folder} holds no labelled {arguments.kind}; give --folder")
    text = "\n".join(report(rows)) + "\n"
    sys.stdout.write(text)
    if arguments.output:
        arguments.output.write_text(text)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
