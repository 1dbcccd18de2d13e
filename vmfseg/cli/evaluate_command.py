# SPDX-License-Identifier: Apache-2.0
"""``vmfseg evaluate``: score predicted label maps against the truth."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import nibabel as nib
import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from vmfseg.cli.terminal import AsJson, Overwrite
from vmfseg.data.geometry import FAIL_VOXELS, WARN_VOXELS, align_grid, corner_distance, describe_grid, voxel_sizes
from vmfseg.data.reader import read_volume
from vmfseg.data.volume import Volume
from vmfseg.metrics import Case, SegmentationScores, check_outputs, format_table, write_metrics
from vmfseg.metrics.pairing import FilePair, Pairing, SubjectInfo, pair_files, read_domains
from vmfseg.utils import VmfError, check_choice, did_you_mean, read_json

__all__ = ["evaluate", "evaluate_folders"]

StrPath = str | os.PathLike[str]


def evaluate_folders(
    predictions: StrPath,
    truths: StrPath,
    *,
    labels: Mapping[int, str] | None = None,
    domains: Mapping[str, SubjectInfo] | None = None,
    protocol: str = "clean",
    count_missing: bool = False,
    progress: bool = False,
) -> tuple[SegmentationScores, dict[str, Any]]:
    """Score all pairs of label maps of two folders (or two files) on the grid of the truth.

    Args:
        predictions: folder of predicted label maps.
        truths: folder of true label maps; :mod:`vmfseg.metrics.pairing` says how names are paired.
        labels: name of every class by voxel value; ``None`` takes ``labels.json`` beside the truth or, without one,
            every value that occurs under its number.
        domains: domain of every subject; ``None`` puts all into one.
        protocol: ``"clean"`` or ``"paper"``.
        count_missing: score a truth without prediction as an empty prediction instead of leaving it out.
        progress: show a progress bar on standard error.

    Returns:
        The scores, and the inputs as a plain dictionary: files, files without partner, warnings.

    Raises:
        VmfError: VMF160 to VMF163 arguments and tables, VMF270 label values without a name, VMF273 and VMF277 maps on
            different grids, VMF298 and VMF299 names that do not pair, and all of the reader.
    """
    found = pair_files(predictions, truths)
    pairs = [*found.pairs, *(found.without_pred if count_missing else ())]
    if domains is not None:
        _check_domains(pairs, domains)
    warnings: list[str] = []
    scores = SegmentationScores(labels or _default_labels(truths, pairs), protocol)
    console = Console(stderr=True)
    for pair in track(pairs, "scoring", console=console, disable=not progress, transient=True):
        info = (domains or {}).get(pair.subject)
        annotated = None if info is None else _annotated(info, pair.subject, scores.labels)
        for case in _load(pair, info, warnings):
            _score(scores, replace(case, annotated=annotated), pair)
    return scores, _inputs(predictions, truths, pairs, found, count_missing, warnings)


def evaluate(
    predictions: Annotated[
        Path, typer.Argument(metavar="PRED", help="Folder of predicted label maps, or one file.", show_default=False)
    ],
    truths: Annotated[
        Path, typer.Argument(metavar="GT", help="Folder of true label maps, or one file.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for metrics.json and metrics.csv.", show_default=False)
    ],
    labels: Annotated[
        Path | None, typer.Option(help='JSON with the class names: {"1": "LV", ...} or {"LV": 1, ...}.')
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Class names of the labels 1, 2, ...: LV,MYO,RV.")] = None,
    domains: Annotated[
        Path | None, typer.Option(help="CSV: subject, domain [, ED, ES (frames), annotated (classes)]; M&Ms' will do.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="clean, or paper to add the reference code's figures.")] = "clean",
    count_missing: Annotated[
        bool, typer.Option("--count-missing", help="Score a truth without prediction as an empty prediction.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    r"""Score predicted label maps against the truth: Dice, HD, HD95 and ASSD in mm, volumes, ejection fraction.

    Files are paired by name; suffixes and endings like _pred or _gt do not count.
    Names that end in _ED or _ES are the phases of a subject.
    Both maps must lie on the same grid; nothing is resampled.
    Missed or spurious: Dice 0, distance = image diagonal. Absent in both: excluded.

    \b
    Examples:
      vmfseg evaluate labels/ truth/ -o scores/ --classes LV,MYO,RV
      vmfseg evaluate labels/ truth/ -o scores/ --domains vendors.csv --json
    """
    check_choice("protocol", protocol, ("clean", "paper"))
    if labels is not None and classes is not None:
        raise VmfError("VMF162", subject="--labels, --classes", rule="give one of the two", fix="drop one")
    check_outputs(output, overwrite)
    names = _read_labels(labels) if labels is not None else _parse_classes(classes)
    scores, inputs = evaluate_folders(
        predictions,
        truths,
        labels=names,
        domains=None if domains is None else read_domains(domains),
        protocol=protocol,
        count_missing=count_missing,
        progress=sys.stderr.isatty() and not as_json,
    )
    summary = {**scores.compute(), "inputs": inputs}
    paths = write_metrics(output, scores.rows, summary, overwrite=overwrite)
    for line in inputs["warnings"]:
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False))
        return
    typer.echo(format_table(summary, plain=not sys.stdout.isatty()))
    typer.echo(f"written: {paths[0]}, {paths[1]}")


def _load(pair: FilePair, info: SubjectInfo | None, warnings: list[str]) -> Iterator[Case]:
    truth = read_volume(pair.truth, kind="label")
    if pair.pred is None:
        pred = np.zeros_like(truth.array)
    else:
        pred = _on_grid_of(truth, read_volume(pair.pred, kind="label"), warnings)
    spacing = [float(size) for size in voxel_sizes(truth.affine)]
    domain = "all" if info is None else info.domain
    if truth.array.ndim == 3:
        yield Case(pred, truth.array, spacing, pair.subject, domain, pair.phase)
        return
    phases = {frame: phase for phase, frame in (info.frames if info else ())}
    drawn = [frame for frame in range(truth.array.shape[3]) if truth.array[..., frame].any()]
    chosen = sorted(phases) or drawn
    if chosen and chosen[-1] >= truth.array.shape[3]:
        raise VmfError(
            "VMF235",
            subject=str(pair.truth),
            rule="the frame must exist",
            found=f"frame {chosen[-1]} of {truth.array.shape[3]} (counted from 0)",
            fix="correct ED and ES in the table",
        )
    if not phases:
        count = truth.array.shape[3]
        warnings.append(f"{pair.truth.name}: {len(drawn)} of {count} frames have a truth; the others are not scored")
    for frame in chosen:
        yield Case(pred[..., frame], truth.array[..., frame], spacing, pair.subject, domain, phases.get(frame), frame)


def _on_grid_of(truth: Volume, pred: Volume, warnings: list[str]) -> Any:
    """Return the prediction's array with the axes of the truth, or refuse a prediction on another grid."""
    warnings.extend(str(finding) for volume in (truth, pred) for finding in volume.findings)
    grids = f"{describe_grid(pred.affine, pred.array.shape)} against {describe_grid(truth.affine, truth.array.shape)}"
    affine, shape, ornt = align_grid(truth.affine, pred.affine, pred.array.shape)
    array = nib.orientations.apply_orientation(pred.array, ornt)
    name = Path(pred.path).name
    if array.shape != truth.array.shape:
        raise VmfError(
            "VMF273",
            subject=pred.path,
            rule="prediction and truth must have the same shape",
            found=grids,
            fix="write predictions on the grid of the input image",
        )
    mm, voxels = corner_distance(truth.affine, affine, shape)
    if voxels > FAIL_VOXELS + 1e-6:
        raise VmfError(
            "VMF277",
            subject=pred.path,
            rule="prediction and truth must lie in the same place",
            found=f"corners {mm:.3g} mm ({voxels:.2g} voxels) apart; {grids}",
            fix="write predictions with the affine of the input image",
        )
    if voxels > WARN_VOXELS:
        warnings.append(f"{name}: corners {mm:.3g} mm ({voxels:.2g} voxels) off the truth; scored voxel by voxel")
    return array


