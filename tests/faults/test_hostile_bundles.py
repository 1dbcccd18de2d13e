# SPDX-License-Identifier: Apache-2.0
"""Bundles and weights that want to run something: none is executed, each is refused by its key or file."""

from __future__ import annotations

import json
import os
import pickle
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from vmfseg.bundle import inspect_bundle, require_trusted
from vmfseg.bundle.compile import compile_bundle, write_files
from vmfseg.cli.main import app
from vmfseg.cli.train import train_bundle
from vmfseg.model.tensors import read_tensors
from vmfseg.utils import VmfError
from vmfseg.utils.weights import check_weights

RUNNER = CliRunner()
FILES = compile_bundle("vmfnet_mnms")


class Bundle:
    """A good bundle to be made bad, and the file that must never appear."""

    def __init__(self, place: Path) -> None:
        self.root, self.canary = place / "vmfnet_mnms", place / "canary"
        write_files(FILES, self.root)

    @property
    def touch(self) -> str:
        """Shell command that leaves the canary."""
        return f"touch {self.canary}"

    def set(self, file: str = "train.json", /, **entries: object) -> None:
        """Set entries of a config, ``__`` in a name standing for the ``::`` between the parts of an id."""
        path = self.root / "configs" / file
        config = json.loads(path.read_text())
        for key, value in entries.items():
            *parents, last = key.split("__")
            node = config
            for parent in parents:
                node = node[parent]
            node[last] = value
        path.write_text(json.dumps(config))

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file of the bundle."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path)


