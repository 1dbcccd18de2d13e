# SPDX-License-Identifier: Apache-2.0
r"""Predicted Dice and a green, amber or red flag for a prediction, from signals of the network and the label map.

The signals of a volume are

* ``atypical``: how far the volume is from what source volumes look like to the network. With the statistics :math:`x_k`
  of :func:`vmfseg.model.prediction.volume_statistics` (the likelihood of the features under the vMF kernels, the
  share of each kernel, intensities), their centers :math:`c_k` and spreads :math:`r_k` over source volumes, it is
  :math:`\log(1 + \sqrt{\operatorname{mean}_k ((x_k - c_k) / r_k)^2})`. Both directions count: an image that is easier
  to explain than any real one, because it is blurred or empty, is as strange as one that cannot be explained;
* ``entropy``: mean over the found structures of :math:`-\sum_n p_n \log p_n / \log N`, with :math:`p` the softmax of
  the logits;
* the measures of :mod:`vmfseg.model.plausibility`;
* ``sized``: whether structures have the size of those in source volumes. With the volume :math:`v` of a class and its
  range :math:`[a, b]` there, the smallest :math:`\min(1, v / a, b / v)` over the classes; a trace of a structure is no
  structure, so ``present`` is not asked.

For information there are ``log_likelihood``, the mean of :math:`\log p(z)` over the positions that show anything,
``log_likelihood_foreground``, its mean where the network found structures, ``image_mean``, ``image_contrast`` and
``image_roughness`` of the normalized slices, and ``image_noise`` of the scan itself, see :func:`native_noise`.

A model that is fitted on source validation, see :mod:`vmfseg.model.calibration`, turns the signals into a predicted
Dice; its coefficients have the signs that common sense asks for, so a better signal never lowers the prediction. One
more such model for each structure predicts its own Dice. An interval reaches from the 5 % to the 95 % quantile of what
the truth differed from the prediction, over volumes of subjects that the fit did not see.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vmfseg.model.deploy import Explained
from vmfseg.model.prediction import FramePrediction, volume_statistics
from vmfseg.utils import VmfError, read_json, write_json
from vmfseg.utils.io import StrPath

__all__ = [
    "QUALITY_FORMAT",
    "SIGNALS",
    "QualityModel",
    "SignalCollector",
    "atypicality",
    "native_noise",
    "signal_value",
    "sizedness",
    "typical_ranges",
    "worst_light",
]

#: Signals that the model uses, with the sign of their effect.
SIGNALS = {
    "atypical": -1,
    "entropy": -1,
    "connected": 1,
    "enclosed": 1,
    "adjacent": 1,
    "continuous": 1,
    "sized": 1,
}
#: Value of a signal that cannot be measured because the network found nothing: the worst.
_ABSENT = {"entropy": 1.0}
_SPREAD_FLOOR = 1e-3
_LIGHTS = ("red", "amber", "green", "unknown")
QUALITY_FORMAT = "vmfseg-quality-4"
_READABLE = ("vmfseg-quality-3", QUALITY_FORMAT)  # the older one has no structures and no intervals


class SignalCollector:
    """Collect the signals of a volume batch by batch.

    Example:
        >>> collector = SignalCollector()
        >>> out = Explained(torch.randn(2, 3, 8, 8), torch.rand(2, 5, 4, 4), torch.zeros(2, 1, 4, 4))
        >>> collector.update(torch.rand(2, 1, 8, 8), out)
        >>> sorted(collector.signals())
        ['entropy', 'image_contrast', 'image_mean', 'image_roughness', 'log_likelihood', 'log_likelihood_foreground']
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._activations: torch.Tensor | None = None

    def update(self, image: torch.Tensor, out: Explained) -> None:
        """Add a batch: the slices as the network saw them, ``BCHW``, and what it returned."""
        probabilities = out.logits.softmax(dim=1)
        found = out.logits.argmax(dim=1, keepdim=True) > 0
        entropy = -(probabilities * probabilities.clamp_min(1e-12).log()).sum(dim=1, keepdim=True)
        sums = self._sums
        self._add_image(image)
        sums["pixels"] += float(found.sum())
        sums["entropy"] += float(entropy[found].sum(dtype=torch.float64)) / math.log(out.logits.shape[1])
        if out.activations is None or out.log_likelihood is None:
            return
        stride = image.shape[-1] // out.activations.shape[-1]
        seen = F.max_pool2d(image.amax(dim=1, keepdim=True), stride) > 0
        inner = F.max_pool2d(found.float(), stride) > 0
        sums["all"] += float(seen.sum())
        sums["likelihood"] += float(out.log_likelihood[seen].sum(dtype=torch.float64))
        sums["foreground"] += float(inner.sum())
        sums["inner"] += float(out.log_likelihood[inner].sum(dtype=torch.float64))
        total = (out.activations * seen).sum(dim=(0, 2, 3), dtype=torch.float64)
        self._activations = total if self._activations is None else self._activations + total

    def _add_image(self, image: torch.Tensor) -> None:
        shown = image > 0
        rough = (image - F.avg_pool2d(image, 3, stride=1, padding=1)).abs()
        for name, value in (("shown", shown), ("mean", image), ("square", image**2), ("rough", rough * shown)):
            self._sums[name] += float(value.sum(dtype=torch.float64))

    def signals(self) -> dict[str, float]:
        """Return the signals so far; those of structures are left out where none was found."""
        sums = self._sums
        values: dict[str, float] = {}
        if sums["all"]:
            values["log_likelihood"] = sums["likelihood"] / sums["all"]
        if sums["shown"]:
            mean = sums["mean"] / sums["shown"]
            values["image_mean"] = mean
            values["image_contrast"] = math.sqrt(max(0.0, sums["square"] / sums["shown"] - mean**2))
            values["image_roughness"] = sums["rough"] / sums["shown"]
        if sums["foreground"]:
            values["log_likelihood_foreground"] = sums["inner"] / sums["foreground"]
        if sums["pixels"]:
            values["entropy"] = sums["entropy"] / sums["pixels"]
        return values

    def activations(self) -> list[float]:
        """Return how much each kernel explains of the volume; sums to one."""
        if self._activations is None or not self._sums["all"]:
            return []
        return [float(value) for value in self._activations / self._sums["all"]]