def _score(scores: SegmentationScores, case: Case, pair: FilePair) -> None:
    order = np.argsort(case.spacing)
    thick = case.spacing[order[2]] >= 1.5 * case.spacing[order[1]]
    try:
        scores.update(
            case.pred,
            case.truth,
            case.spacing,
            case.subject,
            case.domain,
            case.phase,
            case.annotated,
            case.frame,
            slice_axis=int(order[2]) if thick else 2,
        )
    except ValueError as error:
        raise VmfError(
            "VMF270",
            subject=f"{pair.truth}" if pair.pred is None else f"{pair.pred}, {pair.truth}",
            rule="the label maps cannot be scored",
            found=str(error),
            fix="name all labels by --labels or --classes, and give every case its own name",
        ) from error


def _check_domains(pairs: Sequence[FilePair], domains: Mapping[str, SubjectInfo]) -> None:
    unknown = sorted({pair.subject for pair in pairs} - set(domains))
    if unknown:
        raise VmfError(
            "VMF161",
            subject="--domains",
            rule="every scored subject must be in the table",
            found=f"{len(unknown)} missing: {', '.join(unknown[:5])}",
            fix="add them; the subject is the file name without suffix, role, phase and _sa",
        )


def _annotated(info: SubjectInfo, subject: str, labels: Mapping[int, str]) -> list[int] | None:
    if info.annotated is None:
        return None
    values = {**{name: label for label, name in labels.items()}, **{str(label): label for label in labels}}
    unknown = [word for word in info.annotated if word not in values]
    if unknown:
        raise VmfError(
            "VMF161",
            subject="--domains",
            rule="annotated must hold names or values of classes",
            found=f"{subject}: {unknown[0]}",
            fix=f"the classes are {', '.join(labels.values())}.{did_you_mean(unknown[0], labels.values())}",
        )
    return [values[word] for word in info.annotated]


