# SPDX-License-Identifier: Apache-2.0
"""StageRunner: done once, done again when damaged, never touching another configuration's results."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from vmfseg.engines import StageRunner
from vmfseg.utils import VmfError


class Note:
    """A stage that writes a number and remembers what was asked of it."""

    def __init__(self, name: str, value: int = 0, fail: BaseException | None = None) -> None:
        self.name, self.value, self.fail = name, value, fail
        self.fingerprint = {"value": value}
        self.calls: list[tuple[str, bool]] = []

    def run(self, folder: Path, resume: bool) -> list[str]:
        self.calls.append(("run", resume))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "half.txt").write_text("x")
        if self.fail is not None:
            raise self.fail
        (folder / "out.txt").write_text(str(self.value))
        return ["out.txt"]

    def load(self, folder: Path) -> None:
        assert (folder / "out.txt").read_text() == str(self.value)
        self.calls.append(("load", False))


def _go(folder, *stages, **kwargs):
    paths = StageRunner(stages, folder, **kwargs).run()
    return [stage.calls for stage in stages], paths


RUN, LOAD, RESUMED = [("run", False)], [("load", False)], [("run", True)]


def test_finished_stages_are_skipped(tmp_path, capsys):
    calls, paths = _go(tmp_path, Note("a"), Note("b"))
    assert calls == [RUN, RUN]
    calls, again = _go(tmp_path, Note("a"), Note("b"))
    assert calls == [LOAD, LOAD]
    assert paths == again
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["stage 1/2 a", "stage 2/2 b"]
    assert lines[2] == f"stage 1/2 a: done already, taken from {paths[0]}"


@pytest.mark.parametrize("damage", ["change", "delete", "note", "note gone", "note of another kind"])
def test_a_damaged_stage_is_done_again(tmp_path, caplog, damage):
    _, paths = _go(tmp_path, Note("a"), Note("b"))
    output, note = paths[0] / "out.txt", paths[0] / "done.json"
    if damage == "change":
        output.write_text("7")
    elif damage == "delete":
        output.unlink()
    elif damage == "note gone":
        note.unlink()
    else:
        note.write_text("{" if damage == "note" else "[1]")
    with caplog.at_level(logging.WARNING):
        calls, _ = _go(tmp_path, Note("a"), Note("b"))
    assert calls == [RUN, LOAD]
    assert ("damaged" in caplog.text) == (damage != "note gone")
    assert output.read_text() == "0"


def test_another_configuration_gets_another_folder_and_later_stages_follow(tmp_path):
    _, old = _go(tmp_path, Note("a"), Note("b", 1), Note("c"))
    before = {path: path.read_bytes() for folder in old for path in folder.iterdir()}
    calls, new = _go(tmp_path, Note("a"), Note("b", 2), Note("c"))
    assert calls == [LOAD, RUN, RUN]
    assert new[0] == old[0]
    assert new[1] != old[1]
    assert new[2] != old[2]  # its own fingerprint is the same, but it builds on another b
    assert {path: path.read_bytes() for path in before} == before
    assert _go(tmp_path, Note("a"), Note("b", 1), Note("c"))[0] == [LOAD, LOAD, LOAD]


def test_the_fingerprint_of_the_run_decides_all_stages(tmp_path):
    one = [folder for _, folder, _ in StageRunner([Note("a")], tmp_path, {"seed": 0}).folders()]
    two = [folder for _, folder, _ in StageRunner([Note("a")], tmp_path, {"seed": 1}).folders()]
    assert one != two


def test_fresh_does_everything_again(tmp_path):
    _, paths = _go(tmp_path, Note("a"))
    (paths[0] / "stray.txt").write_text("old")
    assert _go(tmp_path, Note("a"), fresh=True, resume=True)[0] == [RUN]
    assert not (paths[0] / "stray.txt").exists()


@pytest.mark.parametrize(("resume", "calls"), [(True, RESUMED), (False, RUN)])
def test_an_interrupted_stage_goes_on_only_with_resume(tmp_path, resume, calls):
    with pytest.raises(KeyboardInterrupt):
        _go(tmp_path, Note("a"), Note("b", fail=KeyboardInterrupt()))
    folder = next((tmp_path / "stages").glob("b-*"))
    leftover = folder / ".vmfseg-killed.pt"
    leftover.write_bytes(b"half")
    (folder / "earlier.txt").write_text("x")
    assert _go(tmp_path, Note("a"), Note("b"), resume=resume)[0] == [LOAD, calls]
    assert (folder / "earlier.txt").exists() == resume
    assert not leftover.exists()
    done = json.loads((folder / "done.json").read_text())
    assert list(done["outputs"]) == ["out.txt"]


def test_resume_with_nothing_begun_simply_starts(tmp_path):
    assert _go(tmp_path, Note("a"), resume=True)[0] == [RUN]


def _hold(folder, ready, stop):
    class Waiting(Note):
        def run(self, folder, resume):
            ready.set()
            stop.wait(60)
            return super().run(folder, resume)

    StageRunner([Waiting("a")], folder).run()


def test_a_second_run_in_the_folder_is_refused_until_the_first_is_gone(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, stop))
    process.start()
    try:
        assert ready.wait(60)
        second = Note("a")
        with pytest.raises(VmfError) as caught:
            _go(tmp_path, second)
        assert caught.value.code == "VMF504"
        assert caught.value.exit_code == 6
        assert caught.value.found == f"process {process.pid}"
        assert second.calls == []
        assert _go(tmp_path / "other", Note("a"))[0] == [RUN]
    finally:
        process.kill()  # the lock must go with the process, however it ends
        process.join()
    assert _go(tmp_path, Note("a"))[0] == [RUN]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file", "scan.nii.gz"), VmfError("VMF213", rule="the file is empty")]
)
def test_errors_of_a_stage_are_not_taken_for_those_of_the_folder(tmp_path, error):
    with pytest.raises(type(error)) as caught:
        _go(tmp_path, Note("a", fail=error))
    assert caught.value is error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(VmfError, match="the output folder cannot be written") as caught:
        _go(closed / "run", Note("a"))
    assert caught.value.exit_code == 6


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(VmfError, match="VMF502") as caught:
        _go(tmp_path / "run", Note("a"))
    assert caught.value.subject == str(tmp_path / "run")


def test_other_processes_write_and_say_nothing(tmp_path, capsys):
    _, paths = _go(tmp_path, Note("a"), rank=1)
    assert not (paths[0] / "done.json").exists()
    assert not (tmp_path / ".lock").exists()
    assert capsys.readouterr().out == ""


def test_two_stages_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="stages must have different names, got a, a"):
        StageRunner([Note("a"), Note("a")], tmp_path)


def test_resume_with_other_settings_is_refused_and_starts_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _go(tmp_path, Note("a", 1), Note("b", 1, fail=KeyboardInterrupt()))
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    changed = Note("b", 2)
    with pytest.raises(VmfError, match=r"(?s)VMF390.*stage b was interrupted with other settings") as caught:
        _go(tmp_path, Note("a", 1), changed, resume=True)
    assert caught.value.exit_code == 4
    assert changed.calls == []
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert _go(tmp_path, Note("a", 1), Note("b", 2))[0] == [LOAD, RUN]  # anew, beside the interrupted one
    assert _go(tmp_path, Note("a", 1), Note("b", 1), resume=True)[0] == [LOAD, RESUMED]


def test_resume_without_an_interrupted_run_starts(tmp_path):
    assert _go(tmp_path, Note("a"), resume=True)[0] == [RUN]
    assert _go(tmp_path, Note("a", 2), resume=True)[0] == [RUN]  # the other one is finished
