# SPDX-License-Identifier: Apache-2.0
import configparser
import importlib
import inspect
import json
import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest
import yaml

import vmfseg

ROOT = Path(__file__).parents[1]
SURFACE = Path(__file__).with_name("api_surface.json")
# Packages whose public names are promised. Add one here, then write the snapshot as CONTRIBUTING.md says.
ROOMS = "bundle data engines export handlers losses metrics model networks representation transforms utils visualize"
PACKAGES = ["vmfseg", *(f"vmfseg.{room}" for room in ROOMS.split())]


def describe(export):
    """Return the names of what one may pass to a public object, or what kind of value it is."""
    if not callable(export):
        return type(export).__name__
    return list(inspect.signature(export).parameters)


def surface():
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        found[package] = {name: describe(getattr(module, name)) for name in sorted(module.__all__)}
    return found


def test_the_public_names_are_those_of_the_snapshot():
    found = surface()
    if os.environ.get("VMFSEG_UPDATE_API"):
        SURFACE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    promised = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert set(found) == set(promised)
    for package, names in promised.items():
        gone = sorted(set(names) - set(found[package]))
        assert not gone, f"{package} lost {gone}: this breaks users. Bring them back or say so in CHANGELOG.md."
        for name, parameters in found[package].items():
            assert parameters == names.get(name), (
                f"{package}.{name} changed from {names.get(name)} to {parameters}. If users can live with that, write "
                "the snapshot (VMFSEG_UPDATE_API=1) and a line in CHANGELOG.md."
            )


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_each_name_exists_and_is_documented(package):
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    assert inspect.getdoc(module)
    for name in module.__all__:
        export = getattr(module, name)
        if inspect.isclass(export) or inspect.isfunction(export):
            assert inspect.getdoc(export), f"{package}.{name} has no docstring"


def test_the_version_is_the_same_everywhere():
    assert metadata.version("vmfseg") == vmfseg.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == vmfseg.__version__


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_else_and_says_nothing():
    out = python(
        "import sys; before = set(sys.modules); import vmfseg;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new))"
    )
    assert out.strip() == "['vmfseg']"


def test_importing_the_core_changes_no_global_state():
    out = python(
        "import torch, numpy, os, warnings, logging, monai.losses, monai.networks;"
        "state = lambda: (torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),"
        "torch.get_num_threads(), str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(),"
        "dict(os.environ), list(warnings.filters), logging.root.level, len(logging.root.handlers),"
        "torch.is_grad_enabled());"
        "before = state();"
        "import vmfseg.networks, vmfseg.losses, vmfseg.utils;"
        "print([k for k, (a, b) in enumerate(zip(before, state())) if a != b])"
    )
    assert out.strip() == "[]"


def test_type_hints_are_shipped():
    assert resources.files("vmfseg").joinpath("py.typed").is_file()
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert "py.typed" in config["options.package_data"]["vmfseg"]


def test_the_license_is_the_one_that_the_metadata_names():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("folder", ["vmfseg", "tests", "benchmarks"])
def test_every_file_names_its_license_first(folder):
    missing = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.stat().st_size
        and not path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n")
    ]
    assert missing == []


def test_the_changelog_has_a_place_for_the_next_change():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    promised = json.loads(SURFACE.read_text(encoding="utf-8"))
    for name in promised["vmfseg.networks"].keys() - {"FeatureEncoder"}:
        assert name in text, f"CHANGELOG.md does not mention {name}"
