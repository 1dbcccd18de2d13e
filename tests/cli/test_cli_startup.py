# SPDX-License-Identifier: Apache-2.0
"""Help, version and completion are printed without the libraries that only work needs."""

import inspect
import json
import os
import subprocess
import sys

import pytest

from vmfseg.bundle.new import METHODS
from vmfseg.cli import bundle_command, phantom_command, study_command
from vmfseg.cli.main import _COMMANDS, _GROUPS
from vmfseg.phantom import PhantomDefaults
from vmfseg.studies.table_files import FORMATS

#: Libraries that take long to import; typer needs pydantic only to convert values, rich only for boxes.
SLOW = {"torch", "monai", "ignite", "numpy", "scipy", "nibabel", "itk", "matplotlib", "pydantic", "fire", "jinja2"}
SLOW |= {"rich"}
COMMANDS = [[name] for name in _COMMANDS] + [[group, name] for group, names in _GROUPS.items() for name in names]
CODE = """
import json, os, sys
sys.argv[0] = "vmfseg"
from vmfseg.cli.main import main
try:
    main()
except SystemExit as stopped:
    sys.stderr.write(json.dumps([stopped.code, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def run(*words, **environment):
    """Return the output, the exit code and the imported top-level packages of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8", **environment},
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, code, set(modules)


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([*c, "--help"] for c in COMMANDS)], ids=" ".join)
def test_help_and_version_import_no_slow_library(words):
    output, code, modules = run(*words)
    assert code in (0, None), output
    assert output.strip()
    assert not modules & SLOW
    assert "vmfseg" in modules


@pytest.mark.parametrize(
    ("line", "offered", "left_out"),
    [
        pytest.param("vmfseg se", {"segment", "serve"}, {"shift"}, id="command"),
        pytest.param("vmfseg segment --over", {"--overlay", "--overwrite"}, {"--output"}, id="option"),
        pytest.param("vmfseg segment --overwrite --over", {"--overlay"}, {"--overwrite"}, id="option given before"),
        pytest.param("vmfseg bundle n", {"new"}, {"check"}, id="member of a group"),
        pytest.param("vmfseg bundle new --s", {"--size", "--spacing"}, {"--labels"}, id="option of a member"),
    ],
)
def test_completion_offers_what_fits_and_imports_no_slow_library(line, offered, left_out):
    count = len(line.split()) - 1
    output, _, modules = run(_VMFSEG_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(count))
    words = set(output.split())
    assert offered <= words
    assert not left_out & words
    assert not modules & SLOW


def test_figures_that_the_help_repeats_are_those_of_the_package():
    options = inspect.signature(phantom_command.phantom).parameters
    defaults = PhantomDefaults()
    assert {name: options[name].default for name in ("subjects", "frames", "size", "workers")} == vars(defaults)
    text = inspect.get_annotations(bundle_command.new, eval_str=True)["method"].__metadata__[0].help
    assert text == f"{', '.join(METHODS[:-1])} or {METHODS[-1]}."
    text = inspect.get_annotations(study_command.table, eval_str=True)["formats"].__metadata__[0].help
    assert text.split(";")[0] == f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
