# SPDX-License-Identifier: Apache-2.0
"""``vmfseg doctor`` and the program as a whole: what is there, help in 80 columns, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vmfseg import __version__
from vmfseg.cli.main import app
from vmfseg.utils import machine
from vmfseg.utils.machine import inspect_machine

RUNNER = CliRunner()
VERBS = ["doctor", "evaluate", "explain", "export", "info", "phantom", "report", "segment", "serve", "shift", "train"]
COMMANDS = [*([verb] for verb in [*VERBS, "verify"]), *(["bundle", verb] for verb in ("new", "build", "check"))]


def test_a_fit_machine_is_described(tmp_path):
    report = inspect_machine(tmp_path / "cache", probe=False)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["fit"]
    assert checks["vmfseg"]["found"] == __version__
    assert checks["torch"]["found"] == torch.__version__
    assert {"python", "cpu", "memory", "disk", "cache", "[export]", "[serve]", "monai"} <= set(checks)
    assert all(check["fix"] for check in report["checks"] if check["status"] != "ok")
    assert not list((tmp_path / "cache").iterdir()), "the trial file is gone"


def test_a_cache_that_cannot_be_written_is_bad(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path / "file" / "cache"))
    result = RUNNER.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 6
    report = json.loads(result.output)
    assert not report["fit"]
    (bad,) = [check for check in report["checks"] if check["status"] == "bad"]
    assert bad["name"] == "cache"
    assert "VMFSEG_CACHE" in bad["fix"]


def test_bfloat16_is_tried_in_a_process_of_its_own(monkeypatch):
    assert machine._bfloat16()["name"] == "bfloat16"
    monkeypatch.setattr(machine, "_BFLOAT16", "import os; os.kill(os.getpid(), 4)")
    check = machine._bfloat16()
    assert check["status"] == "note"
    assert "dies here (exit -4)" in check["found"]


def test_the_table_ends_with_the_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path))
    result = RUNNER.invoke(app, ["doctor"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert result.output.strip().splitlines()[-1].strip() == "fit"
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_reads_well_in_80_columns(words):
    result = RUNNER.invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line.strip() for line in lines if line.strip().startswith("vmfseg ")]
    assert any(example.startswith(f"vmfseg {' '.join(words)}") for example in examples), result.output
    assert "\\b" not in result.output
    assert "…" not in result.output, "something was cut off"


def test_the_program_lists_its_verbs():
    result = RUNNER.invoke(app, ["--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert all(verb in result.output for verb in [*VERBS, "verify", "bundle", "--install-completion"])


def test_the_shell_can_complete():
    """The script is shown to the shell that asks, and, asked as the script asks, the program offers its verbs."""
    program = Path(sys.executable).with_name("vmfseg")
    # the semicolon keeps the shell alive, so that the program finds out whose completion is wanted
    shown = _run("bash", "-c", f"'{program}' --show-completion; true")
    assert "_VMFSEG_COMPLETE=complete_bash" in shown
    question = {"_VMFSEG_COMPLETE": "complete_bash", "COMP_WORDS": "vmfseg ex", "COMP_CWORD": "1"}
    assert _run(str(program), **question).split() == ["explain", "export"]


def _run(*words: str, **environment: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