class Call:
    """Unpickled, it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def _component(target: str, **arguments: object) -> Callable[[Bundle], None]:
    def change(bundle: Bundle) -> None:
        filled = {key: value(bundle) if callable(value) else value for key, value in arguments.items()}
        bundle.set(inferer={"_target_": target, **filled})

    return change


def _expression(text: str) -> Callable[[Bundle], None]:
    return lambda bundle: bundle.set(device="$" + text.replace("TOUCH", bundle.touch))


def _shell(bundle: Bundle) -> str:
    return bundle.touch


def _macro(bundle: Bundle) -> None:
    (bundle.root.parent / "other.json").write_text(
        json.dumps({"x": {"_target_": "os.system", "command": bundle.touch}})
    )
    bundle.set(inferer=f"%{bundle.root.parent / 'other.json'}::x")


def _own_module(bundle: Bundle) -> None:
    bundle.write("scripts/__init__.py", f"import os; os.system({bundle.touch!r})")
    bundle.set(imports=["$import scripts"])


def _overlay(bundle: Bundle) -> None:
    bundle.write("configs/paper.json", json.dumps({"inferer::_target_": "os.system", "inferer#command": bundle.touch}))


def _yaml(text: str) -> Callable[[Bundle], None]:
    return lambda bundle: bundle.write("configs/extra.yaml", text.replace("TOUCH", bundle.touch))


def _logging(old: str, new: str) -> Callable[[Bundle], None]:
    def change(bundle: Bundle) -> None:
        text = FILES["configs/logging.conf"]
        assert old in text
        bundle.write("configs/logging.conf", text.replace(old, new.replace("TOUCH", bundle.touch)))

    return change


def _link(bundle: Bundle) -> None:
    (bundle.root / "docs" / "notes.txt").symlink_to("/etc/hostname")


def _pickle(bundle: Bundle) -> None:
    torch.save({"w": Call(bundle.touch)}, bundle.root / "models" / "model.pt")


def _script(bundle: Bundle) -> None:
    torch.jit.script(torch.nn.ReLU()).save(bundle.root / "models" / "model.pt")


def _tampered(bundle: Bundle) -> None:
    path = bundle.root / "models" / "model.safetensors"
    save_file({"w": torch.zeros(4)}, path)
    bundle.write("models/manifest.json", json.dumps({"sha256": {"model.safetensors": "0" * 64}}))


HOSTILE = [  # how the bundle is made bad, where the refusal must point to
    pytest.param(_expression("__import__('os').system('TOUCH')"), "train.json: device", id="import"),
    pytest.param(_expression("eval('1')"), "train.json: device", id="eval"),
    pytest.param(_expression("open('x', 'w')"), "train.json: device", id="open"),
    pytest.param(_expression("os.system('TOUCH')"), "train.json: device", id="os of the imports"),
    pytest.param(_expression("list(map(os.system, ['TOUCH']))"), "train.json: device", id="passed on by map"),
    pytest.param(_expression("torch.os.system('TOUCH')"), "train.json: device", id="os of torch"),
    pytest.param(_expression("torch.hub.load('a', 'b')"), "train.json: device", id="hub"),
    pytest.param(_expression("().__class__.__base__.__subclasses__()"), "train.json: device", id="subclasses"),
    pytest.param(_expression("[c for c in [1] if c.__class__]"), "train.json: device", id="loop"),
    pytest.param(_expression("(lambda f: f('TOUCH'))(os.system)"), "train.json: device", id="function"),
    pytest.param(_expression("getattr(os, 'sys' + 'tem')('TOUCH')"), "train.json: device", id="getattr"),
    pytest.param(_expression("'{0.__class__}'.format(@network)"), "train.json: device", id="format"),
    pytest.param(_expression("@network.load_state_dict(@x)"), "train.json: device", id="method"),
    pytest.param(_expression("\uff4f\uff53.system('TOUCH')"), "train.json: device", id="letters that become os"),
    pytest.param(_expression("'a' * 1000000000"), "train.json: device", id="memory"),
    pytest.param(
        _expression("vmfseg.bundle.distributed.first_rank_first('os.system', command='TOUCH')"),
        "train.json: device",
        id="a function that calls by name",
    ),
    pytest.param(_expression("pathlib.Path('LICENSE').replace('x')"), "train.json: device", id="moves a file"),
    pytest.param(_expression("@evaluation::stage.run('x')"), "train.json: device", id="runs elsewhere"),
    pytest.param(_expression("@evaluation::stage.run(folder='x')"), "train.json: device", id="runs elsewhere by name"),
    pytest.param(_expression("list(map(@evaluation::stage.run, ['x']))"), "train.json: device", id="run passed on"),
    pytest.param(_expression("#\nimport antigravity"), "train.json: device", id="import behind a comment"),
    pytest.param(_component("os.system", command=_shell), "inferer::_target_", id="os.system"),
    pytest.param(_component("subprocess.run", args=_shell, shell=True), "inferer::_target_", id="subprocess"),
    pytest.param(_component("exec", source="1"), "inferer::_target_", id="exec"),
    pytest.param(_component("run", config_file="x.json"), "inferer::_target_", id="run of MONAI by its bare name"),
    pytest.param(_component("monai.bundle.ConfigWorkflow", config_file="x"), "inferer::_target_", id="workflow"),
    pytest.param(_component("instantiate", path="os.system"), "inferer::_target_", id="instantiate"),
    pytest.param(_component("torch.load", f="x.pt"), "inferer::_target_", id="torch.load"),
    pytest.param(_component("numpy.load", file="x", allow_pickle=True), "inferer::_target_", id="numpy.load"),
    pytest.param(_component("monai.apps.download_url", url="x"), "inferer::_target_", id="download"),
    pytest.param(_component("monai.data.PersistentDataset", data=[]), "inferer::_target_", id="cache of pickles"),
    pytest.param(_component("monai.transforms.io.array.Path"), "inferer::_target_", id="class from elsewhere"),
    pytest.param(_component("vmfseg.utils.atomic_write", path="x"), "inferer::_target_", id="our own writer"),
    pytest.param(_component("@dataset"), "inferer::_target_", id="target by reference"),
    pytest.param(_component("$os.system"), "inferer::_target_", id="target by expression"),
    pytest.param(_component("LoadImaged", keys="image", reader="subprocess.Popen"), "inferer::reader", id="reader"),
    pytest.param(
        _component("vmfseg.bundle.distributed.first_rank_first", call="os.system", command=_shell),
        "inferer::call",
        id="call",
    ),
    pytest.param(_component("LoadImage", _mode_="callable", args=["touch", "x"]), "inferer::_mode_", id="callable"),
    pytest.param(_component("SimpleInferer", _mode_="debug"), "inferer::_mode_", id="debug"),
    pytest.param(_component("SimpleInferer", _requires_="$os.abort()"), "inferer::_requires_", id="requires"),
    pytest.param(_component("HoVerNet", pretrained_url="x"), "inferer::pretrained_url", id="pretrained"),
    pytest.param(_component("SaveImaged", keys="a", output_dir="/root"), "inferer::output_dir", id="writes elsewhere"),
    pytest.param(
        _component("vmfseg.handlers.HistoryHandler", path=".bashrc"), "inferer::path", id="writes into a home folder"
    ),
    pytest.param(
        _component("SaveImaged", keys="a", output_dir="@output_dir", output_postfix="/../../x"),
        "inferer::output_postfix",
        id="writes above",
    ),
    pytest.param(
        _component("SaveImaged", keys="a", output_name_formatter="$lambda m, s: {'subject': '../x', 'idx': 0}"),
        "inferer::output_name_formatter",
        id="names files as it likes",
    ),
    pytest.param(lambda b: b.set(output_dir="$@dataset_dir + '/x'"), "train.json: output_dir", id="output"),
    pytest.param(
        lambda b: b.write("configs/paper.json", '{"+output_dir": "/root"}'),
        "paper.json: +output_dir",
        id="more output",
    ),
    pytest.param(
        lambda b: b.set(bundle_root="$vmfseg.bundle.find_root('other')"),
        "train.json: bundle_root",
        id="other bundle",
    ),
    pytest.param(lambda b: b.set(phantom={"subjects": "/../../x"}), "train.json: phantom::subjects", id="phantom"),
    pytest.param(lambda b: b.set(imports=["$import os as torch"]), "train.json: imports::0", id="other torch"),
    pytest.param(lambda b: b.set(x="http://example.org/x"), "train.json: x", id="address"),
    pytest.param(lambda b: b.set(**{"a'] or 1 or x['": 1}), "train.json: a", id="key"),
    pytest.param(lambda b: b.set(x={"y": "$@::z", "z": 1}), "train.json: x::y", id="relative"),
    pytest.param(lambda b: b.set("metadata.json", task="$import antigravity"), "metadata.json: task", id="metadata"),
    pytest.param(_macro, "train.json: inferer", id="macro"),
    pytest.param(_own_module, "scripts/__init__.py", id="module of its own"),
    pytest.param(_overlay, "paper.json: inferer::_target_", id="overlay"),
    pytest.param(_yaml("a: !!python/object/apply:os.system ['TOUCH']"), "extra.yaml, line 1", id="yaml object"),
    pytest.param(_yaml("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"), "extra.yaml, line 2", id="yaml bomb"),
    pytest.param(
        lambda b: b.write("configs/deep.json", '{"a":' + "[" * 5000 + "]" * 5000 + "}"), "deep.json", id="deep"
    ),
    pytest.param(lambda b: b.write("configs/large.json", '{"a": "' + "x" * 3_000_000 + '"}'), "large.json", id="large"),
    pytest.param(_logging("StreamHandler", "eval('1')"), "[handler_console] class", id="logging class"),
    pytest.param(_logging("(sys.stderr,)", "(os.system('TOUCH'),)"), "[handler_console] args", id="logging args"),
    pytest.param(lambda b: b.write("torch.py", "raise SystemExit"), "torch.py", id="stands for torch"),
    pytest.param(lambda b: b.write("models/x.pkl", pickle.dumps(Call("x"))), "models/x.pkl", id="pickle"),
    pytest.param(_link, "docs/notes.txt", id="link"),
    pytest.param(_pickle, "models/model.pt", id="pickle as weights"),
    pytest.param(_script, "models/model.pt", id="program as weights"),
    pytest.param(_tampered, "models/model.safetensors", id="changed weights"),
    pytest.param(lambda b: b.write("models/model.onnx", b"x"), "models/model.onnx", id="network without a note"),
]


@pytest.mark.parametrize(("change", "place"), HOSTILE)
def test_a_hostile_bundle_is_refused_by_name_and_nothing_runs(bundle, monkeypatch, change, place):
    monkeypatch.chdir(bundle.root.parent)
    change(bundle)
    before = sorted(path for path in bundle.root.rglob("*"))
    result = RUNNER.invoke(app, ["bundle", "check", str(bundle.root), "--json"])
    assert result.exit_code == 5
    found = [VmfError(**finding) for finding in json.loads(result.output)[0]["findings"]]
    untrusted = [finding for finding in found if finding.exit_code == 5]
    assert any(place in finding.subject for finding in untrusted), [str(finding) for finding in found]
    assert all(len(finding.render().splitlines()) <= 5 for finding in found)
    with pytest.raises(VmfError) as caught:
        train_bundle(str(bundle.root))
    assert caught.value.exit_code == 5
    assert not bundle.canary.exists()
    assert sorted(path for path in bundle.root.rglob("*")) == before


def test_the_canary_would_be_there(bundle):
    """The tests above mean nothing if these bundles would not run."""
    bundle.set(training=[f"$__import__('os').system({bundle.touch!r})"])
    with pytest.raises(VmfError, match="VMF410"):
        train_bundle(str(bundle.root))
    assert not bundle.canary.exists()
    train_bundle(str(bundle.root), trust=True)
    assert bundle.canary.exists()


def test_a_good_bundle_passes(bundle):
    assert inspect_bundle(bundle.root) == []
    require_trusted(bundle.root)


def _safetensors(header: object, data: bytes = b"\0" * 16, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


TENSOR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HEADERS = [
    pytest.param(_safetensors({"a": TENSOR}, length=2**60), "a header of", id="length"),
    pytest.param(b"\1\2", "a header of", id="short"),
    pytest.param(_safetensors(b"{oops}"), "no JSON", id="no JSON"),
    pytest.param(_safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(TENSOR).encode(),) * 2)), "twice", id="double"),
    pytest.param(_safetensors([1]), "no object", id="no object"),
    pytest.param(_safetensors({"a": {**TENSOR, "shape": [5]}}), "for shape [5]", id="shape"),
    pytest.param(_safetensors({"a": {**TENSOR, "shape": [-4]}}), "the shape [-4]", id="negative"),
    pytest.param(_safetensors({"a": {**TENSOR, "shape": [2**62, 4]}}), "for shape", id="overflow"),
    pytest.param(_safetensors({"a": {**TENSOR, "dtype": "F31"}}), "the type F31", id="type"),
    pytest.param(_safetensors({"a": {**TENSOR, "data_offsets": [8, 24]}}), "begins at byte 8", id="gap"),
    pytest.param(_safetensors({"a": TENSOR, "b": TENSOR}), "begins at byte 0", id="overlap"),
    pytest.param(_safetensors({"a": TENSOR}, data=b"\0" * 20), "20 bytes of tensors instead of 16", id="rest"),
    pytest.param(_safetensors({"a": TENSOR}, data=b"\0" * 3), "3 bytes of tensors instead of 16", id="cut"),
    pytest.param(_safetensors({"a": 7}), "the entry 7", id="no entry"),
]


@pytest.mark.parametrize(("content", "problem"), HEADERS)
def test_a_tampered_header_is_refused(tmp_path, content, problem):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(VmfError, match="VMF413") as caught:
        check_weights(path)
    assert problem in caught.value.found
    with pytest.raises(VmfError, match="VMF4"):
        read_tensors(path)


def test_weights_of_torch_and_safetensors_pass(tmp_path):
    tensors = {"a": torch.zeros(4), "b": torch.ones(2, 3, dtype=torch.int64), "c": torch.zeros(0, dtype=torch.float16)}
    save_file(tensors, tmp_path / "model.safetensors")
    check_weights(tmp_path / "model.safetensors")
    torch.save(torch.nn.BatchNorm2d(3).state_dict(), tmp_path / "model.pt")
    check_weights(tmp_path / "model.pt")
    torch.save({"model": tensors, "epoch": 3, "p": torch.nn.Parameter(torch.zeros(2))}, tmp_path / "more.pt")
    check_weights(tmp_path / "more.pt")


@pytest.mark.parametrize("protocol", [0, 2, 4], ids=lambda number: f"protocol {number}")
def test_a_pickle_is_never_run(tmp_path, protocol):
    canary = tmp_path / "canary"
    path = tmp_path / "model.pt"
    torch.save({"w": Call(f"touch {canary}")}, path, pickle_protocol=protocol)
    with pytest.raises(VmfError, match="VMF413") as caught:
        check_weights(path)
    assert "system" in caught.value.found
    with pytest.raises(VmfError, match="VMF401"):
        read_tensors(path)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Call(f"touch {canary}"), protocol))
    with pytest.raises(VmfError, match=r"VMF413.*\n.*plain\.pt"):
        check_weights(tmp_path / "plain.pt")
    assert not canary.exists()


def _zip(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(f"vmfnet_mnms/{name}", content)
        for name, data in members:
            archive.writestr(name, data)
    return path


def _special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    return info


ARCHIVES = [
    pytest.param([("../out.txt", b"x")], "../out.txt", id="slip"),
    pytest.param([("vmfnet_mnms/../../out.txt", b"x")], "out.txt", id="slip inside"),
    pytest.param([("/tmp/out.txt", b"x")], "/tmp/out.txt", id="absolute"),
    pytest.param([("a\\..\\out.txt", b"x")], "out.txt", id="backslash"),
    pytest.param([("C:/out.txt", b"x")], "C:/out.txt", id="drive"),
    pytest.param([(_special("vmfnet_mnms/link", stat.S_IFLNK), b"/etc")], "link", id="link"),
    pytest.param([(_special("vmfnet_mnms/dev", stat.S_IFCHR), b"")], "dev", id="device"),
    pytest.param([("vmfnet_mnms/license", b"x")], "license", id="two names of one file"),
    pytest.param([("vmfnet_mnms/docs/zero.txt", bytes(30_000_000))], "become 30000000", id="bomb"),
    pytest.param([("vmfnet_mnms/torch.py", b"x")], "torch.py", id="program"),
]


@pytest.mark.parametrize(("members", "place"), ARCHIVES)
def test_a_hostile_archive_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, members, place):
    monkeypatch.chdir(tmp_path)
    path = _zip(tmp_path / "bundle.zip", *members)
    result = RUNNER.invoke(app, ["bundle", "check", str(path)])
    assert result.exit_code == 5, result.output
    assert place in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["bundle.zip"]
    assert not (tmp_path.parent / "out.txt").exists()


def test_a_good_archive_passes_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "unpacked"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "unpacked").mkdir()
    result = RUNNER.invoke(app, ["bundle", "check", str(_zip(tmp_path / "bundle.zip"))])
    assert result.exit_code == 0, result.output
    assert "good" in result.output
    assert not list((tmp_path / "unpacked").iterdir())


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut"], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "bundle.zip").write_bytes(content)
    result = RUNNER.invoke(app, ["bundle", "check", str(tmp_path / "bundle.zip")])
    assert result.exit_code == 5
    assert "must be a zip archive" in result.output
