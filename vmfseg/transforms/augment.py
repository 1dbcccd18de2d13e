# SPDX-License-Identifier: Apache-2.0
"""Random augmentation of whole batches: one affine grid, one blur, one seed for each sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from vmfseg.transforms import style
from vmfseg.utils import check_choice

__all__ = ["BatchAugment"]

_LOW_FREQUENCIES = 0.02  # share of the spectrum's side that carries style: 5 of 288


class _Draws(NamedTuple):
    """Uniform draws in [0, 1), one row a sample. Fixed places: switching one effect on never changes another."""

    angle: torch.Tensor
    flip: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor
    sigma: torch.Tensor
    gamma: torch.Tensor
    contrast: torch.Tensor
    bias: torch.Tensor
    fourier: torch.Tensor
    noise: torch.Tensor


_WIDTHS = (1, 2, 2, 1, 1, 2, 3, 1 + style.BIAS_TERMS, 3, 2)


class BatchAugment:
    r"""Augment a batch of slices: rotation, flips and blur of the reference code, and stronger effects on request.

    The defaults are those of the reference: an angle that is a whole number of degrees, uniform in 0 ... 90 (about
    the image center, counter-clockwise with H drawn downwards, zeros outside, image bilinear and label nearest); a
    flip along each axis with probability 0.5; always a Gaussian blur with 5 taps and :math:`\sigma \sim U(0.25,
    1.25)` pixels. Two departures: all is done on the network's grid, where the reference rotates before it resamples
    and pads; and rotation and flips are one resampling. ``translate=6`` adds what the reference does to unlabeled
    slices (random crop of 288 out of 300).

    A sample's randomness depends on its seed alone: not on the rest of the batch, the number of workers or what ran
    before. Bit for bit, but for the Fourier effect, which agrees to rounding; ``fourier_mode="mix"`` looks at the other
    samples, which is its purpose.

    Shape: image ``(B, C, H, W)`` in [0, 1], label ``(B, 1, H, W)``; returned in the same shapes and dtypes. All
    channels of a sample get the same parameters; noise is drawn for each pixel and channel.

    Args:
        rotation: largest angle in degrees, or (smallest, largest).
        flip: probability of a flip, for each axis.
        blur_sigma: range of the blur's standard deviation in pixels, or ``None``.
        blur_kernel: odd number of taps.
        integer_angles: draw whole degrees, as the reference does, or any angle.
        translate: largest shift in whole pixels, for each axis.
        scale: range of the zoom factor.
        gamma: range of the exponent (log-uniform), or ``None``.
        contrast: range of the contrast factor, or ``None``.
        brightness: largest offset.
        bias_field: largest coefficient of the log bias field.
        fourier: strength of the Fourier style change; 0 is off.
        fourier_mode: ``"perturb"`` random amplitudes, or ``"mix"`` amplitudes with another sample of the batch.
        noise: largest standard deviation of Gaussian noise.
        prob: probability of each of the effects from ``gamma`` on, for each sample.

    Raises:
        ValueError: if an argument or the batch is out of range.

    Example:
        >>> batch = {"image": torch.rand(2, 1, 32, 32), "label": torch.ones(2, 1, 32, 32, dtype=torch.uint8)}
        >>> out = BatchAugment()(batch, seeds=[3, 4])
        >>> again = BatchAugment()({"image": batch["image"][1:]}, seeds=[4])
        >>> out["label"].dtype, torch.equal(out["image"][1:], again["image"])
        (torch.uint8, True)
    """

    def __init__(
        self,
        rotation: float | tuple[float, float] = 90.0,
        flip: float = 0.5,
        blur_sigma: tuple[float, float] | None = (0.25, 1.25),
        *,
        blur_kernel: int = 5,
        integer_angles: bool = True,
        translate: int = 0,
        scale: tuple[float, float] = (1.0, 1.0),
        gamma: tuple[float, float] | None = None,
        contrast: tuple[float, float] | None = None,
        brightness: float = 0.0,
        bias_field: float = 0.0,
        fourier: float = 0.0,
        fourier_mode: str = "perturb",
        noise: float = 0.0,
        prob: float = 0.5,
    ) -> None:
        low, high = (0.0, float(rotation)) if isinstance(rotation, int | float) else map(float, rotation)
        if not -math.inf < low <= high < math.inf or (integer_angles and math.ceil(low) > math.floor(high)):
            raise ValueError(
                f"rotation must be a largest angle or (smallest, largest) in degrees, got {rotation}. "
                "With integer_angles it must span a whole number."
            )
        self.rotation = (low, high)
        self.flip, self.prob = _fraction("flip", flip), _fraction("prob", prob)
        self.blur_sigma = None if blur_sigma is None else _range("blur_sigma", blur_sigma)
        if blur_kernel < 1 or blur_kernel % 2 == 0:
            raise ValueError(f"blur_kernel must be odd and positive, got {blur_kernel}. The reference uses 5.")
        self.blur_kernel, self.integer_angles = blur_kernel, integer_angles
        self.translate = int(_amount("translate", translate))
        self.scale = _range("scale", scale)
        self.gamma = None if gamma is None else _range("gamma", gamma)
        self.contrast = None if contrast is None else _range("contrast", contrast)
        self.brightness, self.bias_field = _amount("brightness", brightness), _amount("bias_field", bias_field)
        self.fourier, self.noise = _amount("fourier", fourier), _amount("noise", noise)
        check_choice("fourier_mode", fourier_mode, ("perturb", "mix"))
        if fourier_mode == "mix" and fourier > 1.0:
            raise ValueError(
                f"fourier must be at most 1 when mixing, got {fourier}. It is the partner's largest share."
            )
        self.fourier_mode = fourier_mode

    def __call__(self, batch: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
        """Return the batch with ``image`` and, if there, ``label`` augmented; everything else as it is.

        A map ``motion`` ``(B, 1, H, W)`` moves with the image and keeps its values.

        Args:
            batch: holds ``image`` and perhaps ``label`` and ``motion``.
            seeds: one seed for each sample, from :func:`vmfseg.utils.derive_seed`.
        """
        image, label = batch["image"], batch.get("label")
        self._check(image, label, seeds)
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        draws = _draw(generators)
        motion = batch.get("motion")
        channels = image.shape[1]
        maps = image if motion is None else torch.cat([image, motion.to(image)], dim=1)
        maps, label = self._move(maps, label, draws)
        out = {**batch, "image": self._restyle(maps[:, :channels], draws, generators)}
        if motion is not None:
            out["motion"] = maps[:, channels:]
        if label is not None:
            out["label"] = label
        return out

    def _check(self, image: torch.Tensor, label: torch.Tensor | None, seeds: Sequence[int]) -> None:
        if image.ndim != 4 or not image.is_floating_point():
            raise ValueError(
                f"image must be floating point of shape (B, C, H, W), got {image.dtype} of {tuple(image.shape)}. "
                "Collate slices, not volumes."
            )
        if label is not None and label.shape != image[:, :1].shape:
            raise ValueError(
                f"label must have the shape {tuple(image[:, :1].shape)}, got {tuple(label.shape)}. Use class indices."
            )
        if len(seeds) != len(image):
            raise ValueError(f"seeds must hold one seed for each of {len(image)} samples, got {len(seeds)}.")
        if self.blur_sigma is not None and min(image.shape[-2:]) <= self.blur_kernel // 2:
            raise ValueError(
                f"image must be larger than half the blur kernel ({self.blur_kernel}), got {tuple(image.shape)}. "
                "Use a smaller blur_kernel."
            )

    def _move(
        self, image: torch.Tensor, label: torch.Tensor | None, draws: _Draws
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate, scale, shift and flip image and label by one grid."""
        mirrored = draws.flip < self.flip
        if self.rotation == (0.0, 0.0) and self.scale == (1.0, 1.0) and not self.translate:
            return _flip(image, mirrored), None if label is None else _flip(label, mirrored)
        grid = _grid(self._matrices(draws, mirrored), self._shifts(draws), image.shape[-2], image.shape[-1])
        grid = grid.to(image.device, image.dtype)
        moved = F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        if label is None:
            return moved, None
        classes = F.grid_sample(label.to(grid.dtype), grid, mode="nearest", padding_mode="zeros", align_corners=False)
        return moved, classes.to(label.dtype)

    def _matrices(self, draws: _Draws, mirrored: torch.Tensor) -> torch.Tensor:
        """Return ``(B, 2, 2)``: pixel offsets from the center, output -> input, rows before columns."""
        low, high = self.rotation
        degrees = low + draws.angle[:, 0] * (high - low)
        if self.integer_angles:
            whole_low, whole_high = math.ceil(low), math.floor(high)
            degrees = (whole_low + (draws.angle[:, 0] * (whole_high - whole_low + 1)).floor()).clamp(max=whole_high)
        radians = torch.deg2rad(degrees)
        cosine, sine = radians.cos(), radians.sin()
        turn = torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], -2)
        zoom = _uniform(self.scale, draws.scale[:, 0])
        signs = torch.where(mirrored, -1.0, 1.0)
        return turn / zoom[:, None, None] * signs[:, None, :]

    def _shifts(self, draws: _Draws) -> torch.Tensor:
        steps = 2 * self.translate + 1
        return (draws.shift * steps).floor().clamp(max=steps - 1) - self.translate

    def _restyle(self, image: torch.Tensor, draws: _Draws, generators: list[torch.Generator]) -> torch.Tensor:
        """Change the appearance in the order of the physics: tissue contrast, coil, resolution, noise."""
        strong = False
        if self.fourier:
            image, strong = self._fourier_style(image, draws, generators), True
        if self.gamma is not None:
            low, high = (math.log(g) for g in self.gamma)
            exponent = _uniform((low, high), draws.gamma[:, 1]).exp()
            image = style.adjust_gamma(image, self._some(draws.gamma, exponent, 1.0, image))
            strong = True
        if self.contrast is not None or self.brightness:
            factor = _uniform(self.contrast or (1.0, 1.0), draws.contrast[:, 1])
            offset = self.brightness * (2 * draws.contrast[:, 2] - 1)
            factor, offset = (
                self._some(draws.contrast, factor, 1.0, image),
                self._some(draws.contrast, offset, 0.0, image),
            )
            image, strong = style.adjust_contrast(image, factor, offset), True
        if self.bias_field:
            coefficients = self.bias_field * (2 * draws.bias[:, 1:] - 1)
            image = style.apply_bias_field(image, self._some(draws.bias, coefficients, 0.0, image))
            strong = True
        if self.blur_sigma is not None:
            image = style.blur(image, _uniform(self.blur_sigma, draws.sigma[:, 0]), self.blur_kernel)
        if self.noise:
            deviation = self._some(draws.noise, self.noise * draws.noise[:, 1], 0.0, image)
            grain = torch.stack([torch.randn(image.shape[1:], generator=g) for g in generators])
            image, strong = image + deviation[:, None, None, None] * grain.to(image), True
        return image.clamp(0.0, 1.0) if strong else image

    def _fourier_style(self, image: torch.Tensor, draws: _Draws, generators: list[torch.Generator]) -> torch.Tensor:
        half = max(1, round(_LOW_FREQUENCIES * min(image.shape[-2:])))
        if self.fourier_mode == "mix":
            partner = (draws.fourier[:, 2] * len(image)).long().clamp(max=len(image) - 1)
            weight = self._some(draws.fourier, self.fourier * draws.fourier[:, 1], 0.0, image)
            return style.mix_amplitude(image, partner.to(image.device), weight, half)
        factors = torch.stack([torch.randn((2 * half + 1, half + 1), generator=g) for g in generators])
        strength = self.fourier * draws.fourier[:, 1, None, None]
        return style.scale_amplitude(image, self._some(draws.fourier, strength * factors, 0.0, image))

    def _some(self, draws: torch.Tensor, value: torch.Tensor, neutral: float, like: torch.Tensor) -> torch.Tensor:
        """Keep ``value`` for the samples that the first draw selects, and the neutral one for the rest."""
        chosen = (draws[:, 0] < self.prob).reshape(-1, *[1] * (value.ndim - 1))
        return torch.where(chosen, value, neutral).to(like)


