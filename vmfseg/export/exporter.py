# SPDX-License-Identifier: Apache-2.0
"""The network as a file for other runtimes, compared with the original before it gets its name."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.data import save_net_with_metadata

from vmfseg.export.int8 import quantize
from vmfseg.model.backends import OnnxBackend, OpenVINOBackend
from vmfseg.model.deploy import Explained, ExplainedNetwork, deploy, run_batch
from vmfseg.model.probe import guard_int8
from vmfseg.model.spec import BundleSpec
from vmfseg.model.tensors import fill_network, read_tensors
from vmfseg.networks import VMFNet
from vmfseg.utils import (
    VmfError,
    atomic_path,
    check_choice,
    library_versions,
    read_json,
    sha256_file,
    torch_rng,
    write_json,
)
from vmfseg.utils.io import StrPath
from vmfseg.utils.packages import require_package

__all__ = ["FORMATS", "ExportReport", "calibration_slices", "export_bundle"]

#: Formats by name, with the file that each gives.
FORMATS = {"onnx": "model.onnx", "torchscript": "model.ts", "torch-export": "model.pt2", "openvino": "model.xml"}

#: How far logits of an export may differ from those of torch, as a share of their largest magnitude.
TOLERANCE = 1e-4
#: Dice that int8 labels must reach against float32 labels.
INT8_DICE = 0.95
_SLICES = 16


@dataclass(frozen=True)
class ExportReport:
    """How an export compares with the network in torch.

    Attributes:
        path: the file.
        format: see :data:`FORMATS`.
        slices: how many slices were compared.
        real: whether they were source-validation slices of the bundle; else noise.
        max_logit_difference: largest absolute difference of logits.
        max_logit: largest magnitude of logits, for comparison.
        equal_labels: share of pixels with the same label.
        dice: against the labels of torch, mean over foreground classes that occur; ``None`` where none does.
        int8: whether layers are in 8 bits.
    """

    path: str
    format: str
    slices: int
    real: bool
    max_logit_difference: float
    max_logit: float
    equal_labels: float
    dice: float | None
    int8: bool = False


def export_bundle(
    bundle: StrPath,
    to: str = "onnx",
    output: StrPath | None = None,
    *,
    int8: bool = False,
    checkpoint: StrPath | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Export the network of a bundle, with batch norm folded and what only training needs left out.

    ONNX and OpenVINO files have three outputs, ``pred`` (logits), ``activations`` and ``log_likelihood``, and take any
    number of slices; TorchScript and ``torch.export`` files return the logits, as MONAI's tools expect. The file gets
    its name only if it agrees with torch on source-validation slices of the bundle (or on noise, where it has none).
    Beside it, ``<file>.json`` says of which weights it was made, how slices are prepared, and how the comparison went.

    Args:
        bundle: folder of the bundle, or a name below ``bundles``.
        to: see :data:`FORMATS`.
        output: the file; default beside the weights, where ``vmfseg segment --backend`` looks for it.
        int8: quantize to 8 bits (OpenVINO only), calibrated on one half of the bundle's slices and compared on the
            other.
        checkpoint: other weights than those below ``models``.
        overwrite: replace an existing file.

    Raises:
        ValueError: another format, or int8 elsewhere than in OpenVINO.
        VmfError: VMF503 the file exists, VMF530 a package is missing, VMF531 int8 does not run here, VMF339 the export
            differs, VMF340 no slices to calibrate on; see also :class:`BundleSpec`.
    """
    check_choice("to", to, FORMATS)
    if int8 and to != "openvino":
        raise ValueError(f"to must be openvino for int8, got {to}. Leave int8 out for other formats.")
    spec = BundleSpec.load(bundle, checkpoint)
    name = "model_int8.xml" if int8 else FORMATS[to]
    target = spec.weights.with_name(name) if output is None else Path(output).expanduser()
    if target.exists() and not overwrite:
        raise VmfError(
            "VMF503", subject=str(target), rule="the output exists already", fix="pass --overwrite or choose another -o"
        )
    network = spec.build_network()
    fill_network(network, read_tensors(spec.weights), spec.weights)
    slices, real = calibration_slices(spec, None if int8 else _SLICES)
    if int8 and (not real or len(slices) < 2):
        raise VmfError(
            "VMF340",
            subject=str(spec.weights.with_name("calibration.safetensors")),
            rule="int8 needs slices of source validation to calibrate on",
            found="none with these weights",
            fix="train the bundle with its calibration stage, or export without --int8",
        )
    deployed: Any = deploy(network)
    ready = deployed.to(memory_format=torch.contiguous_format)  # other runtimes choose their own layout
    with tempfile.TemporaryDirectory(prefix="vmfseg-export-") as folder:
        made = Path(folder) / target.with_suffix(Path(FORMATS[to]).suffix).name
        with _quiet():
            runner = _WRITERS[to](ready, spec, slices, made)
            if int8:
                runner, slices = _to_int8(made, slices[::2]), slices[1::2]  # judged on what it was not fitted to
        report = _compare(network, runner, slices, real, target, to, int8)
        _check(report)
        _publish(made, target, overwrite)
    note = {
        "format": "vmfseg-export-1",
        "bundle": spec.name,
        "weights_sha256": sha256_file(spec.weights),
        "labels": {str(value): label for value, label in spec.labels.items()},
        "preprocessing": {
            "slices": "slice axis last, in-plane axes to the right and to the front (see vmfseg.transforms)",
            "pixdim_mm": spec.space.get("pixdim", 1.2),
            "size": list(spec.image_size),
            "normalize": spec.space.get("normalize", "slice"),
            "percentiles": list(spec.space.get("percentiles", (0.5, 99.5))),
            "postprocessing": "sigmoid, back to the input's grid by linear interpolation, argmax",
        },
        "parity": {**asdict(report), "path": target.name},
        "versions": library_versions(),
    }
    write_json(target.with_name(target.name + ".json"), note)
    return report