@dataclass(frozen=True)
class QualityModel:
    r"""Predicted Dice :math:`\hat D = \operatorname{clip}(b + \sum_f w_f (s_f - m_f) / \sigma_f, 0, 1)`.

    Attributes:
        mean: :math:`m_f` of every signal of :data:`SIGNALS` on calibration volumes.
        scale: :math:`\sigma_f`.
        weights: :math:`w_f`, with the sign of :data:`SIGNALS`.
        intercept: :math:`b`.
        error: root mean square error on subjects that the fit did not see.
        threshold: Dice below which a segmentation counts as failed.
        volumes: how many volumes it was fitted on.
        subjects: how many subjects.
        typical: center and spread of every statistic on source volumes, see :func:`typical_ranges`.
        sizes: smallest and largest volume of every class there, in milliliters.
        interval: 5 % and 95 % quantile of truth minus prediction on subjects that the fit did not see, or empty.
        structures: ``intercept``, ``weights``, ``error`` and ``interval`` of every class, by name.
        temperature: by which logits are divided for calibrated probabilities, see :mod:`vmfseg.model.calibration`.

    Example:
        >>> model = QualityModel({"entropy": 0.1}, {"entropy": 0.05}, {"entropy": -0.1}, 0.85, 0.05)
        >>> model.predict({"entropy": 0.1}), model.light({"entropy": 0.1})
        (0.85, 'green')
        >>> model.light({"entropy": 0.2})
        'red'
    """

    mean: dict[str, float]
    scale: dict[str, float]
    weights: dict[str, float]
    intercept: float
    error: float
    threshold: float = 0.7
    volumes: int = 0
    subjects: int = 0
    typical: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, list[float]] = field(default_factory=dict)
    interval: list[float] = field(default_factory=list)
    structures: dict[str, dict[str, Any]] = field(default_factory=dict)
    temperature: float = 1.0

    @classmethod
    def load(cls, path: StrPath) -> QualityModel:
        """Read ``quality.json`` of a bundle.

        Raises:
            VmfError: VMF338 if the file holds something else.
        """
        content = read_json(path)
        try:
            if content["format"] not in _READABLE:
                raise ValueError(f"format {content['format']}")
            model = cls(**content["model"])
            numbers = [model.intercept, model.error, model.threshold, *model.mean.values(), *model.weights.values()]
            numbers += [value for center, spread in model.typical.values() for value in (center, 1 / spread)]
            numbers += [1 / value for value in model.scale.values()]
            numbers += [1 / value for smallest, largest in model.sizes.values() for value in (smallest, largest)]
            used = set(model.weights)
            for part in model.structures.values():
                numbers += [part["intercept"], part["error"], *part["weights"].values(), *part["interval"]]
                used |= set(part["weights"])
            numbers += [*model.interval, model.temperature, 1 / model.temperature]
            if not all(math.isfinite(value) for value in numbers) or used - set(model.scale):
                raise ValueError("numbers are missing or not finite")
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise VmfError("VMF338", subject=str(path), found=str(error)) from error
        return model

    def save(self, path: StrPath, **facts: Any) -> None:
        """Write ``quality.json``; ``facts`` stand beside the model."""
        write_json(path, {"format": QUALITY_FORMAT, "model": asdict(self), **facts})

    def predict(self, signals: Mapping[str, float]) -> float:
        """Return the predicted Dice, the mean over the foreground classes, from the signals of :meth:`judged`."""
        return self._linear(signals, self.intercept, self.weights)

    def bounds(self, signals: Mapping[str, float]) -> list[float] | None:
        """Return the interval that nine of ten true values lie in; ``None`` for a model without one."""
        return _around(self.predict(signals), self.interval)

    def predict_structures(self, signals: Mapping[str, float]) -> dict[str, dict[str, Any]]:
        """Return the predicted ``dice`` of every class with its ``interval``."""
        found: dict[str, dict[str, Any]] = {}
        for name, part in self.structures.items():
            dice = self._linear(signals, float(part["intercept"]), part["weights"])
            found[name] = {"dice": dice, "interval": _around(dice, part["interval"])}
        return found

    def _linear(self, signals: Mapping[str, float], intercept: float, weights: Mapping[str, float]) -> float:
        terms = (w * (signal_value(signals, n) - self.mean[n]) / self.scale[n] for n, w in weights.items())
        return float(np.clip(intercept + sum(terms), 0.0, 1.0))

    def judged(self, frame: FramePrediction) -> dict[str, float]:
        """Return the signals of a segmented volume, with how atypical it is and whether its structures are whole."""
        signals = {**frame.signals, "atypical": atypicality(volume_statistics(frame), self.typical)}
        return {**signals, "sized": sizedness(frame.volumes, self.sizes)} if self.sizes else signals

    def light(self, signals: Mapping[str, float]) -> str:
        """Return ``"red"`` where a failure is predicted, ``"green"`` where one is unlikely, else ``"amber"``.

        Green asks for a prediction that exceeds the threshold by the error of the model.
        """
        predicted = self.predict(signals)
        if predicted < self.threshold or not signals.get("present", 1.0):
            return "red"
        return "green" if predicted - self.error >= self.threshold else "amber"


