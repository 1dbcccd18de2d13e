# SPDX-License-Identifier: Apache-2.0
"""Models that are served: segmentation of one scan with predicted quality and domain shift."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.findings import DataWarning
from vmfseg.data.reader import clear_cache
from vmfseg.model import Predictor
from vmfseg.model.artifact import find_bundle
from vmfseg.model.prediction import Prediction
from vmfseg.model.scan import Scan
from vmfseg.serving.names import check_plain
from vmfseg.utils import VmfError, did_you_mean, read_json
from vmfseg.utils.io import StrPath
from vmfseg.visualize.figure_style import class_color

__all__ = ["Answer", "ServedModel", "find_model", "load_models"]

_RULES = ("nan_to", "prefer", "allow_shear")


@dataclass(frozen=True)
class Answer:
    """What a model says about one scan.

    Attributes:
        prediction: labels, and activations if they were asked for.
        seconds: how long it took.
        frames: how many the scan has.
    """

    prediction: Prediction
    seconds: float
    frames: int


class ServedModel:
    """A loaded model and its shift statistics.

    Args:
        name: by which clients call it.
        predictor: of the bundle.

    Attributes:
        run: number of the training here that its weights come from; 0 for the bundle's own.
    """

    def __init__(self, name: str, predictor: Predictor) -> None:
        self.name, self.predictor, self.run = name, predictor, 0
        note = predictor.model.root / "configs" / "metadata.json"
        self.metadata: dict[str, Any] = read_json(note) if note.is_file() else {}

    def replace(self, predictor: Predictor, run: int) -> None:
        """Take other weights, for instance after a training."""
        self.predictor, self.run = predictor, run

    @property
    def labels(self) -> dict[str, int]:
        """Foreground classes by name."""
        return {name: value for value, name in self.predictor.labels.items() if value}

    def describe(self) -> dict[str, Any]:
        """Return what ``/info/`` says about a model."""
        about = self.predictor.model
        return {
            "type": "segmentation",
            "labels": self.labels,
            "dimension": 3,
            "description": str(self.metadata.get("description", about.name)),
            "config": {"frames": ""},
            "version": about.version + (f"+run{self.run}" if self.run else ""),
        }

    def classes(self) -> list[dict[str, Any]]:
        """Return value, name and color of every class."""
        names = self.predictor.labels
        return [{"value": v, "name": name, "color": class_color(v) if v else ""} for v, name in sorted(names.items())]

    def answer(
        self, image: Path, name: str, params: Mapping[str, Any], *, frame: int | None = None, activations: bool = False
    ) -> Answer:
        """Segment a scan.

        Args:
            image: a file or a DICOM folder.
            name: what the client calls it.
            params: of the request; ``frames`` and what :class:`vmfseg.data.volume.ReadRules` names are used.
            frame: take this frame alone, as a volume of its own; ``frames`` of ``params`` does not count then.
            activations: keep the activation of every kernel.

        Raises:
            VmfError: what the predictor refuses, about ``name`` instead of the path.
        """
        start = time.monotonic()
        rules = {key: params[key] for key in _RULES if params.get(key) is not None}
        wanted = params.get("frames") or None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            try:
                scan = Scan.open(image, **rules)
                if frame is None:
                    prediction = self.predictor.predict(scan, wanted, activations=activations)
                else:
                    prediction = self.predictor.predict(scan.frame(frame), activations=activations)
            except TypeError as error:
                raise VmfError(
                    "VMF185", subject="params", rule="a value has the wrong type", found=str(error), fix="mend params"
                ) from error
            finally:
                clear_cache()  # of cines, which nobody may ask for again
        warned = [str(w.message) for w in caught if issubclass(w.category, DataWarning)]
        notes = dict.fromkeys([*prediction.quality["warnings"], *warned])
        prediction.quality.update(
            input=name,
            warnings=[note.replace(str(image), name) for note in notes],
        )
        return Answer(prediction, time.monotonic() - start, scan.num_frames)


def load_models(
    bundles: Sequence[StrPath], device: str | None = None, *, batch_size: int = 8, trust: bool = False
) -> dict[str, ServedModel]:
    """Load bundles; nothing in them is executed.

    Args:
        bundles: folders of bundles or runs, or names of bundles.
        device: see :meth:`Predictor.from_bundle`.
        batch_size: slices at once.
        trust: see :meth:`vmfseg.model.Model.load`.

    Raises:
        ValueError: no bundle, or two of one name.
        VmfError: what the predictor refuses.
    """
    models: dict[str, ServedModel] = {}
    for bundle in bundles:
        root = find_bundle(bundle)
        name = check_plain("model", root.resolve().name)
        if name in models:
            raise ValueError(f"bundles must have different folder names, got {name} twice. Rename one folder.")
        models[name] = ServedModel(name, Predictor.from_bundle(root, device, batch_size=batch_size, trust=trust))
    if not models:
        raise ValueError("bundles must name at least one bundle, got none. Try vmfseg serve bundles/vmfnet_mnms.")
    return models


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    """Look up a model.

    Raises:
        VmfError: VMF180.
    """
    if name not in models:
        fix = did_you_mean(name, models).strip() or f"there are {', '.join(models)}"
        raise VmfError("VMF180", subject=name[:80], fix=fix)
    return models[name]
