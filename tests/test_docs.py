# SPDX-License-Identifier: Apache-2.0
"""The documentation has a page for each package, builds without warnings and loads nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vmfseg

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_every_package_has_a_page():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))
    packages = [path.parent.name for path in Path(vmfseg.__file__).parent.glob("*/__init__.py")]
    named = set(re.findall(r"automodule:: vmfseg\.(\w+)\n", pages))
    assert named == set(packages) - {"cli"}  # the command line has its own page
    listed = re.findall(r"^   (\w+)$", (DOCS / "api" / "index.rst").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (DOCS / "api").glob("*.rst") if path.stem != "index")


def test_every_tutorial_is_listed():
    listed = re.findall(r"^tutorials/(\w+)$", (DOCS / "tutorials.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == sorted(path.stem for path in (ROOT / "tutorials").glob("*.ipynb"))


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning_and_opens_from_disk(tmp_path):
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees", DOCS,
         tmp_path / "html"],
        env={**os.environ, "VMFSEG_DOCS_EXECUTE": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path / "html").as_posix(): path for path in (tmp_path / "html").rglob("*.html")}
    for name in ("index.html", "command_line.html", "api/networks.html", "tutorials/02_the_vmf_idea.html"):
        assert name in pages
    kernels = pages["api/networks.html"].read_text(encoding="utf-8")
    assert "vmfseg.networks.VMFKernels" in kernels
    assert "tex-svg.js" in kernels
    assert (tmp_path / "html" / "_static" / "tex-svg.js").stat().st_size > 100_000
    for page in pages.values():
        loaded = re.findall(
            r"<(?:script|img|link)[^>]+(?:src|href)=\"(https?:[^\"]+)\"", page.read_text(encoding="utf-8")
        )
        assert loaded == [], f"{page.name} loads from elsewhere"
