# SPDX-License-Identifier: Apache-2.0
"""A tiny phantom and a copy of a bundle, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from training_runs import BundleRun

from vmfseg.bundle.compile import write_bundle
from vmfseg.phantom import make_phantom


@pytest.fixture(scope="session")
def tiny_phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a phantom of 8 subjects, two of every vendor."""
    return make_phantom(tmp_path_factory.mktemp("data") / "phantom", subjects=8, size=48, frames=2, workers=1)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fresh copy of the bundle ``vmfnet_mnms``."""
    folder = tmp_path_factory.mktemp("bundles")
    write_bundle("vmfnet_mnms", folder)
    return folder / "vmfnet_mnms"


@pytest.fixture
def bundle_run(bundle: Path, tiny_phantom: Path, tmp_path: Path) -> Callable[..., BundleRun]:
    """Return a function that prepares a run: (name of the output folder, data)."""

    def make(name: str = "run", data: Path | None = None) -> BundleRun:
        return BundleRun(bundle, data or tiny_phantom, tmp_path / name)

    return make


@pytest.fixture(scope="session")
def undisturbed(bundle: Path, tiny_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> BundleRun:
    """Return a run that nothing interrupted."""
    run = BundleRun(bundle, tiny_phantom, tmp_path_factory.mktemp("undisturbed"))
    result = run.run()
    assert result.returncode == 0, result.stdout + result.stderr
    return run
