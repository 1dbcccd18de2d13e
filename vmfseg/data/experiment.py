# SPDX-License-Identifier: Apache-2.0
"""Data of a run: read a data set (or make the phantom) and split it into four parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.datalist import Datalist, add_checksums
from vmfseg.data.folder import FolderDataset
from vmfseg.data.mnms import MNMsDataset
from vmfseg.data.row_schema import Row
from vmfseg.data.scgm import SCGMDataset
from vmfseg.data.splits import Split, leave_one_domain_out, weakly_labeled
from vmfseg.phantom import make_phantom
from vmfseg.utils import VmfError, check_choice, sha256_bytes

__all__ = ["Experiment", "cache_folder", "prepare_experiment"]

DATASETS = ("mnms", "scgm", "folder")


@dataclass(frozen=True)
class Experiment:
    """Data of a run: what is learnt from, what chooses the model, what it is judged by.

    Attributes:
        datalist: all rows.
        split: labelled, unlabelled, source-validation and target rows, disjoint by subject.
        is_phantom: whether the data was made, not measured.
    """

    datalist: Datalist
    split: Split
    is_phantom: bool = False

    @property
    def labeled(self) -> list[dict[str, Any]]:
        """Rows with masks to learn from, as MONAI's transforms take them."""
        return self._dicts(self.split.labeled)

    @property
    def unlabeled(self) -> list[dict[str, Any]]:
        """Rows whose masks are not used (the labelled images themselves where there is nothing else)."""
        return self._dicts(self.split.unlabeled) or [_without(row) for row in self.labeled]

    @property
    def images(self) -> list[dict[str, Any]]:
        """All source images for training, without masks: for pre-training and for the kernels."""
        rows = [_without(row) for row in self.labeled]
        seen = {(str(row["image"]), row.get("frame")) for row in rows}
        return rows + [row for row in self.unlabeled if (str(row["image"]), row.get("frame")) not in seen]

    @property
    def weak(self) -> list[dict[str, Any]]:
        """Rows of which only presence labels are used."""
        return self._dicts(tuple(weakly_labeled(self.datalist, self.split)))

    @property
    def validation(self) -> list[dict[str, Any]]:
        """Rows of other source subjects, which choose the model."""
        return self._dicts(self.split.validation) or self.labeled

    @property
    def target(self) -> list[dict[str, Any]]:
        """Rows of the unseen domain, which choose nothing."""
        return self._dicts(self.split.target)

    @property
    def labels(self) -> dict[int, str]:
        """Class names by value."""
        return {int(k): v for k, v in self.datalist.labels.items()}

    @property
    def num_classes(self) -> int:
        """How many classes, background included."""
        return max(self.labels) + 1

    @property
    def fingerprint(self) -> dict[str, str]:
        """What of the data decides a result: the split and the checksums of all files."""
        sums = sorted(
            f"{row.image_sha256}{row.label_sha256}{row.frame}{self.datalist.slices_of(row) or ''}"
            for row in self.datalist.rows
        )
        return {"split": self.split.hash, "data": sha256_bytes("\n".join(sums).encode())}

    def describe(self) -> str:
        """Return one line with the number of subjects of each part."""
        counts = {part: len(self.split.subjects(part)) for part in ("labeled", "unlabeled", "validation", "target")}
        source = sorted({row.domain for row in self.split.labeled})
        target = sorted({row.domain for row in self.split.target})
        return (
            f"data: source domains {', '.join(source)} ({counts['labeled']} labelled, "
            f"{counts['unlabeled']} unlabelled, {counts['validation']} validation subjects), "
            + (f"unseen domain {', '.join(target)} ({counts['target']} subjects)" if target else "no unseen domain")
        )

    def remarks(self) -> list[str]:
        """Return a line for each part that is empty, saying what stands in for it."""
        lines = []
        if not self.split.unlabeled:
            lines.append("data: no unlabelled subject is left; the labelled images, without masks, stand in for them")
        if not self.split.validation:
            lines.append("data: no validation subject is left; the labelled images choose the model")
        return lines

    def _dicts(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        dicts = self.datalist.to_dicts(rows)
        return [{key: value for key, value in row.items() if value is not None} for row in dicts]


def prepare_experiment(
    dataset: str = "mnms",
    dataset_dir: str | os.PathLike[str] | None = None,
    target_domain: str = "D",
    labeled_fraction: float = 0.5,
    protocol: str = "clean",
    validation_fraction: float | None = None,
    all_frames: bool = False,
    seed: int = 0,
    phantom: Mapping[str, Any] | None = None,
    given: Sequence[Sequence[Mapping[str, Any]] | None] | None = None,
    labels: Mapping[Any, str] | Sequence[str] | None = None,
    quiet: bool = False,
) -> Experiment:
    """Read a data set (or make the phantom where no folder is given) and split it, one domain left out.

    Args:
        dataset: ``"mnms"``, ``"scgm"`` or ``"folder"`` (a table of a user's own scans).
        dataset_dir: the official download or the user's folder; empty makes the phantom in the cache folder.
        target_domain: the domain that is never seen in training.
        labeled_fraction: of the subjects of every group.
        protocol: ``"clean"``, or ``"paper"`` for the label counts and the unlabelled pool of the reference code.
        validation_fraction: see :func:`leave_one_domain_out`.
        all_frames: put all frames of a cine into the unlabelled pool.
        seed: of the split and the phantom.
        phantom: arguments of :func:`make_phantom`.
        given: labelled rows and validation rows that another program hands over, ``{"image": ..., "label": ...}``. If
            one of the two lists holds rows, they are used *instead* of any data set, and there is no unseen domain.
        labels: class names by number; required for ``given``, otherwise compared with those of the data set.
        quiet: say nothing.

    Raises:
        VmfError: see the data sets and :func:`leave_one_domain_out`; VMF280 classes that do not agree with ``labels``,
            VMF280 to VMF292 for rows that are given.
    """
    check_choice("dataset", dataset, DATASETS)
    check_choice("protocol", protocol, ("clean", "paper"))
    if isinstance(labels, Sequence):
        labels = dict(enumerate(labels))
    names = None if not labels else {int(number): str(name) for number, name in labels.items()}
    if given is not None and any(given):
        rows = _given_datalist(given[0] or (), given[1] or (), names)
        return _tell(Experiment(rows, Split.from_datalist(rows)), quiet)
    is_phantom = not dataset_dir
    if is_phantom:
        if dataset == "folder":
            raise VmfError(
                "VMF297",
                subject="dataset_dir",
                rule="a folder of your own scans is needed",
                fix="pass --dataset_dir with the folder that holds datalist.csv",
            )
        root = _phantom(dataset, dict(phantom or {}), seed, quiet)
    else:
        root = Path(str(dataset_dir)).expanduser()
    if dataset == "mnms":
        datalist = MNMsDataset(root, all_frames=all_frames).datalist()
    elif dataset == "scgm":
        datalist = SCGMDataset(root).datalist()
    else:
        datalist = FolderDataset(root).datalist()
    if names is not None and len(names) != datalist.num_classes:
        raise VmfError(
            "VMF280",
            subject=f"labels, {datalist.name}",
            rule="labels must have as many classes as the data set",
            found=f"labels {', '.join(names.values())}; data set {', '.join(datalist.labels.values())}",
            fix="set labels (and num_classes) to those of the data",
        )
    split = leave_one_domain_out(
        datalist,
        target_domain,
        labeled_fraction=labeled_fraction,
        validation_fraction=validation_fraction,
        protocol="reference" if protocol == "paper" else "clean",
        seed=seed,
    )
    return _tell(Experiment(datalist, split, is_phantom), quiet)


def cache_folder() -> Path:
    """Return the folder for what can be made again: ``VMFSEG_CACHE``, or ``vmfseg`` in the user's cache folder."""
    override = os.environ.get("VMFSEG_CACHE")
    if override:
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vmfseg"


def _tell(experiment: Experiment, quiet: bool) -> Experiment:
    if not quiet:
        sys.stdout.write("\n".join([experiment.describe(), *experiment.remarks()]) + "\n")
        sys.stdout.flush()
    return experiment


def _phantom(dataset: str, arguments: dict[str, Any], seed: int, quiet: bool) -> Path:
    arguments = {"seed": seed, **arguments}
    key = "-".join(f"{name}{value}" for name, value in sorted(arguments.items()))
    folder = cache_folder() / f"phantom-{dataset}-{key}"
    if not quiet:
        sys.stdout.write(
            f"no --dataset_dir given: using the built-in {dataset} phantom, {folder} (--dataset_dir takes your data)\n"
        )
        sys.stdout.flush()
    return make_phantom(folder, dataset=dataset, **arguments)


def _without(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("label", "label_map", "annotated", "slices")}


def _given_datalist(
    labeled: Sequence[Mapping[str, Any]],
    validation: Sequence[Mapping[str, Any]],
    labels: Mapping[int, str] | None,
) -> Datalist:
    """Return a datalist of rows that another program hands over, marked ``labeled`` and ``validation``.

    Nothing is known of whose scans they are, so every image counts as a subject of its own, in one domain. An image
    that is in both lists stays with ``labeled``.
    """
    parts = {"labeled": labeled, "validation": validation}
    for part, rows in parts.items():
        for index, row in enumerate(rows):
            if not all(_files(row, key) for key in ("image", "label")):
                raise VmfError(
                    "VMF280",
                    subject=f"{part} data, row {index}",
                    rule="image and label must be paths",
                    found=", ".join(f"{key} {type(row.get(key)).__name__}" for key in ("image", "label")),
                    fix="hand over a list of dictionaries with the paths of an image and its label",
                )
    if not labeled or not labels:
        raise VmfError(
            "VMF292",
            subject="labeled data",
            rule=f"training on rows that are handed over needs {'labels' if labeled else 'rows with labels'}",
            found="no class names" if labeled else "an empty list",
            fix="pass labels, class names by number" if labeled else "label an image first",
        )
    files = [path for rows in parts.values() for row in rows for key in ("image", "label") for path in _files(row, key)]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in files]))
    found: dict[tuple[str, ...], Row] = {}
    for part, rows in parts.items():
        for row in rows:
            images, masks = (
                tuple(os.path.relpath(path, root) for path in _files(row, key)) for key in ("image", "label")
            )
            extra = {key: row[key] for key in ("annotated", "slices", "frame") if row.get(key) is not None}
            one = images[0] if len(images) == 1 else images
            mask = masks[0] if len(masks) == 1 else masks
            found.setdefault(images, Row(one, "given", subject=images[0], label=mask, split=part, **extra))
    datalist = Datalist("given", root, dict(labels), tuple(found.values()))
    datalist.check_files()
    return add_checksums(datalist)


def _files(row: Mapping[str, Any], key: str) -> list[str]:
    """Return the absolute paths of an entry of a row; nothing if it is neither a path nor a list of paths."""
    value = row.get(key)
    names = [value] if isinstance(value, str | os.PathLike) else value
    good = isinstance(names, list | tuple) and all(isinstance(name, str | os.PathLike) for name in names)
    return [os.path.abspath(name) for name in names or ()] if good else []
