# SPDX-License-Identifier: Apache-2.0
"""From a folder, or from nothing, to the four parts of an experiment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.datalist import Datalist
from vmfseg.data.folder import FolderDataset
from vmfseg.data.given import given_datalist
from vmfseg.data.mnms import MNMsDataset
from vmfseg.data.rows import Row
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
        seen = {(row["image"], row.get("frame")) for row in rows}
        return rows + [row for row in self.unlabeled if (row["image"], row.get("frame")) not in seen]

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
        sums = sorted(f"{row.image_sha256}{row.label_sha256}{row.frame}" for row in self.datalist.rows)
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
    given: Mapping[str, Any] | None = None,
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
        given: arguments of :func:`~vmfseg.data.given.given_datalist`, rows to use *instead* of any data set; then there
            is no unseen domain.
        quiet: say nothing.

    Raises:
        VmfError: see the data sets and :func:`leave_one_domain_out`.
    """
    check_choice("dataset", dataset, DATASETS)
    check_choice("protocol", protocol, ("clean", "paper"))
    if given is not None:
        rows = given_datalist(**given)
        return _tell(Experiment(rows, Split.from_datalist(rows)), quiet)
    is_phantom = not dataset_dir
    if is_phantom:
        if dataset == "folder":
            raise VmfError(
                "VMF283",
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
    return {key: value for key, value in row.items() if key not in ("label", "annotated")}