def calibration_slices(spec: BundleSpec, count: int | None = _SLICES) -> tuple[torch.Tensor, bool]:
    """Return slices as the network sees them, ``B1HW``, and whether they are the bundle's own or noise.

    Args:
        spec: of the bundle; its slices lie in ``calibration.safetensors`` beside the weights.
        count: how many at most; ``None`` for all.
    """
    file = spec.weights.with_name("calibration.safetensors")
    size = spec.image_size
    if file.is_file():
        stored = read_tensors(file).get("slices")
        if stored is not None and stored.ndim == 4 and tuple(stored.shape[1:]) == (1, *size) and len(stored):
            chosen = torch.linspace(0, len(stored) - 1, min(count or len(stored), len(stored))).round().long()
            return stored[chosen].float() / 255.0, True
    generator = torch_rng(0, "export", "noise")
    coarse = torch.rand(4, 1, max(2, size[0] // 8), max(2, size[1] // 8), generator=generator)
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear"), False


def _write_onnx(network: VMFNet, spec: BundleSpec, slices: torch.Tensor, path: Path) -> Callable[..., Explained]:
    for package in ("onnx", "onnxscript"):
        require_package(package)
    explained = ExplainedNetwork(network).eval()
    torch.onnx.export(
        explained,
        (slices[:2],),
        str(path),
        dynamo=True,
        external_data=False,
        input_names=["image"],
        output_names=["pred", "activations", "log_likelihood"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}},
        verbose=False,
    )
    return OnnxBackend(path, plain=True)  # what is judged is the file, not what this machine makes of it


def _write_openvino(network: VMFNet, spec: BundleSpec, slices: torch.Tensor, path: Path) -> Callable[..., Explained]:
    openvino = require_package("openvino")
    onnx = path.with_name("openvino.onnx")
    _write_onnx(network, spec, slices, onnx)
    # by default weights would be stored in 16 bits
    openvino.save_model(openvino.convert_model(str(onnx)), str(path), compress_to_fp16=False)
    onnx.unlink()
    return OpenVINOBackend(path)


def _write_torchscript(network: VMFNet, spec: BundleSpec, slices: torch.Tensor, path: Path) -> Callable[..., Explained]:
    scripted: Any = torch.jit.script(network)
    metadata = read_json(spec.root / "configs" / "metadata.json")
    save_net_with_metadata(scripted, str(path), meta_values=metadata)
    return _plain(torch.jit.load(str(path)))


def _write_torch_export(
    network: VMFNet, spec: BundleSpec, slices: torch.Tensor, path: Path
) -> Callable[..., Explained]:
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}, "return_parts": None}
    program = torch.export.export(network, (slices[:2], False), dynamic_shapes=shapes)
    torch.export.save(program, str(path))
    loaded = torch.export.load(str(path)).module()
    return _plain(lambda batch: loaded(batch, False))


