# SPDX-License-Identifier: Apache-2.0
r"""nnU-Net: the real package (``nnunetv2``), trained on the rows of a split.

Isensee, Jaeger, Kohl, Petersen, Maier-Hein. nnU-Net: a self-configuring method for deep learning-based biomedical image
segmentation. Nature Methods 2021.

Nothing of the method is written here. Labelled rows become a raw data set of nnU-Net in a scratch folder (linked where
the files fit, written once where not, for instance a frame of a cine); the package plans, preprocesses and trains its
2-D configuration on all of them (``fold="all"``, last checkpoint, so nothing is chosen by anything) with its own
trainer, its schedule spread over a given number of iterations; and it predicts label maps on the grid of the images.

It runs in a process of its own, by :mod:`vmfseg.methods.nnunet_worker`: it takes its folders from environment variables
and starts workers that import the main program. The package may even be installed in another environment (``python``).
It is not deterministic: equal seeds give similar, not equal, networks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch

from vmfseg.data import LoadVolumed
from vmfseg.handlers.checkpoint import load_tensors
from vmfseg.transforms.annotation import annotated_slices
from vmfseg.transforms.spatial import ToSliceStackd, slice_axis, slice_stack_axcodes
from vmfseg.utils import VmfError, atomic_path, derive_seed, read_json, write_json

__all__ = ["NNUNet"]

_NAME = "Dataset001_vmfseg"
_ENDING = ".nii.gz"


class NNUNet:
    """Train nnU-Net on labelled rows and segment other rows with it.

    Args:
        folder: scratch folder for raw data, preprocessed data and the model; made if it is not there.
        labels: class names by number, background first.
        iterations: optimizer steps in all; nnU-Net's own budget is 250 000.
        device: ``"cpu"`` or ``"cuda"``.
        seed: of the training; see the module about what it can promise.
        memory_gb: what the planner may plan for; less gives smaller patches and batches. ``None`` keeps nnU-Net's own.
        processes: for preprocessing and augmentation; 0 augments in the training process.
        max_epochs: how many epochs the iterations are divided into; ``None`` for at most 250 iterations an epoch.
        batch_size: slices in a batch; ``None`` for as many as nnU-Net plans.
        mirror: average over mirrored images in prediction, as nnU-Net does.
        python: interpreter of the environment with nnunetv2; ``None`` for the one that the environment variable
            ``VMFSEG_NNUNET_PYTHON`` names, or this one.

    Raises:
        VmfError: VMF530 if nnunetv2 is not installed (at the first use), VMF550 if it ends with an error.

    Example:
        >>> NNUNet("scratch", {0: "background", 1: "LV"}, iterations=600).epochs
        (3, 200)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        labels: Mapping[int, str],
        iterations: int = 250_000,
        device: str = "cpu",
        seed: int = 0,
        memory_gb: float | None = None,
        processes: int = 0,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        mirror: bool = True,
        python: str | None = None,
    ) -> None:
        if iterations < 1 or processes < 0 or (batch_size is not None and batch_size < 1):
            found = f"{iterations}, {batch_size} and {processes}"
            raise ValueError(f"iterations and batch_size must be at least 1, processes at least 0, got {found}.")
        if sorted(labels) != list(range(len(labels))) or len(labels) < 2:
            raise ValueError(f"labels must be named from 0 on, background first, got {dict(labels)}.")
        self.folder, self.labels, self.iterations = Path(folder), {n: labels[n] for n in sorted(labels)}, iterations
        self.device, self.seed, self.memory_gb, self.processes = device, seed, memory_gb, processes
        self.max_epochs, self.batch_size, self.mirror = max_epochs, batch_size, mirror
        self.python = python or os.environ.get("VMFSEG_NNUNET_PYTHON") or sys.executable

    @property
    def epochs(self) -> tuple[int, int]:
        """Number of epochs, and iterations of each, at most 250 by default: together the budget or just above."""
        epochs = self.max_epochs or -(-self.iterations // 250)
        return epochs, -(-self.iterations // epochs)

    @property
    def model(self) -> Path:
        """The folder of the trained model: plans, data set description and checkpoint."""
        return self.folder / "results" / _NAME / "nnUNetTrainer__nnUNetPlans__2d"

    def train(self, rows: Sequence[Mapping[str, Any]], target_domain: str = "") -> Path:
        """Train on all ``rows`` and return the folder of the model.

        A training that was stopped goes on; one that is complete, on the same files with the same settings, is kept.

        Args:
            rows: labelled rows.
            target_domain: rows of this domain are refused.
        """
        cases = self._cases(rows)
        for row in rows:
            if target_domain and row.get("domain") == target_domain:
                raise ValueError(f"rows must not be of the target domain {target_domain}, got {row.get('subject')}.")
            if row.get("label") is None:
                raise ValueError(f"rows must be labelled, got {row.get('subject')} without. Pass labelled rows only.")
        self.check_package()
        request = {
            "task": "train", "dataset": _NAME, "epochs": self.epochs, "device": self.device, "seed": self.seed,
            "memory_gb": self.memory_gb, "processes": self.processes, "batch_size": self.batch_size,
        }  # fmt: skip
        key = str(derive_seed(self.labels, request, [(case, _stamp(row)) for case, row in cases.items()]))
        note = self.folder / "training.json"
        if not note.is_file() or read_json(note)["key"] != key:
            self._prepare(cases)
            write_json(note, {"key": key, **request})
        if not (self.model / "fold_all" / "checkpoint_final.pth").is_file():
            self._run(request)
        return self.model

    def predict(self, rows: Sequence[Mapping[str, Any]], out: str | os.PathLike[str]) -> list[Path]:
        """Segment the images of ``rows`` and return the label maps, one NIfTI file each, on the grid of the image."""
        if not (self.model / "fold_all" / "checkpoint_final.pth").is_file():
            raise ValueError(f"model must be trained, got none in {self.model.name}. Call train first.")
        self.check_package()
        target, source = Path(out), self.folder / "images"
        target.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        cases = self._cases(rows)
        images = [self._write(case, {**row, "label": None}, source, None) for case, row in cases.items()]
        outputs = [target / case for case in cases]
        self._run(
            {
                "task": "predict", "model": str(self.model), "images": [[str(p) for p in paths] for paths in images],
                "outputs": [str(path) for path in outputs], "device": self.device, "mirror": self.mirror,
            }
        )  # fmt: skip
        shutil.rmtree(source)
        maps = [path.with_name(path.name + _ENDING) for path in outputs]
        for row, path in zip(cases.values(), maps, strict=True):
            _as_stored(path, row["image"])
        return maps

    def trained(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the plans and the weights of the trained network, for :func:`planned_model`."""
        place = self.folder / "network.pt"
        self._run({"task": "export", "model": str(self.model), "output": str(place)})
        return dict(read_json(self.model / "plans.json")), dict(load_tensors(place))

    def _prepare(self, cases: Mapping[str, Mapping[str, Any]]) -> None:
        for name in ("raw", "preprocessed", "results"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        raw = self.folder / "raw" / _NAME
        for name in ("imagesTr", "labelsTr"):
            (raw / name).mkdir(parents=True)
        channels = {len(self._write(case, row, raw / "imagesTr", raw / "labelsTr")) for case, row in cases.items()}
        if len(channels) != 1:
            raise ValueError(f"rows must have one number of channels, got {sorted(channels)}.")
        labels = {name: number for number, name in self.labels.items()}
        if any(row.get("slices") is not None or row.get("annotated") is not None for row in cases.values()):
            labels["ignore"] = len(self.labels)
        description = {
            "channel_names": {str(channel): "MR" for channel in range(channels.pop())}, "labels": labels,
            "numTraining": len(cases), "file_ending": _ENDING, "overwrite_image_reader_writer": "NibabelIO",
        }  # fmt: skip
        write_json(raw / "dataset.json", description)

    def _write(self, case: str, row: Mapping[str, Any], images: Path, labels: Path | None) -> list[Path]:
        """Put one case into nnU-Net's folders: links where the files fit, else new files."""
        image = row["image"]
        sources = [image] if isinstance(image, str | os.PathLike) else list(image)
        places = [images / f"{case}_{channel:04d}{_ENDING}" for channel in range(len(sources))]
        label = row.get("label")
        whole = label is None or (
            row.get("slices") is None and row.get("annotated") is None and row.get("label_map") is None
        )
        one = label is None or isinstance(label, str | os.PathLike)
        links = list(zip(sources, places, strict=True))
        if labels is not None and one:
            links.append((label, labels / f"{case}{_ENDING}"))
        if whole and one and row.get("frame") is None and all(_fits(path) for path, _ in links):
            for path, place in links:
                place.symlink_to(Path(path).resolve())
            return places
        loaded = LoadVolumed(num_classes=len(self.labels))({k: v for k, v in row.items() if v is not None})
        loaded = ToSliceStackd(["image", "label"], allow_missing_keys=True)(loaded)
        affine = np.asarray(loaded["image"].affine, dtype=np.float64)
        for channel, place in zip(loaded["image"].numpy(), places, strict=True):
            nib.save(nib.Nifti1Image(channel, affine), place)
        if labels is not None:
            classes = self._trusted(loaded["label"][0].numpy(), row, affine)
            nib.save(nib.Nifti1Image(classes.astype(np.uint8), affine), labels / f"{case}{_ENDING}")
        return places

    def _trusted(self, label: np.ndarray[Any, Any], row: Mapping[str, Any], affine: Any) -> np.ndarray[Any, Any]:
        """Return the label with nnU-Net's ignore label where a class, or the background, was not annotated."""
        if row.get("slices") is None and row.get("annotated") is None:
            return label
        axis = slice_axis(affine, label.shape)
        stack = np.moveaxis(label, axis, -1)
        known = annotated_slices(
            torch.zeros(1, 1, 1, stack.shape[-1]), len(self.labels), row.get("annotated"), row.get("slices")
        ).numpy()
        known[0] = known.all(axis=0)  # a voxel of class 0 may be a structure that nobody drew
        kept = known[stack, np.arange(stack.shape[-1])]
        return np.moveaxis(np.where(kept, stack, len(self.labels)), -1, axis)

    def _cases(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        cases: dict[str, Mapping[str, Any]] = {}
        for row in rows:
            frame = "" if row.get("frame") is None else f"_{int(row['frame']):03d}"
            case = re.sub(r"[^A-Za-z0-9-]+", "-", f"{row.get('domain', '')}-{row.get('subject', '')}") + frame
            if case in cases:
                raise ValueError(f"rows must differ in domain, subject and frame, got {case} twice.")
            cases[case] = row
        if not cases:
            raise ValueError("rows must not be empty, got none.")
        return cases

    def check_package(self) -> None:
        """Refuse to go on without the package.

        Raises:
            VmfError: VMF530 if nnunetv2 is not installed.
        """
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nnunetv2') is None)"
        if subprocess.run([self.python, "-c", code], check=False, capture_output=True).returncode:  # noqa: S603
            raise VmfError(
                "VMF530",
                subject="nnunetv2",
                rule="this needs a package that is not installed",
                found="No module named 'nnunetv2'",
                fix="pip install 'vmfseg[nnunet]'",
            )

    def _run(self, request: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        asked, log = self.folder / "request.json", self.folder / "nnunet.log"
        write_json(asked, dict(request))
        places = {f"nnUNet_{name}": str((self.folder / name).resolve()) for name in ("raw", "preprocessed", "results")}
        environment = {
            **os.environ, **places, "nnUNet_compile": "false", "nnUNet_def_n_proc": str(max(1, self.processes)),
            "nnUNet_n_proc_DA": str(max(1, self.processes)), "nnUNet_wandb_enabled": "0",
        }  # fmt: skip
        worker = Path(__file__).with_name("nnunet_worker.py")
        with open(log, "a", encoding="utf-8") as stream:
            done = subprocess.run(  # noqa: S603 - our own worker
                [self.python, str(worker), str(asked)], env=environment, stdout=stream, stderr=stream, check=False
            )
        if done.returncode:
            lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            raise VmfError(
                "VMF550",
                subject=str(log),
                rule=f"nnU-Net ended with an error ({request['task']})",
                found=lines[-1][:200] if lines else f"exit code {done.returncode}",
                fix="read the log",
            )


def _fits(path: Any) -> bool:
    """Tell whether nnU-Net can read a file as it is: compressed NIfTI of three dimensions, axes as in our slices."""
    if not str(path).endswith(_ENDING):
        return False
    image = nib.load(path)
    return len(image.shape) == 3 and "".join(nib.aff2axcodes(image.affine)) == slice_stack_axcodes(
        image.affine, image.shape
    )


def _as_stored(path: Path, image: Any) -> None:
    """Bring a label map to the order and direction in which the file of its image stores its axes."""
    labels, stored = nib.load(path), nib.load(image if isinstance(image, str | os.PathLike) else image[0])
    ways = [nib.orientations.io_orientation(found.affine) for found in (labels, stored)]
    change = nib.orientations.ornt_transform(*ways)
    if not np.array_equal(change, [[0, 1], [1, 1], [2, 1]]):
        turned = labels.as_reoriented(change)
        with atomic_path(path) as temporary:
            nib.save(nib.Nifti1Image(np.asarray(turned.dataobj), turned.affine), temporary)


def _stamp(row: Mapping[str, Any]) -> list[Any]:
    """Return what tells whether the files of a row are still the same."""
    files: list[Any] = []
    for key in ("image", "label"):
        value = row.get(key)
        for path in [value] if isinstance(value, str | os.PathLike) else value or []:
            state = os.stat(path)
            files.append((str(path), state.st_size, state.st_mtime_ns))
    return [files, *(str(row.get(key)) for key in ("frame", "slices", "annotated", "label_map"))]
