# SPDX-License-Identifier: Apache-2.0
"""Bundles and weights that want to run something: none is executed, each is refused by its file."""

from __future__ import annotations

import json
import os
import pickle
import socket
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from vmfseg.bundle.check import inspect_bundle
from vmfseg.bundle.compile import compile_bundle
from vmfseg.bundle.new import new_bundle
from vmfseg.bundle.trust import read_overlay, require_trusted
from vmfseg.cli.main import app
from vmfseg.cli.train_command import train_bundle
from vmfseg.model.weights import read_tensors
from vmfseg.utils import VmfError
from vmfseg.utils.tensor_files import check_weights

RUNNER = CliRunner()
FILES = compile_bundle("vmfnet_mnms")


class Bundle:
    """A good bundle to be made bad, and the file that must never appear."""

    def __init__(self, place: Path) -> None:
        self.root, self.canary = place / "vmfnet_mnms", place / "canary"
        for name, text in FILES.items():
            self.write(name, text)

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


def _module(name: str) -> Callable[[Bundle], None]:
    return lambda bundle: bundle.write(f"{name}.py", f"import os; os.system({bundle.touch!r})")


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


def _metadata_target(bundle: Bundle) -> None:
    bundle.set("metadata.json", **{"x#_target_": "os.system", "x#command": bundle.touch})


def _recipe(old: str, new: str, **changes: object) -> Callable[[Bundle], None]:
    """Return a bundle of ``vmfseg bundle new`` whose recipe and configs agree, but say something else."""

    def change(bundle: Bundle) -> None:
        new_bundle("vmfnet_mnms", bundle.root.parent, ["LV"], 1.0, 64, target_domain="siteC", overwrite=True)
        for path in (bundle.root / "configs").glob("*.json"):
            text = path.read_text().replace(old, json.dumps(new.replace("TOUCH", bundle.touch))[1:-1])
            path.write_text(text)
        metadata = json.loads((bundle.root / "configs" / "metadata.json").read_text())
        bundle.set("metadata.json", vmfseg={**metadata["vmfseg"], **changes})

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


def _manifest(**network: object) -> Callable[[Bundle], None]:
    return lambda bundle: bundle.write("models/manifest.json", json.dumps({"network": network}))


