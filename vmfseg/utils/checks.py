# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that raise ``ValueError`` by the house recipe: argument · rule · value received · cure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = [
    "check_channels",
    "check_choice",
    "check_divisible",
    "check_finite",
    "check_positive",
    "did_you_mean",
    "usable_device",
    "whole_number",
]


def check_positive(name: str, value: float, cure: str = "") -> None:
    """Refuse numbers that are not finite and positive.

    Example:
        >>> check_positive("kappa", 0.0, "Larger values give sharper assignments.")
        Traceback (most recent call last):
        ValueError: kappa must be positive, got 0.0. Larger values give sharper assignments.
    """
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive, got {value}. {cure}".strip())


def check_channels(name: str, tensor: torch.Tensor, channels: int, spatial_dims: int | None = None) -> None:
    """Refuse tensors whose layout is not ``B{channels}HW[D]``; ``spatial_dims=None`` allows two or three axes of space.

    Example:
        >>> import torch
        >>> check_channels("features", torch.zeros(2, 3, 8, 8), 64, spatial_dims=2)
        Traceback (most recent call last):
        ValueError: features must have shape (B, 64, H, W), got (2, 3, 8, 8). Check what produces it.
    """
    dims = min(max(tensor.ndim - 2, 2), 3) if spatial_dims is None else spatial_dims
    if tensor.ndim != dims + 2 or tensor.shape[1] != channels:
        wanted = ", ".join(["B", str(channels), *"HWD"[:dims]])
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(tensor.shape)}. Check what produces it.")


def check_divisible(name: str, size: Sequence[int], factor: int, reason: str) -> None:
    """Refuse spatial sizes that are not divisible by ``factor``, and say to which size to pad.

    Example:
        >>> check_divisible("image", (286, 288), 16, "it is halved four times")
        Traceback (most recent call last):
        ValueError: image size (286, 288) must be divisible by 16 because it is halved four times; pad to (288, 288).
    """
    if any(s % factor or s < factor for s in size):
        padded = tuple(max(factor, -(-s // factor) * factor) for s in size)
        raise ValueError(f"{name} size {tuple(size)} must be divisible by {factor} because {reason}; pad to {padded}.")


def check_finite(name: str, tensor: torch.Tensor, cure: str) -> None:
    """Refuse tensors with NaN or infinite entries before they travel on.

    Example:
        >>> import torch
        >>> check_finite("features", torch.tensor([1.0, float("nan")]), "Check the input images.")
        Traceback (most recent call last):
        ValueError: features must be finite, got 1 NaN or infinite value of 2. Check the input images.
    """
    bad = int((~tensor.isfinite()).sum())
    if bad:
        plural = "value" if bad == 1 else "values"
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite {plural} of {tensor.numel()}. {cure}")


def check_choice(name: str, value: str, options: Iterable[str]) -> None:
    """Refuse words outside ``options`` and name the nearest.

    Example:
        >>> check_choice("reduction", "maen", ["mean", "sum"])
        Traceback (most recent call last):
        ValueError: reduction must be one of mean, sum, got 'maen'. Did you mean 'mean'?
    """
    words = list(options)
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, got {value!r}.{did_you_mean(value, words)}")


def usable_device(device: torch.device | str) -> torch.device:
    """Return a device of torch that holds values and is there.

    Example:
        >>> usable_device("cpu")
        device(type='cpu')
        >>> usable_device("banana")
        Traceback (most recent call last):
        ValueError: device must be one that is there, got banana (...). Use cpu.
    """
    import torch

    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # of the device "meta" there are no values
    except (RuntimeError, AssertionError) as error:
        cause = str(error).splitlines()[0][:120]
        raise ValueError(f"device must be one that is there, got {device} ({cause}). Use cpu.") from error
    return place


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest option, or an empty string.

    Example:
        >>> did_you_mean("kapa", ["kappa", "seed"])
        " Did you mean 'kappa'?"
    """
    close = difflib.get_close_matches(str(word), [str(option) for option in options], n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def whole_number(text: str) -> int | None:
    """Return the number that a text of at most nine digits is, or ``None``; no digit of another script, no power.

    Example:
        >>> whole_number("12"), whole_number("-1"), whole_number("\u00b2"), whole_number("9" * 5001)
        (12, None, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
