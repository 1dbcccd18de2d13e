# SPDX-License-Identifier: Apache-2.0
from importlib import metadata

import vmfseg
from vmfseg.utils.manifest import library_versions


def test_versions_are_those_installed():
    versions = library_versions()
    assert versions["vmfseg"] == vmfseg.__version__
    for name in ("torch", "monai", "pytorch-ignite", "numpy", "scipy", "nibabel", "itk"):
        assert versions[name] == metadata.version(name)