EXECUTED = [  # changes of what a training executes, the file that is named
    pytest.param(_expression("__import__('os').system('TOUCH')"), "train.json", id="import"),
    pytest.param(_expression("open('x', 'w')"), "train.json", id="open"),
    pytest.param(_expression("list(map(os.system, ['TOUCH']))"), "train.json", id="passed on by map"),
    pytest.param(_expression("torch.hub.load('a', 'b')"), "train.json", id="hub"),
    pytest.param(_expression("().__class__.__base__.__subclasses__()"), "train.json", id="subclasses"),
    pytest.param(_expression("(lambda f: f('TOUCH'))(os.system)"), "train.json", id="function"),
    pytest.param(_expression("'{0.__class__}'.format(@network)"), "train.json", id="format"),
    pytest.param(_expression("\uff4f\uff53.system('TOUCH')"), "train.json", id="letters that become os"),
    pytest.param(_expression("list(range(10 ** 9))"), "train.json", id="memory"),
    pytest.param(_expression("print(1, file=open('TOUCH', 'w'))"), "train.json", id="print into a file"),
    pytest.param(
        _expression("torch.distributed.init_process_group('gloo', 'file:/' + '//TOUCH', 1)"), "train.json", id="store"
    ),
    pytest.param(
        _expression("vmfseg.bundle.distributed.first_rank_first('os.system', command='TOUCH')"), "train.json", id="name"
    ),
    pytest.param(_expression("pathlib.Path('LICENSE').replace('x')"), "train.json", id="moves a file"),
    pytest.param(_expression("#\nimport antigravity"), "train.json", id="import behind a comment"),
    pytest.param(_component("os.system", command=_shell), "train.json", id="os.system"),
    pytest.param(_component("exec", source="1"), "train.json", id="exec"),
    pytest.param(_component("run", config_file="x.json"), "train.json", id="run of MONAI by its bare name"),
    pytest.param(_component("instantiate", path="os.system"), "train.json", id="instantiate"),
    pytest.param(_component("torch.load", f="x.pt"), "train.json", id="torch.load"),
    pytest.param(_component("monai.data.PersistentDataset", data=[]), "train.json", id="cache of pickles"),
    pytest.param(_component("vmfseg.utils.atomic_write", path="x"), "train.json", id="our own writer"),
    pytest.param(_component("$os.system"), "train.json", id="target by expression"),
    pytest.param(_component("LoadImaged", keys="image", reader="subprocess.Popen"), "train.json", id="reader"),
    pytest.param(_component("LoadImage", _mode_="callable", args=["touch", "x"]), "train.json", id="callable"),
    pytest.param(_component("SimpleInferer", _requires_="$os.abort()"), "train.json", id="requires"),
    pytest.param(_component("SaveImaged", keys="a", data_root_dir="/data"), "train.json", id="overwrites a scan"),
    pytest.param(_component("SummaryWriter", comment="/../x"), "train.json", id="writes above"),
    pytest.param(lambda b: b.set(output_dir="$@dataset_dir + '/x'"), "train.json", id="output"),
    pytest.param(lambda b: b.set(imports=["$import os as torch"]), "train.json", id="other torch"),
    pytest.param(lambda b: b.set(seed=1), "train.json", id="another value"),
    pytest.param(_macro, "train.json", id="macro"),
    pytest.param(_overlay, "paper.json", id="overlay"),
    pytest.param(lambda b: b.write("configs/paper.json", '{"+output_dir": "/root"}'), "paper.json", id="more output"),
    pytest.param(lambda b: b.set("metadata.json", task="$import antigravity"), "metadata.json", id="metadata"),
    pytest.param(_metadata_target, "metadata.json", id="target in metadata by #"),
    pytest.param(lambda b: b.write("configs/metadata.json", '{"a":' + "[" * 5000), "train.json", id="deep"),
    pytest.param(lambda b: b.write("configs/train.json", "x" * 3_000_000), "train.json", id="large"),
    pytest.param(_logging("StreamHandler", "eval('1')"), "logging.conf", id="logging class"),
    pytest.param(_logging("(sys.stderr,)", "(os.system('TOUCH'),)"), "logging.conf", id="logging arguments"),
    pytest.param(
        _logging("args=(sys.stderr,)", "x=os.system('TOUCH')\nargs=(%(x)s,)"), "logging.conf", id="logging option"
    ),
    pytest.param(
        _logging("[loggers]", "[DEFAULT]\nargs=(__import__('os').system('TOUCH'),)\n[loggers]"),
        "logging.conf", id="logging default",
    ),
    pytest.param(_recipe("siteC", "$__import__('os').system('TOUCH')"), "train.json", id="domain of a recipe"),
    pytest.param(_recipe("LV", "$__import__('os').system('TOUCH')"), "train.json", id="label of a recipe"),
    pytest.param(_recipe("LV", "{BUNDLE}"), "train.json", id="field in a recipe"),
    pytest.param(_recipe("vmfnet_mnms", "a') or b('"), "train.json", id="name of a recipe"),
    pytest.param(_recipe("siteC", "siteC", size=10**9), "train.json", id="size of a recipe"),
    pytest.param(_recipe("siteC", "siteC", size=True), "train.json", id="type in a recipe"),
    pytest.param(_recipe("siteC", "siteC", spacing=float("nan")), "train.json", id="nan in a recipe"),
    pytest.param(_recipe("siteC", "siteC", labels={"LV": 1}), "train.json", id="labels of a recipe"),
    pytest.param(_recipe("siteC", "siteC", overwrite=True), "train.json", id="unknown key of a recipe"),
    pytest.param(_own_module, "scripts/__init__.py", id="module of its own"),
    pytest.param(lambda b: b.write("torch.py", "raise SystemExit"), "torch.py", id="stands for torch"),
    pytest.param(lambda b: b.write("numpy.so", b"ELF"), "numpy.so", id="compiled module"),
    pytest.param(lambda b: b.write(".cache/x.py", "raise SystemExit"), ".cache", id="hidden folder"),
    pytest.param(lambda b: b.write("docs/.x.json", "{}"), "docs/.x.json", id="hidden file"),
    pytest.param(lambda b: b.write("models/x.pkl", pickle.dumps(Call("x"))), "models/x.pkl", id="pickle"),
    pytest.param(_link, "docs/notes.txt", id="link"),
]  # fmt: skip
READ = [  # changes of what is only read, the file that the check names
    pytest.param(_yaml("a: !!python/object/apply:os.system ['TOUCH']"), "extra.yaml", id="yaml object"),
    pytest.param(_yaml("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"), "extra.yaml", id="yaml bomb"),
    pytest.param(_pickle, "models/model.pt", id="pickle as weights"),
    pytest.param(_script, "models/model.pt", id="program as weights"),
    pytest.param(_tampered, "models/model.safetensors", id="changed weights"),
    pytest.param(lambda b: b.write("models/model.onnx", b"x"), "models/model.onnx", id="network without a note"),
    pytest.param(_manifest(_target_="os.system", command="x"), "manifest.json: network::_target_", id="manifest"),
    pytest.param(
        _manifest(_target_="monai.networks.nets.UNet", channels={"_target_": "builtins.eval"}),
        "manifest.json: network::channels::_target_", id="nested in a manifest",
    ),
    pytest.param(
        _manifest(_target_="monai.networks.nets.UNet", channels="$os.abort()"),
        "manifest.json: network::channels", id="expression in a manifest",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "place"), [*EXECUTED, *READ])