_WRITERS: dict[str, Callable[[VMFNet, BundleSpec, torch.Tensor, Path], Callable[..., Explained]]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "torchscript": _write_torchscript,
    "torch-export": _write_torch_export,
}


def _to_int8(path: Path, slices: torch.Tensor) -> Callable[..., Explained]:
    quantize(path, slices)
    guard_int8(path)
    return OpenVINOBackend(path)


def _plain(call: Callable[[torch.Tensor], Any]) -> Callable[..., Explained]:
    def run(batch: torch.Tensor) -> Explained:
        with torch.no_grad():
            return Explained(call(batch), torch.empty(0), torch.empty(0))

    return run


def _compare(
    network: VMFNet,
    runner: Callable[..., Explained],
    slices: torch.Tensor,
    real: bool,
    target: Path,
    to: str,
    int8: bool,
) -> ExportReport:
    plain: Any = deploy(network)
    reference = ExplainedNetwork(plain)
    wanted = torch.cat([run_batch(reference, batch).logits for batch in slices.split(4)])
    given = torch.cat([runner(batch).logits for batch in slices.split(3)])
    labels, others = wanted.argmax(dim=1), given.argmax(dim=1)
    overlaps = []
    for value in range(1, wanted.shape[1]):
        one, other = labels == value, others == value
        if bool(one.any()):
            overlaps.append(2 * float((one & other).sum()) / float(one.sum() + other.sum()))
    return ExportReport(
        path=str(target),
        format=to,
        slices=len(slices),
        real=real,
        max_logit_difference=float((wanted - given).abs().max()),
        max_logit=float(wanted.abs().max()),
        equal_labels=float((labels == others).float().mean()),
        dice=sum(overlaps) / len(overlaps) if overlaps else None,
        int8=int8,
    )


def _check(report: ExportReport) -> None:
    if report.int8:
        good = report.dice is None or report.dice >= INT8_DICE
        found = f"Dice {report.dice:.3f} against float32 labels, at least {INT8_DICE} is wanted" if report.dice else ""
    else:
        good = report.max_logit_difference <= TOLERANCE * max(1.0, report.max_logit)
        found = f"logits up to {report.max_logit_difference:.2g} apart"
    if not good:
        raise VmfError(
            "VMF339",
            subject=report.path,
            rule="the export must agree with the network; nothing was written",
            found=found,
            fix="export without --int8" if report.int8 else "report it with the versions of torch and the runtime",
        )


def _publish(made: Path, target: Path, overwrite: bool) -> None:
    """Move the files into place, what a name refers to before the name itself."""
    for file in sorted(made.parent.iterdir(), key=lambda f: f.suffix == made.suffix):
        place = target.with_suffix(file.suffix)
        with atomic_path(place, overwrite=overwrite or file.suffix != made.suffix) as temporary:
            shutil.copyfile(file, temporary)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' chatter off the terminal; what matters comes as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