def _draw(generators: list[torch.Generator]) -> _Draws:
    table = torch.stack([torch.rand(sum(_WIDTHS), generator=g) for g in generators])
    return _Draws(*table.split(_WIDTHS, dim=1))


def _grid(matrices: torch.Tensor, shifts: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the ``(B, H, W, 2)`` sampling grid.

    A point is a complex number x + iy, and the grid the sum of a column and a row of them: one pass over the memory,
    where ``affine_grid`` multiplies matrices.
    """
    units = torch.tensor([2 / width, 2 / height])  # grid_sample wants x before y, in units of half sizes
    steps = matrices.flip(1) * units[None, :, None]
    rows = torch.arange(height, dtype=torch.float32) - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float32) - (width - 1) / 2
    offsets = steps @ shifts[:, :, None]
    along_rows = (steps[:, :, :1] * rows + offsets).transpose(1, 2).contiguous()
    along_columns = (steps[:, :, 1:] * columns).transpose(1, 2).contiguous()
    points = torch.view_as_complex(along_rows)[:, :, None] + torch.view_as_complex(along_columns)[:, None, :]
    return torch.view_as_real(points)


def _flip(tensor: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:
    for place, axis in enumerate((-2, -1)):
        mask = mirrored[:, place].to(tensor.device)[:, None, None, None]
        tensor = torch.where(mask, tensor.flip(axis), tensor)
    return tensor


def _uniform(bounds: tuple[float, float], draw: torch.Tensor) -> torch.Tensor:
    return bounds[0] + draw * (bounds[1] - bounds[0])


def _fraction(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a probability from 0 to 1, got {value}.")
    return float(value)


def _amount(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be zero (off) or positive, got {value}.")
    return float(value)


def _range(name: str, value: Sequence[float]) -> tuple[float, float]:
    low, high = (float(v) for v in value)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{name} must be (low, high) with 0 < low <= high, got {tuple(value)}.")
    return low, high