def test_the_check_names_the_file_and_executes_nothing(bundle, monkeypatch, change, place):
    monkeypatch.chdir(bundle.root.parent)
    change(bundle)
    before = {path: path.lstat().st_mtime_ns for path in bundle.root.rglob("*")}
    result = RUNNER.invoke(app, ["bundle", "check", str(bundle.root), "--json"])
    assert result.exit_code == 5, result.output
    found = [VmfError(**finding) for finding in json.loads(result.output)[0]["findings"]]
    untrusted = [finding for finding in found if finding.exit_code == 5]
    assert any(place in finding.subject for finding in untrusted), [str(finding) for finding in found]
    assert all(len(finding.render().splitlines()) <= 5 for finding in found)
    assert not bundle.canary.exists()
    assert {path: path.lstat().st_mtime_ns for path in bundle.root.rglob("*")} == before


@pytest.mark.parametrize(("change", "place"), EXECUTED)
def test_training_is_refused_with_one_short_error(bundle, monkeypatch, change, place):
    monkeypatch.chdir(bundle.root.parent)
    change(bundle)
    before = sorted(path for path in bundle.root.rglob("*"))
    for call in (require_trusted, train_bundle):
        with pytest.raises(VmfError) as caught:
            call(str(bundle.root))
        assert caught.value.exit_code == 5
        assert place in caught.value.subject
        assert "--trust" in caught.value.fix
        assert len(caught.value.render().splitlines()) <= 5
    require_trusted(bundle.root, trust=True)
    assert not bundle.canary.exists()
    assert sorted(path for path in bundle.root.rglob("*")) == before


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([_expression("__import__('os').system('TOUCH')"), _metadata_target], id="configs"),
        pytest.param(
            [_logging("[loggers]", "[DEFAULT]\nargs=(__import__('os').system('TOUCH'),)\n[loggers]")], id="logging"
        ),
        pytest.param(
            [_module("usercustomize"), _module("PIL")],
            id="modules",
        ),
    ],
)
def test_the_command_executes_nothing(bundle, changes):
    for change in changes:
        change(bundle)
    done = subprocess.run(
        [sys.executable, "-m", "vmfseg.cli.main", "train", str(bundle.root)],
        cwd=bundle.root.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.strip().splitlines()) <= 5
    assert not bundle.canary.exists()
    assert not (bundle.root / "output").exists()


def test_nothing_is_connected_to(bundle, monkeypatch):
    monkeypatch.chdir(bundle.root.parent)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        store = f"'tcp:/' + '/127.0.0.1:{server.getsockname()[1]}', rank=1, world_size=2"
        _expression(f"torch.distributed.init_process_group('gloo', {store})")(bundle)
        assert RUNNER.invoke(app, ["bundle", "check", str(bundle.root)]).exit_code == 5
        with pytest.raises(VmfError, match="VMF410"):
            train_bundle(str(bundle.root))
        with pytest.raises(BlockingIOError):  # nobody waits to be accepted
            server.accept()


