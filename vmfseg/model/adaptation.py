# SPDX-License-Identifier: Apache-2.0
r"""Measures, without labels, of how a model suits a set of scans, and the verdict whether another suits them better.

For each scan: the predicted Dice, and the mean log-likelihood of its features under the vMF kernels. Where a subject
was scanned twice on one grid, the agreement of the two label maps: their Dice, mean over the classes. And the true Dice
on drawn phantom subjects, which an adaptation must not forget.

A model is *better* if its predicted Dice is higher, mean over the subjects, and nothing else got worse: the likelihood
by more than the standard error of the paired differences, the agreement by more than 0.01, the Dice on the phantom by
more than 0.03. Predicted Dice means the same before and after only if both models were calibrated on the same volumes.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data import Datalist
from vmfseg.data.datalist import Row
from vmfseg.data.discover import open_datalist
from vmfseg.data.reader import clear_cache, image_stem, read_header
from vmfseg.model.calibration import quality_cases
from vmfseg.model.inputs import find_images
from vmfseg.model.predictor import Predictor
from vmfseg.model.scan import Scan
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["OwnScan", "Suitability", "find_own_scans", "own_datalist", "suitability", "verdict"]

_REPEAT = re.compile(r"[_-](run|rep|repeat|scan)-?\d+$", re.IGNORECASE)
_AGREEMENT, _FORGETTING = 0.01, 0.03


@dataclass(frozen=True)
class OwnScan:
    """A scan of a user.

    Attributes:
        image: file or DICOM folder; a tuple for several channels.
        subject: who was scanned; two scans of one name are repeats.
        frames: of a cine that stand for it; ``None`` for a 3-D file.
    """

    image: tuple[str, ...]
    subject: str
    frames: tuple[int | None, ...] = (None,)

    @property
    def name(self) -> str:
        """The file as one writes it."""
        return ";".join(self.image)


@dataclass
class Suitability:
    """How well a model suits scans.

    Attributes:
        predicted_dice: by subject.
        log_likelihood: by subject.
        agreement: of repeats, by subject.
        phantom_dice: true Dice on drawn subjects; ``None`` if it was not asked for.
        left_out: scans that cannot be read, with the reason.
    """

    predicted_dice: dict[str, float] = field(default_factory=dict)
    log_likelihood: dict[str, float] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)
    phantom_dice: float | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def means(self) -> dict[str, float | None]:
        """Return the mean of each measure; ``None`` where there is none."""
        found = {name: getattr(self, name) for name in ("predicted_dice", "log_likelihood", "agreement")}
        means = {name: float(np.mean(list(values.values()))) if values else None for name, values in found.items()}
        return {**means, "phantom_dice": self.phantom_dice}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "means": self.means()}


def find_own_scans(scans: Sequence[StrPath], frames: int = 4) -> list[OwnScan]:
    """Return the scans that files, folders, glob patterns, tables and datalists name.

    Of a cine, ``frames`` frames spread over the cycle stand for all. Files ``NAME_run1``, ``NAME_run-2``, ``NAME_rep1``
    and the like are repeats of one subject, and so is one file ``NAME`` beside them; a table says so by its column
    ``subject``. A file whose header cannot be read is listed all the same: :func:`suitability` says what is wrong.

    Args:
        scans: what to look up.
        frames: of each cine.

    Raises:
        VmfError: VMF295 no image; VMF280 to VMF289 about tables.
    """
    found: dict[tuple[str, ...], str] = {}
    for given in scans:
        place = Path(given).expanduser()
        if place.suffix.lower() in (".json", ".csv", ".tsv") or (place / "datalist.json").is_file():
            names = {value: str(value) for value in range(1, 256)}  # of classes, which do not matter here
            datalist = open_datalist(place, labels=names, checksums=False)[0]
            rows = {tuple(str(datalist.path(name)) for name in row.images): row.subject for row in datalist.rows}
        else:
            rows = {(os.path.abspath(path),): "" for path, _ in find_images(given)}
        found |= {image: subject for image, subject in rows.items() if image not in found}
    found |= _subjects([image[0] for image, subject in found.items() if not subject])
    return [OwnScan(image, subject, _frames(image[0], frames)) for image, subject in found.items()]


def own_datalist(scans: Iterable[OwnScan], labels: Mapping[int, str]) -> Datalist:
    """Return unlabelled rows of the scans, as :func:`vmfseg.data.prepare_experiment` takes them."""
    kept = list(scans)
    root = Path(os.path.commonpath([os.path.dirname(path) for scan in kept for path in scan.image]))
    rows = []
    for scan in kept:
        names = [Path(path).relative_to(root).as_posix() for path in scan.image]
        image = names[0] if len(names) == 1 else names
        rows += [Row(image=image, domain="own", subject=scan.subject, frame=frame) for frame in scan.frames]
    return Datalist("own", root, dict(labels), tuple(rows))


def suitability(
    predictor: Predictor,
    scans: Sequence[OwnScan],
    phantom: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Suitability:
    """Measure a model on scans without labels, and on drawn subjects with labels.

    Args:
        predictor: the model.
        scans: of the user; those that cannot be read are named and left out.
        phantom: rows of drawn subjects.
        progress: called as ``progress(done, scans)``.
    """
    found = Suitability()
    measured: dict[str, list[tuple[float | None, float | None]]] = defaultdict(list)
    maps: dict[str, list[tuple[Any, npt.NDArray[np.uint8]]]] = defaultdict(list)
    repeated = {scan.subject for scan in scans if sum(other.subject == scan.subject for other in scans) > 1}
    for number, scan in enumerate(scans, start=1):
        try:
            values, labels = _measure(predictor, scan)
        except VmfError as error:
            found.left_out[scan.name] = f"{error.code}: {error.rule}" + (f" ({error.found})" if error.found else "")
        else:
            measured[scan.subject] += values
            if scan.subject in repeated:
                maps[scan.subject].append(labels)
        finally:
            clear_cache()
        if progress is not None:
            progress(number, len(scans))
    for subject, pairs in measured.items():
        for values_of, position in ((found.predicted_dice, 0), (found.log_likelihood, 1)):
            numbers = [value for value in (pair[position] for pair in pairs) if value is not None]
            if numbers:
                values_of[subject] = float(np.mean(numbers))
    for subject, several in maps.items():
        dice = [_agreement(a[1], b[1]) for a, b in combinations(several, 2) if _same_grid(a, b)]
        if dice:
            found.agreement[subject] = float(np.mean(dice))
    cases = quality_cases(predictor, list(phantom), corruptions=False)
    found.phantom_dice = float(np.mean([case.dice for case in cases])) if cases else None
    return found


def verdict(before: Suitability, after: Suitability) -> tuple[bool, list[str]]:
    """Say whether a model suits the scans better than another, and why.

    Args:
        before: of the model there is.
        after: of the other one.

    Returns:
        Whether it does, and a sentence for each measure.

    Example:
        >>> old = Suitability({"a": 0.7, "b": 0.8}, {"a": -2.0, "b": -1.0})
        >>> new = Suitability({"a": 0.8, "b": 0.8}, {"a": -1.5, "b": -0.9})
        >>> verdict(old, new)
        (True, ['predicted Dice rose by 0.0500', 'log-likelihood rose by 0.3000'])
    """
    lines, good = [], True
    change, _ = _paired(before.predicted_dice, after.predicted_dice)
    lines.append(_sentence("predicted Dice", change))
    good &= change > 0
    if after.log_likelihood:
        change, error = _paired(before.log_likelihood, after.log_likelihood)
        lines.append(_sentence("log-likelihood", change))
        good &= change >= -error
    if after.agreement:
        change, _ = _paired(before.agreement, after.agreement)
        lines.append(_sentence("agreement of repeats", change))
        good &= change >= -_AGREEMENT
    if before.phantom_dice is not None and after.phantom_dice is not None:
        change = after.phantom_dice - before.phantom_dice
        lines.append(_sentence("Dice on the phantom", change))
        good &= change >= -_FORGETTING
    return bool(good), lines


def _subjects(paths: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Name the subject of each file: that of its repeats, or the path, which nothing else has."""
    stems = {path: image_stem(path) for path in paths}
    groups: dict[str, list[str]] = defaultdict(list)
    for path, stem in stems.items():
        groups[_REPEAT.sub("", stem)].append(path)
    named: dict[tuple[str, ...], str] = {}
    for stem, members in groups.items():
        plain = [path for path in members if stems[path] == stem]
        repeats = len(members) > 1 and len({stems[path] for path in members}) == len(members) and len(plain) <= 1
        alone = len(members) == 1
        named |= {(path,): stem if repeats or alone else path for path in members}
    return named


