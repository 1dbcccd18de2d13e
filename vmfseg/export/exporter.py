# SPDX-License-Identifier: Apache-2.0
"""Write the network of a model for other runtimes and compare it with the original."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.data import save_net_with_metadata

from vmfseg.export.int8 import quantize
from vmfseg.model.artifact import Model
from vmfseg.model.backends import OnnxBackend, OpenVINOBackend
from vmfseg.model.deploy import Explained, deploy, explained_network, run_batch
from vmfseg.model.probe import guard_int8
from vmfseg.model.shelves import INSTALLED, output_folder
from vmfseg.model.ship import SHIPPED_FILES
from vmfseg.model.weights import read_tensors
from vmfseg.networks import VMFNet
from vmfseg.utils import (
    VmfError,
    check_choice,
    read_json,
    sha256_file,
    torch_rng,
    write_json,
)
from vmfseg.utils.io import StrPath, copy_file, refuse_existing
from vmfseg.utils.manifest import library_versions
from vmfseg.utils.packages import require_package

__all__ = ["FORMATS", "ExportReport", "calibration_slices", "export_bundle"]

#: Formats by name, with the file that each gives.
FORMATS = {"onnx": "model.onnx", "torchscript": "model.ts", "torch-export": "model.pt2", "openvino": "model.xml"}

#: How far logits of an export may differ from those of torch, as a share of their largest magnitude.
TOLERANCE = 1e-4
#: Dice that int8 labels must reach against float32 labels.
INT8_DICE = 0.95
_SLICES = 16
Runner = Callable[..., Explained]


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
    trust: bool = False,
) -> ExportReport:
    """Export the network of a trained model, with batch norm folded and what only training needs left out.

    ONNX and OpenVINO files have the output ``pred`` (logits) and, for a network with kernels, ``activations`` and
    ``log_likelihood``; they take any number of slices. TorchScript and ``torch.export`` files return the logits, as
    MONAI's tools expect. The file gets its name only if it agrees with torch on source-validation slices of the bundle
    (or on noise, where it has none). Beside it, ``<file>.json`` says of which weights it was made, how slices are
    prepared, and how the comparison went.

    Args:
        bundle: folder of the bundle or of a run, or the name of a bundle.
        to: see :data:`FORMATS`.
        output: the file; default beside the weights, where ``vmfseg segment --backend`` looks for it. A model of the
            installed package is copied to ``runs/BUNDLE_shipped/models`` first, the place for ``--backend`` then.
        int8: quantize to 8 bits (OpenVINO only), calibrated on one half of the bundle's slices and compared on the
            other.
        checkpoint: other weights than those below ``models``.
        overwrite: replace an existing file.
        trust: see :meth:`vmfseg.model.Model.load`.

    Raises:
        ValueError: another format, or int8 elsewhere than in OpenVINO.
        VmfError: VMF503 the file exists, VMF530 a package is missing, VMF531 int8 does not run here, VMF339 the export
            differs, VMF340 no slices to calibrate on, VMF356 the format cannot hold the network; see also
            :meth:`vmfseg.model.Model.load`.
    """
    check_choice("to", to, FORMATS)
    if int8 and to != "openvino":
        raise ValueError(f"to must be openvino for int8, got {to}. Leave int8 out for other formats.")
    model = Model.load(bundle, checkpoint, trust=trust)
    name = "model_int8.xml" if int8 else FORMATS[to]
    if output is None:
        model = _own_copy(model)
    target = model.weights.with_name(name) if output is None else Path(output).expanduser()
    refuse_existing([target], overwrite)
    network = model.build_network()
    slices, real = calibration_slices(model, None if int8 else _SLICES)
    if int8 and (not real or len(slices) < 2):
        raise VmfError(
            "VMF340", subject=str(model.weights.with_name("calibration.safetensors")), found="none with these weights"
        )
    ready = deploy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload] # other runtimes choose their own layout
    with tempfile.TemporaryDirectory(prefix="vmfseg-export-") as folder:
        made = Path(folder) / target.with_suffix(Path(FORMATS[to]).suffix).name
        with _quiet():
            runner = _written(to, ready, model, slices, made)
            if int8:
                runner, slices = _to_int8(made, slices[::2]), slices[1::2]  # judged on what it was not fitted to
        report = _compare(network, runner, slices, real, target, to, int8)
        _check(report)
        _publish(made, target, overwrite)
    note = {
        "format": "vmfseg-export-1",
        "bundle": model.name,
        "weights_sha256": sha256_file(model.weights),
        "labels": {str(value): label for value, label in model.labels.items()},
        "input": {"channels": model.channels, "shape": list(model.image_size)},
        "preprocessing": model.preprocessing,
        "postprocessing": model.postprocessing,
        "parity": {**asdict(report), "path": target.name},
        "versions": library_versions(),
    }
    write_json(target.with_name(target.name + ".json"), note)
    return report


def _own_copy(model: Model) -> Model:
    """Copy a model of the installed package to a folder of the user, where more can be written beside it."""
    folder = model.weights.parent
    if not folder.resolve().is_relative_to(INSTALLED):
        return model
    own = Path(output_folder(model.root, "shipped")) / "models"  # never among models that the user trained
    for name in SHIPPED_FILES:
        if (folder / name).is_file() and not (own / name).exists():
            copy_file(folder / name, own / name, overwrite=False)
    return Model.load(own, trust=model.trust)


def calibration_slices(model: Model, count: int | None = _SLICES) -> tuple[torch.Tensor, bool]:
    """Return slices as the network sees them, ``BCHW``, and whether they are the bundle's own or noise.

    Args:
        model: its slices lie in ``calibration.safetensors`` beside the weights.
        count: how many at most; ``None`` for all.
    """
    file = model.weights.with_name("calibration.safetensors")
    shape, size = (model.channels, *model.image_size), model.image_size
    if file.is_file():
        stored = read_tensors(file).get("slices")
        if stored is not None and stored.ndim == 4 and tuple(stored.shape[1:]) == shape and len(stored):
            chosen = torch.linspace(0, len(stored) - 1, min(count or len(stored), len(stored))).round().long()
            return stored[chosen].float() / 255.0, True
    generator = torch_rng(0, "export", "noise")
    coarse = torch.rand(4, model.channels, max(2, size[0] // 8), max(2, size[1] // 8), generator=generator)
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear"), False


def _written(to: str, network: torch.nn.Module, model: Model, slices: torch.Tensor, path: Path) -> Runner:
    """Write the file and return what runs it."""
    try:
        return _WRITERS[to](network, model, slices, path)
    except VmfError:
        raise
    except Exception as error:  # exporters have no common class for what they raise
        cause = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise VmfError(
            "VMF356",
            subject=to,
            found=f"{type(error).__name__}: {cause}"[:200],
            fix=f"use another one of {', '.join(FORMATS)}",
        ) from error


def _write_onnx(network: torch.nn.Module, model: Model, slices: torch.Tensor, path: Path) -> Runner:
    for package in ("onnx", "onnxscript"):
        require_package(package)
    names = ["pred", "activations", "log_likelihood"] if isinstance(network, VMFNet) else ["pred"]
    torch.onnx.export(
        explained_network(network).eval(),
        (slices[:2],),
        str(path),
        dynamo=True,
        external_data=False,
        input_names=["image"],
        output_names=names,
        dynamic_shapes=_any_batch(),
        verbose=False,
    )
    return OnnxBackend(path, plain=True)  # what is judged is the file, not what this machine makes of it


def _write_openvino(network: torch.nn.Module, model: Model, slices: torch.Tensor, path: Path) -> Runner:
    openvino = require_package("openvino")
    onnx = path.with_name("openvino.onnx")
    _write_onnx(network, model, slices, onnx)
    # by default weights would be stored in 16 bits
    openvino.save_model(openvino.convert_model(str(onnx)), str(path), compress_to_fp16=False)
    onnx.unlink()
    # opened when it is run: what int8 needs of the processor can be set only before OpenVINO's first use
    backend = functools.cache(lambda: OpenVINOBackend(path))
    return lambda batch: backend()(batch)


def _write_torchscript(network: torch.nn.Module, model: Model, slices: torch.Tensor, path: Path) -> Runner:
    try:
        scripted: Any = torch.jit.script(network)
    except Exception:  # many networks use Python that TorchScript cannot read; what they compute can be recorded
        scripted = torch.jit.trace(network, slices[:2], check_trace=False)
    note = model.root / "configs" / "metadata.json"
    metadata = read_json(note) if note.is_file() else {"name": model.name, "version": model.version}
    save_net_with_metadata(scripted, str(path), meta_values=metadata)
    return _plain(torch.jit.load(str(path)))


def _write_torch_export(network: torch.nn.Module, model: Model, slices: torch.Tensor, path: Path) -> Runner:
    program = torch.export.export(network, (slices[:2],), dynamic_shapes=_any_batch())
    torch.export.save(program, str(path))
    return _plain(torch.export.load(str(path)).module())


_WRITERS: dict[str, Callable[[torch.nn.Module, Model, torch.Tensor, Path], Runner]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "torchscript": _write_torchscript,
    "torch-export": _write_torch_export,
}


def _any_batch() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch", min=1)},)


def _to_int8(path: Path, slices: torch.Tensor) -> Runner:
    quantize(path, slices)
    guard_int8(path)
    return OpenVINOBackend(path)


def _plain(call: Callable[[torch.Tensor], Any]) -> Runner:
    def run(batch: torch.Tensor) -> Explained:
        with torch.no_grad():
            return Explained(call(batch))

    return run


def _compare(
    network: torch.nn.Module,
    runner: Runner,
    slices: torch.Tensor,
    real: bool,
    target: Path,
    to: str,
    int8: bool,
) -> ExportReport:
    reference = deploy(network)
    wanted = torch.cat([run_batch(reference, batch) for batch in slices.split(4)])
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
            found=found,
            fix="export without --int8" if report.int8 else "report it with the versions of torch and the runtime",
        )


def _publish(made: Path, target: Path, overwrite: bool) -> None:
    """Move the files into place, what a name refers to before the name itself."""
    for file in sorted(made.parent.iterdir(), key=lambda f: f.suffix == made.suffix):
        place = target.with_suffix(file.suffix)
        copy_file(file, place, overwrite=overwrite or file.suffix != made.suffix)


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
