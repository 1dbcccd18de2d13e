# SPDX-License-Identifier: Apache-2.0
import errno
import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from vmfseg.utils import VmfError, atomic_path, atomic_write, read_json, sha256_file, write_json
from vmfseg.utils import io as io_module
from vmfseg.utils.io import sha256_bytes
from vmfseg.utils.locks import locked_folder


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("data", ["text ü", b"\x00bytes", "", b""], ids=["text", "bytes", "no-text", "no-bytes"])
def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path, data):
    target = tmp_path / "new" / "folder" / "file.bin"
    atomic_write(target, data)
    assert target.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names(target.parent) == ["file.bin"]


def test_the_temporary_file_lies_beside_the_target_with_its_suffixes(tmp_path):
    with atomic_path(tmp_path / "scan.nii.gz") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.endswith(".nii.gz")
        temporary.write_bytes(b"x")
        assert not (tmp_path / "scan.nii.gz").exists()
    assert (tmp_path / "scan.nii.gz").read_bytes() == b"x"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, VmfError])
def test_an_error_in_the_block_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise error("VMF900") if error is VmfError else error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_a_plain_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        atomic_write(tmp_path / "a", "x")
        (tmp_path / "b").write_text("x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert len(modes) == 1


def test_an_existing_file_is_not_overwritten_unless_allowed(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(VmfError, match="VMF503") as caught:
        atomic_write(target, "new", overwrite=False)
    assert caught.value.subject == str(target)
    assert "--overwrite" in caught.value.fix
    assert target.read_text() == "old"
    atomic_write(target, "new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("links", [True, False], ids=["hard-links", "no-hard-links"])
def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch, links):
    def refuse(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    if not links:  # what exFAT and some network shares answer
        monkeypatch.setattr(io_module.os, "link", refuse)
    target = tmp_path / "a.txt"

    def write_while_another_does():
        with atomic_path(target, overwrite=False) as temporary:
            temporary.write_text("mine")
            target.write_text("theirs")

    with pytest.raises(VmfError, match="VMF503"):
        write_while_another_does()
    assert target.read_text() == "theirs"
    assert names(tmp_path) == ["a.txt"]
    atomic_write(tmp_path / "b.txt", "new", overwrite=False)
    assert (tmp_path / "b.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("make", ["folder-is-a-file", "target-is-a-folder"])
def test_what_cannot_be_written_is_a_refusal(tmp_path, make):
    target = tmp_path / "x" / "a.txt"
    if make == "folder-is-a-file":
        (tmp_path / "x").write_text("a file")
    else:
        target.mkdir(parents=True)
        (target / "inside").write_text("kept")
    with pytest.raises(VmfError, match="VMF502") as caught:
        atomic_write(target, "new")
    assert caught.value.exit_code == 6
    assert caught.value.found in ("Not a directory", "File exists", "Is a directory")


def test_a_folder_that_takes_no_new_file_is_a_refusal():
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        os.seteuid(65534 if user == 0 else user)  # root may write everywhere
        try:
            with pytest.raises(VmfError, match="VMF502") as caught:
                atomic_write(Path(name) / "a.txt", "new")
        finally:
            os.seteuid(user)
    assert caught.value.found == "Permission denied"


def test_an_input_that_the_block_cannot_read_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "out.txt"):
        Path("no/such/input.nii").read_bytes()
    assert names(tmp_path) == []


# full disk ------------------------------------------------------------------------------------------------------------


def in_child(function):
    """Run ``function`` in a forked process and return its exit status as ``os.waitpid`` gives it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def write_too_much(target):
    try:
        atomic_write(target, b"n" * 1_000_000)
    except VmfError as error:
        return 0 if (error.code, error.exit_code, error.subject) == ("VMF501", 6, str(target)) else 1
    return 2


def test_a_file_larger_than_allowed_keeps_the_old_one(tmp_path):
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        return write_too_much(target)

    assert os.waitstatus_to_exitcode(in_child(limited)) == 0
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_full_disk_is_met_by_the_lock_which_leaves_nothing(tmp_path):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            with locked_folder(tmp_path / "out"):
                return 1
        except VmfError as error:
            return 0 if (error.code, error.subject) == ("VMF501", str(tmp_path / "out")) else 2

    assert os.waitstatus_to_exitcode(in_child(limited)) == 0
    assert names(tmp_path / "out") == []


def test_a_lock_whose_owner_was_killed_is_taken_and_goes_with_the_work(tmp_path):
    (tmp_path / ".lock").write_text("1")
    with locked_folder(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
        with pytest.raises(VmfError, match=f"(?s)VMF504.*process {os.getpid()}"), locked_folder(tmp_path):
            pass
        assert (tmp_path / ".lock").exists(), "the lock of the first one stays"
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_old_file(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("cannot mount a small file system here")
    try:
        target = tmp_path / "a.bin"
        target.write_bytes(b"old")
        assert write_too_much(target) == 0
        assert target.read_bytes() == b"old"
        assert names(tmp_path) == ["a.bin"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# kills ----------------------------------------------------------------------------------------------------------------


def payload(k):
    body = np.random.default_rng(k).bytes(500_000)
    return hashlib.sha256(body).digest() + body


def is_complete(data):
    return hashlib.sha256(data[32:]).digest() == data[:32]


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path):
    target = tmp_path / "a.bin"
    payloads = [payload(k) for k in range(4)]
    atomic_write(target, payloads[0])
    delays = np.random.default_rng(0).uniform(0.0, 0.03, size=20)
    interrupted = 0
    for delay in delays:
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(tell, b"!")
            k = 0
            while True:
                k += 1
                atomic_write(target, payloads[k % 4])
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)
        threading.Event().wait(delay)  # the moment of the kill is what is random
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        left = [name for name in names(tmp_path) if name != "a.bin"]
        interrupted += bool(left)
        for name in left:
            assert name.startswith(".vmfseg-")
            (tmp_path / name).unlink()
        data = target.read_bytes()
        assert is_complete(data)
        assert data in payloads
    assert interrupted > 0, "no kill hit a write: the test shows nothing"


# JSON and digests -----------------------------------------------------------------------------------------------------


def test_json_round_trip(tmp_path):
    value = {"b": [1, 2.5, None, True], "a": {"ü": "κ"}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert read_json(tmp_path / "a.json") == value == json.loads(text)
    assert text.endswith("}\n")
    assert "κ" in text


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path, number):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": number})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1,}', b"\xff\xfe\x00", b"[" * 200_000],
    ids=["empty", "cut", "comma", "binary", "deep"],
)
def test_what_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(VmfError, match="VMF301") as caught:
        read_json(tmp_path / "a.json")
    assert caught.value.subject == str(tmp_path / "a.json")
    assert caught.value.exit_code == 4


def test_a_missing_json_file_is_refused(tmp_path):
    with pytest.raises(VmfError, match="VMF301") as caught:
        read_json(tmp_path / "none.json")
    assert caught.value.found == "No such file or directory"


def test_digests(tmp_path):
    data = np.random.default_rng(0).bytes(3_000_000)
    (tmp_path / "a").write_bytes(data)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(data).hexdigest() == sha256_bytes(data[:10], data[10:])
    assert sha256_bytes() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
