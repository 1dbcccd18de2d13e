# SPDX-License-Identifier: Apache-2.0
"""Predictor: segments volumes with a trained model, labels on the grid of the input."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from monai.transforms import AsDiscreted, Compose, Invertd
from torch.nn import functional as F

from vmfseg.data import LoadVolumed
from vmfseg.data.geometry import voxel_sizes
from vmfseg.model.artifact import Model
from vmfseg.model.backends import Backend, TorchBackend, open_backend
from vmfseg.model.deploy import Explained, even_size
from vmfseg.model.frames import PHASES, find_phases, parse_frames
from vmfseg.model.grid import SliceGrid, normalized
from vmfseg.model.inferer import SliceBatchInferer
from vmfseg.model.locate import Sight, look_around
from vmfseg.model.lost_orientation import Turn, choose_turn, is_orientation_lost
from vmfseg.model.plausibility import plausibility
from vmfseg.model.prediction import FramePrediction, Prediction
from vmfseg.model.quality import QualityModel, SignalCollector, native_noise
from vmfseg.model.scan import Scan
from vmfseg.model.scan_adaptation import adapt_to
from vmfseg.model.shift import ShiftReference
from vmfseg.model.verdict import judge
from vmfseg.model.weights import is_about, tensors_digest
from vmfseg.networks import VMFNet
from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError
from vmfseg.utils.checks import usable_device
from vmfseg.utils.io import StrPath

__all__ = ["Predictor"]


class Predictor:
    """Segment volumes with a trained model; the only forward path after training.

    The organ is searched in the whole field of view (:mod:`vmfseg.model.locate`), and the model's window laid on it.
    The window goes through the model's preprocessing, its slices through the network in batches, and the class scores
    come back to the volume's own grid before the most probable class is taken, a few slices at a time where the
    preprocessing keeps slices apart: memory beyond the volume itself is then bounded by ``batch_size``. A cine is
    segmented frame by frame. The labels do not depend on ``batch_size``, nor on the order and direction in which a file
    stores its axes.

    Args:
        model: definitions of transforms and labels.
        backend: what runs the network.
        quality: model of the predicted Dice, or ``None``.
        batch_size: slices at once.
        digest: checksum of the weights, see :func:`tensors_digest`.
        remarks: about the model; every prediction repeats them among its warnings.
        network: as it was trained, for tools that take a module.
        source: what source scans look like to the network, or ``None``; see :mod:`vmfseg.model.shift`.

    Example:
        A bundle without weights is refused with what to do about it::

            predictor = Predictor.from_bundle("bundles/vmfnet_mnms")
            labels = predictor(nibabel.load("cine.nii.gz"))      # a nibabel image with the header of the input
            prediction = predictor("cine.nii.gz", frames="ED,ES")
            prediction.quality["light"]                          # "green", "amber" or "red"
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        quality: QualityModel | None = None,
        batch_size: int = 8,
        digest: str = "",
        remarks: Sequence[str] = (),
        network: torch.nn.Module | None = None,
        source: ShiftReference | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.model, self.backend, self.quality, self.batch_size = model, backend, quality, batch_size
        self.digest, self.remarks, self.network, self.source = digest, tuple(remarks), network, source
        self.grid = SliceGrid(model.build_preprocessing(), model.build_postprocessing())

    @property
    def labels(self) -> dict[int, str]:
        """Class names by value."""
        return self.model.labels

    @property
    def temperature(self) -> float:
        """By which logits are divided for probabilities; 1 for a model that was not calibrated."""
        return 1.0 if self.quality is None else self.quality.temperature

    @property
    def has_kernels(self) -> bool:
        """Whether the network explains images by vMF kernels."""
        return isinstance(self.network, VMFNet)

    @property
    def inferer(self) -> SliceBatchInferer:
        """MONAI inferer that runs the network on the slices of a volume ``BCHWD``, for tools that take one."""
        return SliceBatchInferer(self.batch_size)

    @property
    def preprocessing(self) -> Compose:
        """The transforms from a row with paths to slices, for tools that take them."""
        return Compose([LoadVolumed("image"), *self.model.build_preprocessing().transforms])

    @property
    def postprocessing(self) -> Compose:
        """The transforms from logits of a volume to labels on its own grid, for tools that take them."""
        steps = list(self.model.build_postprocessing().transforms)
        end = next((i for i, step in enumerate(steps) if isinstance(step, AsDiscreted)), len(steps))
        undo = Invertd("pred", self.preprocessing, "image", nearest_interp=False, to_tensor=True)
        return Compose([*steps[:end], undo, *steps[end:]])

    @classmethod
    def from_bundle(
        cls,
        bundle: StrPath,
        device: torch.device | str | None = None,
        backend: str = "torch",
        *,
        checkpoint: StrPath | None = None,
        batch_size: int = 8,
        trust: bool = False,
    ) -> Predictor:
        """Load the model of a bundle. Nothing in the bundle is executed.

        Args:
            bundle: its folder, a name below ``bundles``, or a folder with weights and manifest.
            device: for torch; default the first GPU, else the CPU.
            backend: ``"torch"``, or ``"onnx"``, ``"openvino"``, ``"openvino-int8"`` after ``vmfseg export``.
            checkpoint: other weights than those below ``models``, a file or the folder that holds them.
            batch_size: slices at once.
            trust: build classes beyond the allow-list of :mod:`vmfseg.model.definitions`.

        Raises:
            ValueError: a device that is not there.
            VmfError: see :meth:`Model.load`, :meth:`Model.build_network`, :func:`open_backend`.
        """
        model = Model.load(bundle, checkpoint, trust=trust)
        network = model.build_network()
        place = _device(device, backend)
        digest = tensors_digest(network.state_dict())
        note = model.weights.with_name("quality.json")
        quality, remarks = None, []
        if note.is_file() and is_about(note, digest):
            quality = QualityModel.load(note)
        elif note.is_file():
            remarks = [f"VMF344: {note.name} is about other weights than {model.weights.name}: no predicted Dice"]
        runs = open_backend(backend, network, model.weights, place)
        note = model.weights.with_name("shift.json")
        source = ShiftReference.load(note) if note.is_file() and is_about(note, digest) else None
        return cls(model, runs, quality, batch_size, digest, remarks, network, source)

    @classmethod
    def from_network(
        cls, network: torch.nn.Module, model: Model, quality: QualityModel | None = None, batch_size: int = 8
    ) -> Predictor:
        """Take a network that is at hand, for instance at the end of its training."""
        bare = bare_network(network)
        runs = open_backend("torch", bare, model.weights, next(bare.parameters()).device)
        return cls(model, runs, quality, batch_size, tensors_digest(bare.state_dict()), network=bare)

    def __call__(self, image: Any, frames: str | Sequence[int | str] | None = None) -> Any:
        """Segment ``image`` and return what came: a nibabel image, a ``MetaTensor``, or for a path a prediction.

        Args:
            image: a path, a nibabel image or a ``MetaTensor``.
            frames: of a cine, see :func:`parse_frames`; all by default.

        Returns:
            Labels on the input's grid, uint8: a nibabel image with its header, a ``MetaTensor`` of its shape and
            metadata, or a :class:`Prediction`.
        """
        prediction = self.predict(image, frames)
        if isinstance(image, MetaTensor):
            labels = torch.from_numpy(prediction.labels.reshape(tuple(image.shape)))
            return MetaTensor(labels).copy_meta_from(image)
        return prediction if isinstance(image, str | os.PathLike) else prediction.image

    def predict(
        self,
        image: Any,
        frames: str | Sequence[int | str] | None = None,
        *,
        probabilities: bool = False,
        activations: bool = False,
        adapt: str = "none",
        **rules: Any,
    ) -> Prediction:
        """Segment a path, a nibabel image or a ``MetaTensor``.

        Args:
            image: what to segment.
            frames: of a cine, see :func:`parse_frames`. ``ED`` and ``ES`` are found by the model's own volume of the
                left ventricle over all frames.
            probabilities: keep the probability of every class.
            activations: keep the activation of every kernel.
            adapt: ``"bn"`` or ``"reconstruction"`` adapts a copy of the network to each frame, see
                :mod:`vmfseg.model.scan_adaptation`; the predicted Dice was calibrated without.
            rules: what the reader accepts, see :class:`vmfseg.data.volume.ReadRules`.

        Raises:
            VmfError: what the reader refuses; VMF170, VMF171 and VMF235 about frames.
        """
        scan = image if isinstance(image, Scan) else Scan.open(image, **rules)
        wanted = parse_frames(frames, scan.num_frames)
        if scan.num_frames == 1:
            wanted = None  # a single frame is whatever phase it is
        by_phase = wanted is not None and any(isinstance(frame, str) for frame in wanted)
        todo = range(scan.num_frames) if wanted is None or by_phase else [int(frame) for frame in wanted]
        # of frames that only serve to find the phases, nothing but the labels is kept
        keep = (probabilities, activations) if not by_phase else (False, False)
        found = {k: self.predict_frame(scan.frame(k), *keep, adapt) for k in todo}
        phases: dict[str, int] = {}
        if by_phase and wanted is not None:
            phases = self._phases(found)
            chosen = sorted({phases[frame] if isinstance(frame, str) else frame for frame in wanted})
            phases = {phase: phases[phase] for phase in PHASES if phase in wanted}
            again = probabilities or activations
            found = {
                k: self.predict_frame(scan.frame(k), probabilities, activations, adapt) if again else found[k]
                for k in chosen
            }
        elif wanted is None and scan.num_frames > 1 and self._cavity is not None:
            phases = self._phases(found)
        return Prediction(
            labels=self._joined(scan, {k: frame.labels for k, frame in found.items()}),
            scan=scan,
            frames=tuple(sorted(found)),
            quality={
                "format": "vmfseg-prediction-1",
                "input": Path(scan.header.path).name,
                "bundle": self.model.name,
                "bundle_version": self.model.version,
                "backend": self.backend.name,
                **({} if adapt == "none" else {"adapt": adapt}),
                "labels": {str(value): name for value, name in self.labels.items()},
                **judge(found, phases, self.quality, self.source),
                "warnings": [*self.remarks, *(str(finding) for finding in scan.header.findings)],
            },
            probabilities=self._joined(scan, {k: f.probabilities for k, f in found.items()}) if probabilities else None,
            activations=self._joined(scan, {k: f.activations for k, f in found.items()}) if activations else None,
        )

    def locate(self, image: MetaTensor, run: Callable[[torch.Tensor], Explained] | None = None) -> Sight:
        """Find the organ in one frame, ``(C, X, Y, Z)``: which window the model takes, see :mod:`.locate`.

        Args:
            image: the frame.
            run: the network as it is run on this frame; by default in the orientation that fits.
        """
        network = run or self._oriented(image)[1]
        knows_place = bool(self.model.network.get("position"))
        view = self.grid.field_of_view(image)
        return look_around(view, lambda batch: network(batch).logits, self.batch_size, search=not knows_place)

    def predict_frame(
        self, image: MetaTensor, probabilities: bool = False, activations: bool = False, adapt: str = "none"
    ) -> FramePrediction:
        """Segment one frame, ``(C, X, Y, Z)``, in any orientation.

        Raises:
            ValueError: if the channels are not the model's.
        """
        if image.shape[0] != self.model.channels:
            raise ValueError(
                f"image must have {self.model.channels} channels as the model was trained, got {image.shape[0]}. "
                "Give one file for each channel, in the order of the training."
            )
        turn, run = self._oriented(image)
        sight = self.locate(image, run)
        placed = self.grid.place(image, sight.shift)
        if adapt != "none":
            run = self._adapted(placed.slices, turn, adapt)
        collector = SignalCollector()
        explained: list[torch.Tensor] = []
        for batch in placed.slices.split(even_size(len(placed.slices), self.batch_size)):
            out = run(batch)
            collector.update(batch, out)
            placed.add(out.logits, keep=probabilities, temperature=self.temperature)
            if activations and out.activations is not None:
                explained.append(
                    F.interpolate(out.activations, size=batch.shape[-2:], mode="bilinear", align_corners=False)
                )
        labels, chances = placed.result(keep=probabilities)
        return FramePrediction(
            labels=placed.stored(labels[None])[0].numpy(),
            signals={
                **collector.signals(),
                **native_noise(placed.native.as_tensor()),
                **plausibility(placed.found.numpy(), self.labels),  # what was taken off tells of trouble too
            },
            kernel_shares=collector.activations(),
            volumes=self._volumes(labels, placed.native),
            sight=sight,
            turn=turn,
            probabilities=None if chances is None else _last(placed.stored(normalized(chances))),
            activations=_last(placed.stored(placed.maps(torch.cat(explained)))) if explained else None,
        )

    def _oriented(self, image: MetaTensor) -> tuple[Turn | None, Callable[[torch.Tensor], Explained]]:
        """Return how slices are turned for the network, and the backend behind that; nothing if the header knows."""
        if self.model.facts.get("orientation") != "any" or not is_orientation_lost(image.affine):
            return None, self.backend
        slices = self.grid.place(image).slices
        turn = choose_turn(slices, lambda batch: self.backend(batch).logits, self.batch_size)
        return turn, lambda batch: turn.undo_parts(self.backend(turn(batch)))

    def _adapted(self, slices: torch.Tensor, turn: Turn | None, how: str) -> Callable[[torch.Tensor], Explained]:
        """Return a copy of the network adapted to these slices, behind the same turn."""
        if not isinstance(self.backend, TorchBackend):
            raise ValueError(f"adapt must be none with backend {self.backend.name}, got {how}. Use backend torch.")
        adapted = adapt_to(slices if turn is None else turn(slices), self.network, how, self.backend.device)
        return adapted if turn is None else lambda batch: turn.undo_parts(adapted(turn(batch)))

    def _volumes(self, labels: torch.Tensor, native: MetaTensor) -> dict[str, float]:
        voxel_ml = float(np.prod(voxel_sizes(np.asarray(native.affine)))) / 1000
        counts = labels.flatten().bincount(minlength=len(self.labels))
        return {name: float(counts[value]) * voxel_ml for value, name in self.labels.items() if value}

    @property
    def _cavity(self) -> int | None:
        return next((value for value, name in self.labels.items() if name.upper() == "LV"), None)

    def _phases(self, found: dict[int, FramePrediction]) -> dict[str, int]:
        cavity = self._cavity
        if cavity is None:
            raise VmfError("VMF171", subject="frames", found=", ".join(self.labels.values()))
        return find_phases([int((found[k].labels == cavity).sum()) for k in sorted(found)])

    def _joined(self, scan: Scan, frames: dict[int, Any]) -> Any:
        first = next(iter(frames.values()))
        if len(scan.header.shape) < 4:
            return first.reshape(*scan.shape, *first.shape[3:])
        whole = np.zeros((*scan.header.shape, *first.shape[3:]), first.dtype)
        for number, frame in frames.items():
            whole[:, :, :, number] = frame
        return whole.reshape(*scan.shape, *first.shape[3:])


def _device(device: torch.device | str | None, backend: str) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() and backend == "torch" else "cpu")
    return usable_device(device)


def _last(maps: torch.Tensor) -> npt.NDArray[np.float32]:
    return maps.permute(1, 2, 3, 0).contiguous().numpy()
