# SPDX-License-Identifier: Apache-2.0
"""Signals, pipes and terminals: exit codes, no traceback, no partial folder, no worker left."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

FORK = multiprocessing.get_context("fork")


def _child(words: list[str], stdout: int, errors: Path, encoding: str) -> None:
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), encoding=encoding)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "wb", closefd=False), encoding=encoding)
    sys.argv = ["vmfseg", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from vmfseg.cli.main import main

    main()


def start(words: list[object], stdout: int, errors: Path, encoding: str = "utf-8") -> multiprocessing.Process:
    process = FORK.Process(target=_child, args=([str(word) for word in words], stdout, errors, encoding))
    process.start()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("catches", [False, True], ids=["plain", "library that catches everything"])
def test_interruption_while_modules_are_imported(number, catches, tmp_path):
    body = f"import os\nos.kill(os.getpid(), {int(number)})\n"
    if catches:
        body = "try:\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "except BaseException:\n    pass\n"
    (tmp_path / "torch.py").write_text(body)  # in the place of the library, whose import takes seconds
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    command = [sys.executable, "-m", "vmfseg.cli.main", "verify", "x.nii"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=600)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr == "interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_phantom_that_is_interrupted_leaves_nothing(number, tmp_path):
    out = tmp_path / "data" / "hearts"
    with open(os.devnull, "wb") as nowhere:
        words = ["phantom", out, "--subjects", 60, "--workers", 2, "--frames", 2, "--size", 48]
        process = start(words, nowhere.fileno(), tmp_path / "err")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("data/.hearts.partial-*/*/*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)  # until the workers write
    group = process.pid
    os.kill(group, number)
    process.join(60)
    assert process.exitcode == 130, (tmp_path / "err").read_text()
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)  # nobody of the group is left
    lines = (tmp_path / "err").read_text().splitlines()
    assert [line for line in lines if not line.startswith("phantom:")] == ["interrupted"]


def test_a_reader_that_goes_away_does_not_stop_a_command(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    process = start(["phantom", tmp_path / "p", "--subjects", 1, "--workers", 1, "--frames", 2, "--size", 48], writer,
                    tmp_path / "err")  # fmt: skip
    os.close(writer)
    process.join(120)
    assert process.exitcode == 0, (tmp_path / "err").read_text()
    assert (tmp_path / "p" / "phantom.json").is_file()
    assert "Broken" not in (tmp_path / "err").read_text()


def test_full_standard_output_is_a_full_disk(tmp_path):
    with open("/dev/full", "wb") as full:
        process = start(["--version"], full.fileno(), tmp_path / "err")
        process.join(60)
    text = (tmp_path / "err").read_text()
    assert process.exitcode == 6, text
    assert "VMF501: the disk is full" in text
    assert len(text.splitlines()) <= 5


def test_terminal_of_ascii_gets_escapes(tmp_path):
    scan = tmp_path / "caf\u00e9 \u5fc3.nii"
    nib.save(nib.Nifti1Image(np.random.default_rng(0).random((20, 20, 3)).astype(np.float32), np.eye(4)), scan)
    with (tmp_path / "out").open("wb") as out:
        process = start(["verify", scan], out.fileno(), tmp_path / "err", encoding="ascii")
        process.join(60)
    assert process.exitcode == 0, (tmp_path / "err").read_text()
    assert r"caf\xe9 \u5fc3.nii" in (tmp_path / "out").read_text("ascii")
