# SPDX-License-Identifier: Apache-2.0
"""Put the bundles of the repository into the wheel, as data of the package. Everything else is in setup.cfg."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BUNDLES = Path(__file__).parent / "bundles"
#: Files of a model that ``vmfseg bundle ship`` wrote. A model that somebody trained in place stays out.
SHIPPED = ("model.safetensors", "manifest.json", "quality.json", "shift.json", "calibration.safetensors")


def bundle_files() -> Iterator[Path]:
    """Yield the files of every bundle that belong into the package."""
    for bundle in sorted(note.parent.parent for note in BUNDLES.glob("*/configs/metadata.json")):
        yield bundle / "LICENSE"
        for folder in ("configs", "docs"):
            yield from sorted(file for file in (bundle / folder).iterdir() if file.is_file())
        manifest = bundle / "models" / "manifest.json"
        if manifest.is_file() and '"shipped"' in manifest.read_text(encoding="utf-8"):
            yield from (file for name in SHIPPED if (file := bundle / "models" / name).is_file())


class BuildWithBundles(build_py):
    """Copy the bundles beside the modules; an editable install finds them in the repository."""

    def run(self) -> None:
        """Build the package, then add the bundles."""
        super().run()
        if getattr(self, "editable_mode", False):
            return
        for file in bundle_files():
            target = Path(self.build_lib) / "vmfseg" / "bundles" / file.relative_to(BUNDLES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithBundles})