def _default_labels(truths: StrPath, pairs: Sequence[FilePair]) -> dict[int, str]:
    beside = Path(truths) / "labels.json"
    if beside.is_file():
        return _read_labels(beside)
    values: set[int] = set()
    for path in [path for pair in pairs for path in (pair.pred, pair.truth) if path is not None]:
        values |= {int(value) for value in np.unique(read_volume(path, kind="label").array)}
    return {value: str(value) for value in sorted(values - {0})} or {1: "1"}


def _parse_classes(classes: str | None) -> dict[int, str] | None:
    if classes is None:
        return None
    return dict(enumerate((name.strip() for name in classes.split(",")), start=1))


def _read_labels(path: Path) -> dict[int, str]:
    """Read ``{"1": "LV"}`` or ``{"LV": 1}``, alone or under the key ``labels`` (datalists, nnU-Net, metrics.json)."""
    values = read_json(path)
    values = values.get("labels", values) if isinstance(values, dict) else values
    try:
        pairs = [(key, name) if isinstance(name, str) else (name, key) for key, name in values.items()]
        return {int(label): str(name) for label, name in pairs}
    except (AttributeError, TypeError, ValueError) as error:
        raise VmfError(
            "VMF163",
            subject=str(path),
            rule="labels must map voxel values to names",
            found=str(values)[:80],
            fix='write {"1": "LV", "2": "MYO", "3": "RV"}',
        ) from error


def _inputs(
    predictions: StrPath,
    truths: StrPath,
    pairs: Sequence[FilePair],
    found: Pairing,
    count_missing: bool,
    notes: list[str],
) -> dict[str, Any]:
    without_pred = [pair.truth.name for pair in found.without_pred]
    without_truth = [path.name for path in found.without_truth]
    lines = list(notes)
    if without_pred:
        verdict = "counted as missed" if count_missing else "NOT in the means; --count-missing would count them"
        lines.append(f"{len(without_pred)} truth file(s) without prediction ({verdict}): {_some(without_pred)}")
    if without_truth:
        lines.append(f"{len(without_truth)} prediction(s) without truth, not scored: {_some(without_truth)}")
    return {
        "predictions": str(predictions),
        "truth": str(truths),
        "pairs": [
            {"case": pair.case, "prediction": pair.pred.name if pair.pred else None, "truth": pair.truth.name}
            for pair in pairs
        ],
        "truth_without_prediction": without_pred,
        "truth_without_prediction_counted": count_missing,
        "predictions_without_truth": without_truth,
        "warnings": lines,
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