def _measure(
    predictor: Predictor, scan: OwnScan
) -> tuple[list[tuple[float | None, float | None]], tuple[Any, npt.NDArray[np.uint8]]]:
    opened = Scan.open(scan.image if len(scan.image) > 1 else scan.image[0])
    values, labels = [], []
    for frame in scan.frames:
        image = opened.frame(frame or 0)
        found = predictor.predict_frame(image)
        judged = None if predictor.quality is None else predictor.quality.judged(found)
        dice = None if judged is None or predictor.quality is None else predictor.quality.predict(judged)
        values.append((dice, found.signals.get("log_likelihood")))
        labels.append(found.labels)
    return values, (np.asarray(image.affine), np.stack(labels))


def _frames(path: str, count: int) -> tuple[int | None, ...]:
    try:
        header = read_header(path)
    except VmfError:
        return (None,)
    if len(header.shape) < 4:
        return (None,)
    return tuple(sorted({round(k * header.num_frames / count) for k in range(count)} & set(range(header.num_frames))))


def _same_grid(one: tuple[Any, npt.NDArray[np.uint8]], other: tuple[Any, npt.NDArray[np.uint8]]) -> bool:
    return one[1].shape == other[1].shape and bool(np.allclose(one[0], other[0], atol=0.5))


def _agreement(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Return the Dice of two label maps, mean over the classes that either has; 0 if neither has any."""
    dice = []
    for value in sorted((set(np.unique(one).tolist()) | set(np.unique(other).tolist())) - {0}):
        a, b = one == value, other == value
        dice.append(2 * float((a & b).sum()) / float(a.sum() + b.sum()))
    return float(np.mean(dice)) if dice else 0.0


def _paired(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """Return mean and standard error of the differences over the subjects that both have."""
    differences = [after[subject] - before[subject] for subject in after if subject in before]
    if not differences:
        return 0.0, 0.0
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences))) if len(differences) > 1 else 0.0
    return float(np.mean(differences)), error


def _sentence(name: str, change: float) -> str:
    return f"{name} {'rose' if change > 0 else 'fell'} by {abs(change):.4f}" if change else f"{name} did not change"
