# SPDX-License-Identifier: Apache-2.0
"""Segment many files: one that is bad does not stop the others, and nothing is left half written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vmfseg.data.findings import DataWarning
from vmfseg.model.inputs import Job
from vmfseg.model.prediction import Prediction
from vmfseg.model.predictor import Predictor
from vmfseg.model.scan import map_image, write_map
from vmfseg.utils import VmfError, atomic_write, write_json
from vmfseg.utils.errors import find_vmf_error

__all__ = ["Extra", "SegmentOptions", "SegmentResult", "save_prediction", "segment_files"]


@dataclass(frozen=True)
class Extra:
    """Further files of a prediction, for instance meshes.

    Attributes:
        names: endings of the files that there may be, ``"LV.stl"`` for ``NAME_LV.stl``.
        make: returns the content of the files that there are, by ending, from a prediction and the class names.
    """

    names: tuple[str, ...]
    make: Callable[[Prediction, dict[int, str]], dict[str, bytes]]


@dataclass(frozen=True)
class SegmentOptions:
    """What is segmented of each image and what is written.

    Attributes:
        frames: see :func:`vmfseg.model.parse_frames`.
        probabilities: write the probability of every class.
        activations: write the activation of every kernel.
        adapt: to each frame, see :mod:`vmfseg.model.scan_adaptation`.
        overlay: draws a picture of a prediction, for instance :func:`vmfseg.visualize.draw_overlay`; ``None`` for none.
        extras: further files.
        overwrite: replace existing outputs.
        skip_existing: leave images alone whose label map is there.
        rules: what the reader accepts, see :class:`vmfseg.data.volume.ReadRules`.
    """

    frames: str | None = None
    probabilities: bool = False
    activations: bool = False
    adapt: str = "none"
    overlay: Callable[[Prediction, dict[int, str]], bytes] | None = None
    extras: tuple[Extra, ...] = ()
    overwrite: bool = False
    skip_existing: bool = False
    rules: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SegmentResult:
    """What became of one image.

    Attributes:
        image: the input.
        output: the label map.
        status: ``"written"``, ``"skipped"`` or ``"failed"``.
        quality: what ``quality.json`` holds, of a written one.
        error: of a failed one: code, subject, rule, found, fix.
        warnings: what was unusual and accepted.
    """

    image: str
    output: str
    status: str
    quality: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code of a command that did this alone."""
        return VmfError(self.error["code"]).exit_code if self.error else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def segment_files(
    predictor: Predictor, jobs: Sequence[Job], options: SegmentOptions | None = None
) -> Iterator[SegmentResult]:
    """Segment images one after the other; yield what became of each.

    A refused image is a failed result, and the next one is taken; a full disk or lack of memory ends the run.

    Args:
        predictor: the model.
        jobs: see :func:`vmfseg.model.inputs.plan_jobs`.
        options: what to write.

    Raises:
        VmfError: VMF503 before anything is done, if an output exists and may not be replaced.
    """
    chosen = options or SegmentOptions()
    maps = (chosen.probabilities, chosen.activations, chosen.overlay is not None)
    endings = [name for extra in chosen.extras for name in extra.names]
    if not chosen.overwrite and not chosen.skip_existing:
        wanted = [path for job in jobs for path in (*job.files(*maps), *(job.beside(name) for name in endings))]
        _refuse_existing([path for path in wanted if path.exists()])
    for job in jobs:
        if chosen.skip_existing and job.output.exists():
            result = SegmentResult(job.name, str(job.output), "skipped")
        else:
            result = _segment(predictor, job, chosen)
        yield result
        if result.exit_code == 6:
            return


def save_prediction(
    prediction: Prediction,
    job: Job,
    options: SegmentOptions | None = None,
    labels: dict[int, str] | None = None,
) -> None:
    """Write a prediction: maps and picture first, then the quality, the label map last.

    Args:
        prediction: what to write.
        job: where to.
        options: what to write of it.
        labels: class names, for the picture.

    Raises:
        VmfError: VMF501 to VMF503 if a file cannot be written.
    """
    chosen = options or SegmentOptions()
    overwrite = chosen.overwrite or chosen.skip_existing
    scan = prediction.scan
    for what, maps in (("probabilities", prediction.probabilities), ("activations", prediction.activations)):
        if maps is not None and getattr(chosen, what):
            write_map(job.beside(what, ".nii.gz"), map_image(scan, maps, channels=True), overwrite=overwrite)
    names = labels or {int(value): name for value, name in prediction.quality["labels"].items()}
    if chosen.overlay is not None:
        atomic_write(job.beside("overlay", ".png"), chosen.overlay(prediction, names), overwrite=overwrite)
    for extra in chosen.extras:
        for ending, content in extra.make(prediction, names).items():
            atomic_write(job.beside(ending), content, overwrite=overwrite)
    write_json(job.beside("quality", ".json"), prediction.quality, overwrite=overwrite)
    write_map(job.output, prediction.image, overwrite=overwrite)


def _segment(predictor: Predictor, job: Job, options: SegmentOptions) -> SegmentResult:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        try:
            prediction = predictor.predict(
                job.image,
                options.frames,
                probabilities=options.probabilities,
                activations=options.activations,
                adapt=options.adapt,
                **options.rules,
            )
            notes = tuple(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, DataWarning)))
            prediction.quality["warnings"] = [*predictor.remarks, *notes]
            save_prediction(prediction, job, options, predictor.labels)
        except Exception as error:  # whatever a file does to a library must not stop the other files
            refusal = find_vmf_error(error) or _unforeseen(error, job.name)
            return SegmentResult(job.name, str(job.output), "failed", error=refusal.as_dict())
    for warning in caught:
        if not issubclass(warning.category, DataWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return SegmentResult(job.name, str(job.output), "written", quality=prediction.quality, warnings=notes)


def _unforeseen(error: Exception, image: str) -> VmfError:
    if isinstance(error, MemoryError):
        return VmfError("VMF532", subject=image, fix="lower --batch-size, or segment some frames")
    return VmfError(
        "VMF900",
        subject=image,
        rule=f"{type(error).__name__}: {error}",
        fix="run this file alone with --debug and report it",
    )


def _refuse_existing(existing: Sequence[Path]) -> None:
    if existing:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise VmfError(
            "VMF503",
            subject=f"{existing[0]}{more}",
            rule="the output exists already",
            fix="pass --overwrite or --skip-existing, or choose another output",
        )