@pytest.mark.parametrize("attack", ["config", "logging"])
def test_the_canary_would_be_there(bundle, attack):
    """The tests above mean nothing if these bundles would not run; a foreign logging.conf is never used at all."""
    call = f"__import__('os').system({bundle.touch!r})"
    logged = attack == "logging"
    bundle.write("configs/train.json", json.dumps({"training": ["$None" if logged else f"${call}"]}))
    if logged:
        bundle.write("configs/logging.conf", FILES["configs/logging.conf"].replace("(sys.stderr,)", f"({call},)"))
    with pytest.raises(VmfError, match="VMF410"):
        train_bundle(str(bundle.root))
    assert not bundle.canary.exists()
    train_bundle(str(bundle.root), trust=True)
    assert bundle.canary.exists() != logged


def test_what_the_layers_give_may_be_trained(bundle):
    require_trusted(bundle.root)
    assert [finding for finding in inspect_bundle(bundle.root) if finding.exit_code == 5] == []
    bundle.write("configs/mine.json", '{"seed": 1}')
    bundle.write("models/.gitkeep", "")
    require_trusted(bundle.root)  # a file that nobody names is not executed
    new_bundle("knee", bundle.root.parent, ["femur (left)", "tibia"], 0.8, 160, target_domain="site C")
    require_trusted(bundle.root.parent / "knee")


OVERLAYS = [
    pytest.param({"seed": 3, "x": {"y": [1, None, "text"]}}, "", id="plain"),
    pytest.param({"kappa": "@seed"}, "", id="reference"),
    pytest.param({"network_def": {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2}}, "", id="network"),
    pytest.param({"x": "$os.abort()"}, "x", id="expression"),
    pytest.param({"x": ["%other.json::x"]}, "x::0", id="macro"),
    pytest.param({"x": "@nothing"}, "x", id="reference to nothing"),
    pytest.param({"x": {"_target_": "os.system", "command": "id"}}, "x::_target_", id="class"),
    pytest.param({"network_def::_target_": "os.system"}, "network_def::_target_", id="edited class"),
    pytest.param({"network_def#_target_": "os.system"}, "network_def::_target_", id="edited class by #"),
    pytest.param({"x": {"y#_target_": "os.system"}}, "x::y::_target_", id="nested #"),
    pytest.param({"network_def::_mode_": "debug"}, "network_def::_mode_", id="debugger"),
]


@pytest.mark.parametrize(("content", "place"), OVERLAYS)
def test_an_overlay_without_trust_is_plain(tmp_path, content, place):
    base = {"seed": 0, "kappa": 1, "network_def": {"_target_": "monai.networks.nets.UNet"}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    assert read_overlay(path, base, trust=True) == content
    if not place:
        assert read_overlay(path, base) == content
        return
    with pytest.raises(VmfError, match="VMF419") as caught:
        read_overlay(path, base)
    assert caught.value.subject.endswith(f": {place}")
    assert caught.value.exit_code == 5


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
    with pytest.raises(VmfError, match="VMF413"):
        check_weights(path)
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
    pytest.param([("vmfnet_mnms/.x/torch.py", b"x")], ".x/torch.py", id="hidden folder"),
    pytest.param([("vmfnet_mnms/docs/.profile", b"x")], ".profile", id="hidden file"),
    pytest.param([("vmfnet_mnms/docs/" + "x" * 300, b"x")], "xxx", id="long name"),
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
    assert result.exit_code != 5, result.output
    assert "not to be trusted" not in result.output
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_damaged_stream_is_named(tmp_path):
    path = _zip(tmp_path / "bundle.zip")
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("vmfnet_mnms/configs/train.json")
    content = bytearray(path.read_bytes())
    start = member.header_offset + 30 + len(member.filename)
    content[start : start + 200] = bytes(255 - value for value in content[start : start + 200])
    path.write_bytes(content)
    result = RUNNER.invoke(app, ["bundle", "check", str(path)])
    assert result.exit_code == 5, result.output
    assert "VMF415" in result.output


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut"], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "bundle.zip").write_bytes(content)
    result = RUNNER.invoke(app, ["bundle", "check", str(tmp_path / "bundle.zip")])
    assert result.exit_code == 5
    assert "must be a zip archive" in result.output
