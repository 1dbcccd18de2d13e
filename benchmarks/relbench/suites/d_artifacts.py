# SPDX-License-Identifier: Apache-2.0
"""Suite D: models, manifests, configs and archives that want to run something, or are not what they say."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.relbench.meeting import Fault, case
from benchmarks.relbench.scans import write_scan
from benchmarks.relbench.suites.c_lists import training, training_scene
from benchmarks.relbench.tools.base import Job, Wanted
from benchmarks.relbench.verdict import Case

__all__ = ["cases", "model_scene", "shared"]

MODELS = Path("vmfnet_mnms/models")
CODE = "__import__('pathlib').Path('canary').touch()"
SEGMENT = Job("own model", ("scan.nii.gz", "-o", "out"), {"verb": "weights", "file": "weights.pt"})


def shared(place: Path) -> Path:
    """Return the folder of models that all cases share."""
    return place.parents[2] / "shared"


def model_scene(place: Path) -> None:
    """A scan, a bundle with its model, and weights of the UNet of plain MONAI."""
    write_scan(place / "scan.nii.gz")
    shutil.copytree(shared(place) / "vmfnet_mnms", place / "vmfnet_mnms")
    shutil.copy(shared(place) / "weights.pt", place / "weights.pt")


class Canary:
    """Unpickled, it leaves a file."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch canary",)


def _weights(
    name: str, threat: str, write: Callable[[Path], object], code: str, cause: str, status: int = 5, pt: bool = True
) -> Case:
    """Replace the weights of vmfseg's model and those of MONAI's network by the same bad file."""

    def damage(place: Path) -> None:
        target = place / MODELS / ("model.pt" if pt else "model.safetensors")
        if pt:
            (place / MODELS / "model.safetensors").unlink()
        write(target)
        write(place / "weights.pt")

    fault = Fault(model_scene, damage, SEGMENT, Wanted(cause, r"model\.(pt|safetensors)|weights\.pt", code, status))
    return case("D", name, threat, fault)


def _manifest(name: str, code: str, cause: str, status: int = 5, **entries: Any) -> Case:
    """Change the manifest of a model, which plain MONAI does not have."""

    def damage(place: Path) -> None:
        path = place / MODELS / "manifest.json"
        content = json.loads(path.read_text())
        for key, value in entries.items():
            old = content[key]
            content[key] = [*old, value] if isinstance(old, list) else {**old, **value}
        path.write_text(json.dumps(content))

    wanted = Wanted(cause, r"manifest\.json|network|preprocessing|model\.", code, status)
    return case("D", name, "T02", Fault(model_scene, damage, Job(SEGMENT.verb, SEGMENT.words, None), wanted))


def _start(name: str, write: Callable[[Path], object], code: str, cause: str, status: int) -> Case:
    """Start a training from bad weights."""
    job = training()
    asked = Job("train", (*job.words, "--init", "weights.pt"), {"verb": "weights", "file": "weights.pt"})
    fault = Fault(
        training_scene,
        lambda place: write(place / "weights.pt"),
        asked,
        Wanted(cause, r"weights\.pt", code, status),
        recovery=False,
    )
    return case("D", name, "T05", fault)


def _config(name: str, damage: Callable[[Path], object], file: str, **plain: Any) -> Case:
    """Ask for the training of a bundle that would run code of its own."""
    asked = Job("train", training("vmfnet_mnms").words, {"verb": "config", "config": "plain/train.json", **plain})
    wanted = Wanted(r"trust|not executed|layers|belong|security|refuse|not allowed|unsafe", file, r"VMF41\d", 5)
    return case("D", name, "T02", Fault(training_scene, damage, asked, wanted, recovery=False))


def _archive(name: str, member: Callable[[], tuple[str | zipfile.ZipInfo, bytes]], cause: str) -> Case:
    def damage(place: Path) -> None:
        (place / "work").mkdir()
        with zipfile.ZipFile(place / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((place / "vmfnet_mnms").rglob("*")):
                archive.write(path, path.relative_to(place))
            archive.writestr(*member())

    asked = Job("check", ("bundle.zip",), {"verb": "unpack", "archive": "bundle.zip"})
    fault = Fault(training_scene, damage, asked, Wanted(cause, r"bundle\.zip", "VMF415", 5), recovery=False)
    return case("D", name, "T03", fault)


def _both(**entries: Any) -> Callable[[Path], object]:
    """Set entries in the configs of both bundles."""

    def damage(place: Path) -> None:
        for file in ("vmfnet_mnms/configs/train.json", "plain/train.json"):
            config = json.loads((place / file).read_text())
            (place / file).write_text(json.dumps({**config, **entries}))

    return damage


def _logging(place: Path) -> None:
    text = (place / "vmfnet_mnms/configs/logging.conf").read_text()
    bad = text.replace("(sys.stderr,)", f"({CODE},)")
    (place / "vmfnet_mnms/configs/logging.conf").write_text(bad)
    (place / "plain/logging.conf").write_text(bad)


def _metadata(place: Path) -> None:
    for file in ("vmfnet_mnms/configs/metadata.json", "plain/metadata.json"):
        path = place / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, "x#_target_": "os.system", "x#command": "touch canary"}))


