# SPDX-License-Identifier: Apache-2.0
"""Percentile normalization of intensities, per channel and slice or volume."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform, Transform

from vmfseg.utils import VmfError, check_choice

__all__ = ["PercentileNormalize", "PercentileNormalized"]


class PercentileNormalize(Transform):  # type: ignore[misc]
    r"""Clip to percentiles and scale to [0, 1], slice by slice or over the volume, each channel by itself.

    With the percentiles :math:`l` and :math:`u` of the slice (or volume) of the channel that :math:`x` belongs to,

    .. math:: y = \frac{\min(\max(x, l), u) - l}{u - l}, \qquad y = 0 \text{ where } u = l .

    The reference code does the same per slice, but a constant slice becomes NaN there (0/0). MONAI's
    ``ScaleIntensityRangePercentiles`` works per volume or channel and shifts constant images instead of zeroing them.

    Shape: ``(C, H, W[, D])`` -> the same, float32. ``per="slice"`` takes the last axis of a volume as the slice axis.

    Args:
        lower: lower percentile, 0 to 100.
        upper: upper percentile, above ``lower``.
        per: ``"slice"`` (the reference) or ``"volume"``.

    Raises:
        ValueError: if the percentiles or ``per`` are out of range.
        VmfError: VMF152 if the image holds NaN or infinite values.

    Example:
        >>> image = torch.tensor([[[0.0, 1.0], [2.0, 4.0]], [[7.0, 7.0], [7.0, 7.0]]]).permute(1, 2, 0)[None]
        >>> out = PercentileNormalize(0.0, 100.0)(image)
        >>> out[0, :, :, 0].tolist(), out[0, :, :, 1].tolist()
        ([[0.0, 0.25], [0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, lower: float = 0.5, upper: float = 99.5, per: str = "slice") -> None:
        if not 0.0 <= lower < upper <= 100.0:
            raise ValueError(
                f"lower and upper must satisfy 0 <= lower < upper <= 100, got {lower} and {upper}. "
                "The reference uses 0.5 and 99.5."
            )
        check_choice("per", per, ("slice", "volume"))
        self.lower, self.upper, self.per = float(lower), float(upper), per

    def __call__(self, img: torch.Tensor) -> torch.Tensor:
        """Normalize ``img``."""
        array = np.asarray(img.detach().cpu(), dtype=np.float32)
        finite = np.isfinite(array)
        if not finite.all():
            raise VmfError(
                "VMF152",
                subject=str(getattr(img, "meta", {}).get("filename_or_obj", "image")),
                rule="the image must hold finite values only",
                found=f"{int((~finite).sum())} NaN or infinite values of {array.size}",
                fix="repair the file, or replace those values before this step",
            )
        axes = tuple(range(1, array.ndim)) if self.per == "volume" or array.ndim == 3 else (1, 2)
        low, high = np.percentile(array, [self.lower, self.upper], axis=axes, keepdims=True)
        span = high - low
        # a span lost in float32 rounding is noise of one gray value, not contrast
        flat = span <= np.finfo(np.float32).eps * np.maximum(np.abs(low), np.abs(high))
        scaled = (np.clip(array, low, high) - low) / np.where(flat, 1.0, span)
        out = torch.from_numpy(np.where(flat, 0.0, scaled).astype(np.float32)).to(img.device)
        return MetaTensor(out).copy_meta_from(img) if isinstance(img, MetaTensor) else out


class PercentileNormalized(MapTransform):  # type: ignore[misc]
    """Dictionary version of :class:`PercentileNormalize`.

    Args:
        keys: what to normalize; never a label.
        lower: lower percentile.
        upper: upper percentile.
        per: ``"slice"`` or ``"volume"``.
        allow_missing_keys: don't raise if a key is missing.

    Example:
        >>> out = PercentileNormalized("image", 0, 100)({"image": torch.arange(5.0).reshape(1, 1, 5)})
        >>> out["image"].flatten().tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    def __init__(
        self,
        keys: KeysCollection,
        lower: float = 0.5,
        upper: float = 99.5,
        per: str = "slice",
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.normalize = PercentileNormalize(lower, upper, per)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Normalize every key."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self.normalize(d[key])
        return d
