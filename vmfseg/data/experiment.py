# SPDX-License-Identifier: Apache-2.0
"""Data of a run: read a data set (or make the phantom) and split it into four parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.data.datalist import Datalist, add_checksums
from vmfseg.data.discover import open_datalist
from vmfseg.data.experiment_parts import Experiment, PhantomExperiment, own_parts
from vmfseg.data.folder import FolderDataset
from vmfseg.data.mnms import MNMsDataset
from vmfseg.data.row_schema import Row
from vmfseg.data.scgm import SCGMDataset
from vmfseg.data.splits import Split, check_target, leave_one_domain_out
from vmfseg.phantom import make_phantom
from vmfseg.utils import VmfError, check_choice

__all__ = ["Experiment", "cache_folder", "phantom_folder", "prepare_experiment", "read_dataset"]

DATASETS = ("mnms", "scgm", "hearts", "cords", "folder")


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
    unread_domain: str = "",
    shared_subjects: bool = False,
) -> Experiment:
    """Read a data set (or make the phantom where no folder is given) and split it, one domain left out.

    Args:
        dataset: ``"mnms"``, ``"scgm"``, ``"folder"`` (a table of a user's own scans), or ``"hearts"`` and ``"cords"``:
            drawn phantom subjects for validation and calibration, beside a :class:`~vmfseg.data.PhantomLoader`, and
            whatever scans ``dataset_dir`` has, see :class:`~vmfseg.data.experiment_parts.PhantomExperiment`.
        dataset_dir: the official download, the user's folder or the user's ``datalist.json``; empty makes the phantom
            in the cache folder. For ``"hearts"`` and ``"cords"`` anything that
            :func:`~vmfseg.data.discover.open_datalist` opens.
        target_domain: the domain that is never seen in training; empty for none, with ``"hearts"`` and ``"cords"``.
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
        unread_domain: a domain whose scans are neither learnt from nor scored: the one for which a recipe is being
            chosen by leaving out each of the others in turn.
        shared_subjects: put unlabelled scans and frames of labelled subjects into the unlabelled pool.

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
    if dataset in ("hearts", "cords"):
        arguments = {"seed": seed, **(phantom or {})}
        return _tell(_taught_by_phantom(dataset, dataset_dir, target_domain, arguments, names, quiet), quiet)
    if is_phantom:
        if dataset == "folder":
            raise VmfError(
                "VMF297",
                subject="dataset_dir",
                rule="a folder of your own scans is needed",
                fix="pass --dataset_dir with the folder that holds datalist.csv",
            )
        root = phantom_folder(dataset, {"seed": seed, **(phantom or {})}, quiet)
    else:
        root = Path(str(dataset_dir)).expanduser()
    datalist = read_dataset(dataset, root, all_frames, names)
    _check_names(datalist, names)
    if unread_domain:
        check_target(datalist, unread_domain)
        datalist = datalist.with_rows(row for row in datalist.rows if row.domain != unread_domain)
    split = leave_one_domain_out(
        datalist,
        target_domain,
        labeled_fraction=labeled_fraction,
        validation_fraction=validation_fraction,
        protocol="reference" if protocol == "paper" else "clean",
        shared_subjects=shared_subjects,
        seed=seed,
    )
    return _tell(Experiment(datalist, split, is_phantom), quiet)


def read_dataset(
    dataset: str, root: Path, all_frames: bool = False, labels: Mapping[int, str] | None = None
) -> Datalist:
    """Read a data set of a known kind, with checksums.

    Args:
        dataset: ``"mnms"``, ``"scgm"`` or ``"folder"``.
        root: its folder; for ``"folder"`` also a ``datalist.json`` or a table, wherever the scans lie.
        all_frames: see :func:`prepare_experiment`.
        labels: class names of a folder that does not say them.
    """
    if dataset == "mnms":
        return MNMsDataset(root, all_frames=all_frames).datalist()
    if dataset == "scgm":
        return SCGMDataset(root).datalist()
    return open_datalist(root)[0] if root.is_file() else FolderDataset(root, default_labels=labels).datalist()


def _taught_by_phantom(
    dataset: str,
    dataset_dir: str | os.PathLike[str] | None,
    target_domain: str,
    phantom: Mapping[str, Any],
    names: Mapping[int, str] | None,
    quiet: bool,
) -> PhantomExperiment:
    """Return drawn subjects, and the scans of a user beside them if there are any."""
    own = _own_scans(dataset_dir, names) if dataset_dir else None
    if own is not None:
        _check_names(own, names)
    parts = {} if own is None else own_parts(own, target_domain)
    drawn = FolderDataset(phantom_folder(dataset, phantom, quiet or own is not None)).datalist()
    return PhantomExperiment(drawn, Split.from_datalist(drawn), own is None, own, parts)


def _own_scans(place: str | os.PathLike[str], names: Mapping[int, str] | None) -> Datalist:
    """Open the scans of a user; classes that a table does not name are those of the bundle."""
    try:
        return open_datalist(place)[0]
    except VmfError as error:
        if error.code != "VMF285" or names is None:
            raise
        return open_datalist(place, labels=names)[0]


def _check_names(datalist: Datalist, names: Mapping[int, str] | None) -> None:
    if names is not None and len(names) != datalist.num_classes:
        raise VmfError(
            "VMF280",
            subject=f"labels, {datalist.name}",
            rule="labels must have as many classes as the data set",
            found=f"labels {', '.join(names.values())}; data set {', '.join(datalist.labels.values())}",
            fix="set labels (and num_classes) to those of the data",
        )


def phantom_folder(dataset: str, arguments: Mapping[str, Any], quiet: bool = True) -> Path:
    """Make a phantom in the cache folder, unless it is there, and return its folder.

    Args:
        dataset: ``"mnms"``, ``"scgm"``, ``"hearts"`` or ``"cords"``.
        arguments: of :func:`make_phantom`, the seed among them.
        quiet: say nothing.
    """
    key = "-".join(f"{name}{value}" for name, value in sorted(arguments.items()))
    folder = cache_folder() / f"phantom-{dataset}-{key}"
    if not quiet:
        sys.stdout.write(
            f"no --dataset_dir given: using the built-in {dataset} phantom, {folder} (--dataset_dir takes your data)\n"
        )
        sys.stdout.flush()
    return make_phantom(folder, dataset=dataset, **arguments)


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