def _module(place: Path) -> None:
    for root in ("vmfnet_mnms", "plain"):
        (place / root / "scripts").mkdir()
        (place / root / "scripts" / "__init__.py").write_text("import os; os.system('touch canary')")
    config = json.loads((place / "plain/train.json").read_text())
    imports = [*config["imports"], "$import sys; sys.path.insert(0, 'plain'); import scripts"]
    (place / "plain/train.json").write_text(json.dumps({**config, "imports": imports}))


def _tensors(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        """Change the tensors of the file that is there, or of vmfseg's model."""
        import torch
        from safetensors.torch import load_file

        other = path.with_suffix(".safetensors") if path.name != "weights.pt" else path
        if path.exists():
            content = torch.load(path, weights_only=True)
        else:
            content = load_file(other) if other.exists() else {"w": torch.zeros(3)}
        inner = content.get("model", content)
        torch.save({"model": {name: change(value) for name, value in inner.items()}}, path)

    return write


def _foreign(path: Path) -> None:
    import torch

    torch.save({"model": {"some.other.layer": torch.ones(3, 5)}}, path)


def _nan(path: Path) -> None:
    import torch

    torch.save({"model": {"encoder.nan": torch.full((4,), float("nan")), "w": torch.full((4,), float("nan"))}}, path)


def _script(path: Path) -> None:
    import torch

    torch.jit.script(torch.nn.ReLU()).save(str(path))


def _pickled(path: Path) -> None:
    import torch

    torch.save({"model": Canary()}, path)


def _half(path: Path) -> None:
    data = path.read_bytes() if path.exists() else b"\0" * 64
    path.write_bytes(data[: len(data) // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def _link() -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo("vmfnet_mnms/shortcut")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, b"/etc"


def cases() -> list[Case]:
    """Return the 25 cases."""
    unet = {"_target_": "vmfseg.networks.VMFNet"}
    damaged = r"damaged|truncated|not the one|corrupt|central directory|magic|EOF|ran out|incomplete"
    code = "more than tensors|weights.only|unsupported|not allowed|pickle|TorchScript"
    return [
        _weights("pickle-in-pt", "T01", _pickled, "VMF401", code),
        _weights("bare-pickle", "T01", lambda p: p.write_bytes(pickle.dumps(Canary())), "VMF401", code + "|zip|magic"),
        _weights("program-as-weights", "T01", _script, "VMF401", code),
        _weights("header-of-2-to-60", "T04", lambda p: p.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "VMF4(01|12)",
                 damaged + "|header|invalid load key", pt=False),
        _weights("one-bit-changed", "T04", _flip, "VMF412|VMF401", damaged + "|sha256|checksum|CRC", pt=False),
        _weights("half-a-file", "T04", _half, "VMF4(01|12)", damaged + r"|\d+ bytes of tensors instead", pt=False),
        _weights("nan-weights", "T05", _tensors(lambda t: t * float("nan")), "VMF402|VMF412",
                 r"finite|\bNaN\b|not the one"),
        _weights("weights-of-another-network", "T05", _foreign, "VMF306|VMF412",
                 r"\bfits?\b|missing|unexpected|not the one", 4),
        _manifest("target-outside-the-list", "VMF418", "allow|only networks", network={
            "_target_": "os.system", "command": "touch canary"}),
        _manifest("code-as-target", "VMF418", "allow|only networks", network={
            "_target_": "builtins.exec", "object": CODE}),
        _manifest("argument-that-writes", "VMF418", "allow|only networks|write", preprocessing={
            "_target_": "SaveClassificationd", "keys": "image", "output_dir": str(MODELS),
            "filename": "model.safetensors"}),
        _manifest("nested-builder", "VMF418", "allow|only networks", network={
            **unet, "channels": {"_target_": "builtins.eval", "source": CODE}}),
        _manifest("expression", "VMF418|VMF322", "allow|only networks|evaluat|plain (value|argument)", 4, network={
            **unet, "channels": f"${CODE}"}),
        _manifest("huge-network", "VMF32[23]|VMF306", r"too large|too many|memory|parameters|\bfits?\b", 4, network={
            **unet, "channels": [10**7] * 3}),
        _start("init-from-foreign-weights", _foreign, "VMF351", r"\bfits?\b|missing|unexpected", 4),
        _start("init-from-a-pickle", _pickled, "VMF401", code, 5),
        _start("init-from-nan", _nan, "VMF351|VMF402", r"finite|\bfits?\b|missing|unexpected", 4),
        _config("expression-in-config", _both(device=f"${CODE} or 'cpu'"), r"train\.json"),
        _config("os-system-in-config", _both(run={"_target_": "os.system", "command": "touch canary"}), r"train\.json"),
        _config("code-in-logging-conf", _logging, r"logging\.conf", logging_file="plain/logging.conf"),
        _config("target-in-metadata", _metadata, r"metadata\.json", meta_file="plain/metadata.json"),
        _config("module-of-its-own", _module, r"scripts"),
        _archive("zip-slip", lambda: ("../escaped.txt", b"x"), r"escaped\.txt|outside|unsafe|traversal"),
        _archive("zip-link", _link, r"link"),
        _archive("zip-bomb", lambda: ("vmfnet_mnms/docs/zero.txt", bytes(60_000_000)), r"become|large|bomb|ratio"),
    ]  # fmt: skip
