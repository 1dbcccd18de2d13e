# SPDX-License-Identifier: Apache-2.0
"""``vmfseg evaluate``: score predicted label maps against the truth."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.cli.terminal import AsJson, Overwrite, echo, print_json
from vmfseg.utils import VmfError, check_choice, read_json

if TYPE_CHECKING:
    from vmfseg.data.volume import Volume
    from vmfseg.metrics import Case, SegmentationScores
    from vmfseg.metrics.pairing import FilePair, Pairing, SubjectInfo

__all__ = ["evaluate", "evaluate_folders"]

StrPath = str | os.PathLike[str]
_MANY_VALUES = 64  # different values of a map whose classes have no names


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
    from rich.console import Console
    from rich.progress import track

    from vmfseg.metrics import SegmentationScores
    from vmfseg.metrics.pairing import pair_files

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
            _score(scores, replace(case, annotated=annotated, slices=_slices_of(info, pair, scores.labels)), pair)
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
        Path | None,
        typer.Option(help="CSV: subject, domain [, ED, ES, annotated, slices]; a datalist.csv or M&Ms' will do."),
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
    Names that end in _ED or _ES are the phases of a subject. Folders below are
    searched where a folder holds no label map itself.
    Both maps must lie on the same grid; nothing is resampled.
    Missed or spurious: Dice 0, distance = image diagonal. Absent in both: excluded.

    \b
    Examples:
      vmfseg evaluate labels/ truth/ -o scores/ --classes LV,MYO,RV
      vmfseg evaluate labels/ truth/ -o scores/ --domains vendors.csv --json
      vmfseg evaluate labels/ ~/mine -o scores/ --domains ~/mine/datalist.csv
    """
    from vmfseg.metrics import write_metrics
    from vmfseg.metrics.pairing import read_domains
    from vmfseg.metrics.reports import check_outputs
    from vmfseg.metrics.tables import format_table

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
        echo(f"warning: {line}", err=True)
    if as_json:
        print_json(summary)
        return
    typer.echo(format_table(summary, plain=not sys.stdout.isatty()))
    echo(f"written: {paths[0]}, {paths[1]}")


def _load(pair: FilePair, info: SubjectInfo | None, warnings: list[str]) -> Iterator[Case]:
    import numpy as np

    from vmfseg.data.geometry import voxel_sizes
    from vmfseg.data.reader import read_volume
    from vmfseg.metrics import Case
    from vmfseg.transforms.spatial import slice_axis

    truth = read_volume(pair.truth, kind="label")
    if pair.pred is None:
        pred = np.zeros_like(truth.array)
    else:
        pred = _on_grid_of(truth, read_volume(pair.pred, kind="label"), warnings)
    spacing = [float(size) for size in voxel_sizes(truth.affine)]
    domain = "all" if info is None else info.domain
    axis = slice_axis(truth.affine, truth.array.shape[:3])
    if truth.array.ndim == 3:
        yield Case(pred, truth.array, spacing, pair.subject, domain, pair.phase, slice_axis=axis)
        return
    phases = {frame: phase for phase, frame in (info.frames if info else ())}
    drawn = [frame for frame in range(truth.array.shape[3]) if truth.array[..., frame].any()]
    chosen = sorted(phases) or drawn
    if chosen and chosen[-1] >= truth.array.shape[3]:
        raise VmfError(
            "VMF235",
            subject=str(pair.truth),
            found=f"frame {chosen[-1]} of {truth.array.shape[3]} (counted from 0)",
            fix="correct ED and ES in the table",
        )
    if not phases:
        count = truth.array.shape[3]
        warnings.append(f"{pair.truth.name}: {len(drawn)} of {count} frames have a truth; the others are not scored")
    for frame in chosen:
        maps = pred[..., frame], truth.array[..., frame]
        yield Case(*maps, spacing, pair.subject, domain, phases.get(frame), frame, slice_axis=axis)


def _on_grid_of(truth: Volume, pred: Volume, warnings: list[str]) -> Any:
    """Return the prediction's array with the axes of the truth, or refuse a prediction on another grid."""
    import nibabel as nib

    from vmfseg.data.geometry import FAIL_VOXELS, WARN_VOXELS, align_grid, corner_distance, describe_grid

    warnings.extend(str(finding) for volume in (truth, pred) for finding in volume.findings)
    grids = f"{describe_grid(pred.affine, pred.array.shape)} against {describe_grid(truth.affine, truth.array.shape)}"
    affine, shape, ornt = align_grid(truth.affine, pred.affine, pred.array.shape)
    array = nib.orientations.apply_orientation(pred.array, ornt)
    name = Path(pred.path).name
    if array.shape != truth.array.shape:
        raise VmfError("VMF273", subject=pred.path, found=grids)
    mm, voxels = corner_distance(truth.affine, affine, shape)
    if voxels > FAIL_VOXELS + 1e-6:
        raise VmfError("VMF277", subject=pred.path, found=f"corners {mm:.3g} mm ({voxels:.2g} voxels) apart; {grids}")
    if voxels > WARN_VOXELS:
        warnings.append(f"{name}: corners {mm:.3g} mm ({voxels:.2g} voxels) off the truth; scored voxel by voxel")
    return array


def _score(scores: SegmentationScores, case: Case, pair: FilePair) -> None:
    try:
        scores.update(**vars(case))
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
    from vmfseg.transforms.annotation_text import parse_annotated

    try:
        return parse_annotated(info.annotated, labels)
    except ValueError as error:
        raise _bad_cell("annotated must hold names or values of classes", subject, error) from error


def _slices_of(info: SubjectInfo | None, pair: FilePair, labels: Mapping[int, str]) -> str | None:
    """Return the annotated slices of a case by class number, or ``None`` for all."""
    from vmfseg.transforms.annotation_text import parse_annotated, parse_slices, slices_text

    if info is None or info.slices is None:
        return None
    try:
        known = parse_annotated(info.annotated, labels)
        return slices_text(parse_slices(info.slices, labels, labels if known is None else known))
    except ValueError as error:
        raise _bad_cell("slices must list annotated slices", pair.subject, error) from error


def _bad_cell(rule: str, subject: str, error: ValueError) -> VmfError:
    fix = "write classes as 1;2 or by name, slices as 2-13"
    return VmfError("VMF161", subject="--domains", rule=rule, found=f"{subject}: {error}", fix=fix)


def _default_labels(truths: StrPath, pairs: Sequence[FilePair]) -> dict[int, str]:
    import numpy as np

    from vmfseg.data.reader import read_volume

    beside = Path(truths) / "labels.json"
    if beside.is_file():
        return _read_labels(beside)
    values: set[int] = set()
    for path in [path for pair in pairs for path in (pair.pred, pair.truth) if path is not None]:
        found = [int(value) for value in np.unique(read_volume(path, kind="label").array)]
        if found[0] < 0 or len(found) > _MANY_VALUES:
            raise VmfError(
                "VMF270",
                subject=str(path),
                rule="a label map must hold class numbers from 0 on",
                found=f"{len(found)} different values from {found[0]} to {found[-1]}; is it the scan?",
                fix="give the label map; if it has so many classes, name them by --labels",
            )
        values |= set(found)
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
        raise VmfError("VMF163", subject=str(path), found=str(values)[:80]) from error


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
