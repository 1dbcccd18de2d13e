# SPDX-License-Identifier: Apache-2.0
"""Small scans on disk, written with nibabel alone, so that the reader is never tested with itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

SaveVolume = Callable[..., Path]


@pytest.fixture
def save_volume(tmp_path: Path) -> SaveVolume:
    """Return a function that writes a NIfTI file below ``tmp_path``: (name, array, affine)."""

    def save(name: str, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(array, np.diag([1.25, 1.25, 8.0, 1.0]) if affine is None else affine), path)
        return path

    return save


@pytest.fixture
def scan() -> Callable[..., np.ndarray]:
    """Return a function that makes voxels that differ by seed: (shape, seed)."""

    def make(shape: tuple[int, ...] = (20, 18, 4), seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 500, shape).astype(np.int16)

    return make


@pytest.fixture
def heart() -> Callable[..., np.ndarray]:
    """Return a function that makes a label with LV 1 inside MYO 2 and RV 3 beside: (shape, radius)."""

    def make(shape: tuple[int, int, int] = (20, 18, 4), radius: float = 3.0) -> np.ndarray:
        x, y = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
        distance = np.hypot(x - 7, y - 8)
        plane = np.where(distance <= radius, 1, np.where(distance <= radius + 2, 2, 0))
        plane[14:17, 6:11] = 3
        return np.repeat(plane[..., None], shape[2], axis=2).astype(np.uint8)

    return make
