# SPDX-License-Identifier: Apache-2.0
"""Bundles and scans that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.networks import VMFNet


@pytest.fixture(scope="session")
def network() -> VMFNet:
    return tiny_network()


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, network) -> Path:
    """Return the folder of a bundle that tests read only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), network)


@pytest.fixture
def own_bundle(tmp_path, network) -> Path:
    """Return the folder of a bundle that the test may change."""
    return write_tiny_bundle(tmp_path / "bundles", network)


@pytest.fixture
def blobs() -> Callable[..., np.ndarray]:
    """Return a function that makes int16 voxels with structures: (shape, seed)."""

    def make(shape: tuple[int, ...] = (30, 26, 5), seed: int = 0) -> np.ndarray:
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(1, int(np.prod(shape[2:])), 8, 7, generator=generator)
        fine = torch.nn.functional.interpolate(coarse, size=shape[:2], mode="bilinear")[0]
        return (1000 * fine.permute(1, 2, 0).reshape(shape)).numpy().astype(np.int16)

    return make


@pytest.fixture
def save_scan(tmp_path, blobs) -> Callable[..., Path]:
    """Return a function that writes a scan: (name, shape, affine, seed)."""

    def save(
        name: str = "scan.nii.gz", shape: tuple[int, ...] = (30, 26, 5), affine: np.ndarray | None = None, seed: int = 0
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(blobs(shape, seed), np.diag([1.3, 1.3, 8, 1]) if affine is None else affine), path)
        return path

    return save
