# SPDX-License-Identifier: Apache-2.0
"""Any volume in, labels on the same grid out."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from monai.transforms import Compose
from torch.nn import functional as F

from vmfseg.data.geometry import voxel_sizes
from vmfseg.model.backends import Backend, open_backend
from vmfseg.model.deploy import even_size
from vmfseg.model.frames import PHASES, find_phases, parse_frames
from vmfseg.model.plausibility import plausibility
from vmfseg.model.prediction import FramePrediction, Prediction
from vmfseg.model.quality import QualityModel, SignalCollector, native_noise, worst_light
from vmfseg.model.scan import Scan
from vmfseg.model.spec import BundleSpec
from vmfseg.model.tensors import fill_network, is_about, read_tensors, tensors_digest
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["Predictor"]


class Predictor:
    """Segment volumes with the model of a bundle.

    A volume is brought to the bundle's slice space, its slices go through the network in batches, and the class
    probabilities come back to the volume's own grid before the most probable class is taken, a few slices at a time:
    memory beyond the volume itself is bounded by ``batch_size``. A cine is segmented frame by frame. The labels do not
    depend on ``batch_size``, nor on the order and direction in which a file stores its axes.

    Args:
        spec: what the bundle says.
        backend: what runs the network.
        quality: model of the predicted Dice, or ``None``.
        batch_size: slices at once.
        digest: checksum of the weights, see :func:`tensors_digest`.
        remarks: about the bundle; every prediction repeats them among its warnings.

    Example:
        A bundle without weights is refused with what to do about it::

            predictor = Predictor.from_bundle("bundles/vmfnet_mnms")
            labels = predictor(nibabel.load("cine.nii.gz"))      # a nibabel image with the header of the input
            prediction = predictor("cine.nii.gz", frames="ED,ES")
            prediction.quality["light"]                          # "green", "amber" or "red"
    """

    def __init__(
        self,
        spec: BundleSpec,
        backend: Backend,
        quality: QualityModel | None = None,
        batch_size: int = 8,
        digest: str = "",
        remarks: Sequence[str] = (),
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.spec, self.backend, self.quality, self.batch_size = spec, backend, quality, batch_size
        self.digest, self.remarks = digest, tuple(remarks)
        steps = spec.transforms().transforms
        self._stack, self._plane = steps[0], Compose(steps[1:])

    @classmethod
    def from_bundle(
        cls,
        bundle: StrPath,
        device: torch.device | str | None = None,
        backend: str = "torch",
        *,
        checkpoint: StrPath | None = None,
        batch_size: int = 8,
    ) -> Predictor:
        """Load the model of a bundle. Nothing in the bundle is executed.

        Args:
            bundle: its folder, or a name below ``bundles``.
            device: for torch; default the first GPU, else the CPU.
            backend: ``"torch"``, or ``"onnx"``, ``"openvino"``, ``"openvino-int8"`` after ``vmfseg export``.
            checkpoint: other weights than those below ``models``, a file or the folder that holds them.
            batch_size: slices at once.

        Raises:
            ValueError: a device that is not there.
            VmfError: see :class:`BundleSpec`, :func:`read_tensors`, :func:`fill_network`, :func:`open_backend`.
        """
        spec = BundleSpec.load(bundle, checkpoint)
        network = spec.build_network()
        fill_network(network, read_tensors(spec.weights), spec.weights)
        place = _device(device, backend)
        digest = tensors_digest(network.state_dict())
        note = spec.weights.with_name("quality.json")
        quality, remarks = None, []
        if note.is_file() and is_about(note, digest):
            quality = QualityModel.load(note)
        elif note.is_file():
            remarks = [f"VMF344: {note.name} is about other weights than {spec.weights.name}: no predicted Dice"]
        return cls(spec, open_backend(backend, network, spec.weights, place), quality, batch_size, digest, remarks)

    @classmethod
    def from_network(
        cls, network: Any, spec: BundleSpec, quality: QualityModel | None = None, batch_size: int = 8
    ) -> Predictor:
        """Take a network that is at hand, for instance at the end of its training."""
        device = next(network.parameters()).device
        return cls(spec, open_backend("torch", network, spec.weights, device), quality, batch_size)

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
        **rules: Any,
    ) -> Prediction:
        """Segment a path, a nibabel image or a ``MetaTensor``.

        Args:
            image: what to segment.
            frames: of a cine, see :func:`parse_frames`. ``ED`` and ``ES`` are found by the model's own volume of the
                left ventricle over all frames.
            probabilities: keep the probability of every class.
            activations: keep the activation of every kernel.
            rules: what the reader accepts, see :class:`vmfseg.data.ReadRules`.

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
        found = {k: self.predict_frame(scan.frame(k), *keep) for k in todo}
        phases: dict[str, int] = {}
        if by_phase and wanted is not None:
            phases = self._phases(found)
            chosen = sorted({phases[frame] if isinstance(frame, str) else frame for frame in wanted})
            phases = {phase: phases[phase] for phase in PHASES if phase in wanted}
            again = probabilities or activations
            found = {
                k: self.predict_frame(scan.frame(k), probabilities, activations) if again else found[k] for k in chosen
            }
        return Prediction(
            labels=self._joined(scan, {k: frame.labels for k, frame in found.items()}),
            scan=scan,
            frames=tuple(sorted(found)),
            quality=self._quality(scan, found, phases),
            probabilities=self._joined(scan, {k: f.probabilities for k, f in found.items()}) if probabilities else None,
            activations=self._joined(scan, {k: f.activations for k, f in found.items()}) if activations else None,
        )

    def predict_frame(
        self, image: MetaTensor, probabilities: bool = False, activations: bool = False
    ) -> FramePrediction:
        """Segment one frame, ``(1, X, Y, Z)``, in any orientation."""
        stacked = self._stack({"image": image})["image"]
        space = self._plane({"image": stacked})["image"]
        slices = space.as_tensor().permute(3, 0, 1, 2).contiguous()
        collector = SignalCollector()
        labels, chances, explained = [], [], []
        for batch in slices.split(even_size(len(slices), self.batch_size)):
            out = self.backend(batch)
            collector.update(batch, out)
            native = self._to_native(out.logits.contiguous().sigmoid(), space)
            labels.append(native.max(dim=0, keepdim=True).indices.to(torch.uint8))  # argmax takes ten times as long
            if probabilities:
                chances.append(_normalized(native))
            if activations:
                size = batch.shape[-2:]
                full = F.interpolate(out.activations, size=size, mode="bilinear", align_corners=False)
                explained.append(self._to_native(full, space))
        whole = torch.cat(labels, dim=3)
        measures = plausibility(whole[0].numpy(), self.spec.labels)
        return FramePrediction(
            labels=self._to_stored(whole, stacked)[0].numpy(),
            signals={**collector.signals(), **native_noise(stacked.as_tensor()), **measures},
            kernel_shares=collector.activations(),
            volumes=self._volumes(whole, stacked),
            probabilities=self._maps(chances, stacked),
            activations=self._maps(explained, stacked),
        )

    def _volumes(self, labels: torch.Tensor, stacked: MetaTensor) -> dict[str, float]:
        voxel_ml = float(np.prod(voxel_sizes(np.asarray(stacked.affine)))) / 1000
        counts = labels.flatten().bincount(minlength=len(self.spec.labels))
        return {name: float(counts[value]) * voxel_ml for value, name in self.spec.labels.items() if value}

    def _to_native(self, maps: torch.Tensor, space: MetaTensor) -> torch.Tensor:
        """Bring maps of some slices, ``BKHW``, to the spacing and size of the scan: ``(K, H', W', B)``."""
        volume = MetaTensor(
            maps.permute(1, 2, 3, 0).contiguous(),
            affine=space.affine,
            applied_operations=copy.deepcopy(space.applied_operations),
        )
        native: torch.Tensor = self._plane.inverse({"image": volume})["image"].as_tensor()
        return native

    def _to_stored(self, maps: torch.Tensor, stacked: MetaTensor) -> torch.Tensor:
        """Bring a stack of slices to the order and direction in which the file stores its axes."""
        operations = copy.deepcopy(stacked.applied_operations)
        volume = MetaTensor(maps, affine=stacked.affine, applied_operations=operations)
        stored: torch.Tensor = self._stack.inverse({"image": volume})["image"].as_tensor()
        return stored.contiguous()

    def _maps(self, slabs: list[torch.Tensor], stacked: MetaTensor) -> npt.NDArray[np.float32] | None:
        if not slabs:
            return None
        return self._to_stored(torch.cat(slabs, dim=3), stacked).permute(1, 2, 3, 0).contiguous().numpy()

    def _phases(self, found: dict[int, FramePrediction]) -> dict[str, int]:
        cavity = next((value for value, name in self.spec.labels.items() if name.upper() == "LV"), None)
        if cavity is None:
            raise VmfError(
                "VMF171",
                subject="frames",
                rule="ED and ES need a class LV",
                found=", ".join(self.spec.labels.values()),
                fix="give the frames by number",
            )
        return find_phases([int((found[k].labels == cavity).sum()) for k in sorted(found)])

    def _joined(self, scan: Scan, frames: dict[int, Any]) -> Any:
        first = next(iter(frames.values()))
        if len(scan.header.shape) < 4:
            return first.reshape(*scan.shape, *first.shape[3:])
        whole = np.zeros((*scan.header.shape, *first.shape[3:]), first.dtype)
        for number, frame in frames.items():
            whole[:, :, :, number] = frame
        return whole.reshape(*scan.shape, *first.shape[3:])

    def _quality(self, scan: Scan, found: dict[int, FramePrediction], phases: dict[str, int]) -> dict[str, Any]:
        names = {number: phase for phase, number in phases.items()}
        frames = []
        for number, frame in sorted(found.items()):
            model = self.quality
            signals = frame.signals if model is None else model.judged(frame)
            frames.append(
                {
                    "frame": number,
                    "phase": names.get(number),
                    "light": "unknown" if model is None else model.light(signals),
                    "predicted_dice": None if model is None else round(model.predict(signals), 4),
                    "signals": {name: round(value, 6) for name, value in signals.items()},
                    "kernel_shares": [round(share, 6) for share in frame.kernel_shares],
                    "volumes_ml": {name: round(volume, 3) for name, volume in frame.volumes.items()},
                }
            )
        lights = [str(frame["light"]) for frame in frames]
        scores = [frame["predicted_dice"] for frame in frames if frame["predicted_dice"] is not None]
        return {
            "format": "vmfseg-prediction-1",
            "input": Path(scan.header.path).name,
            "bundle": self.spec.name,
            "bundle_version": self.spec.version,
            "backend": self.backend.name,
            "light": worst_light(lights),
            "predicted_dice": min(scores, default=None),  # type: ignore[type-var]
            "phases": phases,
            "labels": {str(value): name for value, name in self.spec.labels.items()},
            "frames": frames,
            "warnings": [*self.remarks, *(str(finding) for finding in scan.header.findings)],
        }


def _device(device: torch.device | str | None, backend: str) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() and backend == "torch" else "cpu")
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        cause = str(error).splitlines()[0]
        raise ValueError(f"device must be one that is there, got {device} ({cause}). Use cpu.") from error
    return place


def _normalized(scores: torch.Tensor) -> torch.Tensor:
    """Return scores that sum to one over the classes; where the network saw nothing, the background has it all."""
    total = scores.sum(dim=0, keepdim=True)
    chances = scores / total.clamp_min(1e-12)
    chances[:1] = torch.where(total > 0, chances[:1], torch.ones_like(total))
    return chances
