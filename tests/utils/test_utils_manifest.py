# SPDX-License-Identifier: Apache-2.0
import json
from importlib import metadata

import vmfseg
from vmfseg.utils import build_manifest, library_versions


def test_versions_are_those_installed():
    versions = library_versions()
    assert versions["vmfseg"] == vmfseg.__version__
    for name in ("torch", "monai", "pytorch-ignite", "numpy", "scipy", "nibabel", "itk"):
        assert versions[name] == metadata.version(name)


def test_equal_facts_give_equal_manifests_that_are_json():
    first, second = (build_manifest(seed=3, split={"train": ["a"]}) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert first["seed"] == 3
    assert first["split"] == {"train": ["a"]}
    assert first["format"] == "vmfseg-manifest-1"