def _around(value: float, interval: Sequence[float]) -> list[float] | None:
    return [float(np.clip(value + step, 0.0, 1.0)) for step in interval] if len(interval) == 2 else None


def typical_ranges(volumes: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return center and spread of every statistic that all volumes have; nothing for fewer than two volumes.

    Example:
        >>> typical_ranges([{"a": 1.0, "b": 2.0}, {"a": 3.0}])
        {'a': [2.0, 1.0]}
    """
    shared = set.intersection(*(set(volume) for volume in volumes)) if len(volumes) > 1 else set()
    columns = {name: np.array([volume[name] for volume in volumes]) for name in sorted(shared)}
    return {name: [float(c.mean()), max(float(c.std()), _SPREAD_FLOOR)] for name, c in columns.items()}


def atypicality(statistics: Mapping[str, float], typical: Mapping[str, Sequence[float]]) -> float:
    r"""Return :math:`\log(1 + d)`, with :math:`d` the root mean square distance from the centers, in spreads.

    Example:
        >>> round(atypicality({"a": 5.0, "c": 1.0}, {"a": [2.0, 1.0], "b": [0.0, 1.0]}), 3)
        1.386
    """
    distances = [(statistics[name] - c) / r for name, (c, r) in typical.items() if name in statistics]
    return math.log1p(math.sqrt(sum(d * d for d in distances) / len(distances))) if distances else 0.0


def sizedness(volumes: Mapping[str, float], sizes: Mapping[str, Sequence[float]]) -> float:
    r"""Return the smallest :math:`\min(1, v / a, b / v)` over the classes.

    Args:
        volumes: of the classes, in milliliters; 0 for one that is not given.
        sizes: :math:`a` and :math:`b` of the classes.

    Example:
        >>> ranges = {"LV": [60.0, 200.0], "MYO": [80.0, 150.0]}
        >>> sizedness({"LV": 100.0, "MYO": 300.0}, ranges), sizedness({"LV": 15.0, "MYO": 90.0}, ranges)
        (0.5, 0.25)
    """
    return min(
        (min(1.0, v / a, b / v) if (v := volumes.get(name, 0.0)) > 0 else 0.0 for name, (a, b) in sizes.items()),
        default=1.0,
    )


def native_noise(stack: torch.Tensor) -> dict[str, float]:
    """Return ``image_noise``: the logarithm of the finest detail of a scan, as a share of its span of gray values.

    The median magnitude of a second difference in both directions of the plane, at the resolution of the file: noise,
    filter and interpolation of a scanner, of which resampled slices show little. Where all is flat it is left out.

    Shape: ``(C, H, W, D)``, slices last.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> smooth = torch.linspace(0, 1, 64)[None, :, None, None].expand(1, 64, 64, 2) ** 2
        >>> noisy = [native_noise(smooth + sigma * torch.randn(1, 64, 64, 2))["image_noise"] for sigma in (0.01, 0.1)]
        >>> noisy[0] < noisy[1], native_noise(torch.ones(1, 64, 64, 2))
        (True, {})
    """
    values = stack[:1].float().permute(3, 0, 1, 2)  # of several channels the first: they come from one scanner
    if min(values.shape[-2:]) < 3:
        return {}
    twice = torch.tensor([1.0, -2.0, 1.0])
    kernel = torch.outer(twice, twice)[None, None] / 6  # so that white noise keeps its standard deviation
    detail = F.conv2d(values, kernel).abs()
    low, high = (float(value) for value in np.percentile(values.numpy(), [0.5, 99.5]))
    shown = detail[detail > 0]  # what a scanner has set to zero around the body says nothing
    if not len(shown) or high <= low:
        return {}
    return {"image_noise": math.log(float(shown.median()) / (high - low))}


def signal_value(signals: Mapping[str, float], name: str) -> float:
    """Return a signal; the worst value for one that could not be measured because the network found nothing."""
    return float(signals.get(name, _ABSENT.get(name, 0.0)))


def worst_light(lights: list[str]) -> str:
    """Return the most alarming of several lights.

    Example:
        >>> worst_light(["green", "amber"])
        'amber'
    """
    return min(lights, key=_LIGHTS.index, default="unknown")
