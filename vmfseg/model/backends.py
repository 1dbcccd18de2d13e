# SPDX-License-Identifier: Apache-2.0
"""Backends that run the network: torch, ONNX Runtime or OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from vmfseg.model.deploy import Explained, deploy, explained_network, run_batch
from vmfseg.model.onnx_winograd import read_with_winograd
from vmfseg.model.probe import guard_int8
from vmfseg.utils import VmfError, check_choice, read_json, sha256_file
from vmfseg.utils.io import StrPath
from vmfseg.utils.packages import require_package

__all__ = ["BACKENDS", "Backend", "OnnxBackend", "OpenVINOBackend", "TorchBackend", "exported_file", "open_backend"]

#: Backends by name, with the file that each needs below ``models``.
BACKENDS = {"torch": "", "onnx": "model.onnx", "openvino": "model.xml", "openvino-int8": "model_int8.xml"}


class Backend(Protocol):
    """Whatever maps a batch of slices to logits, activations and log-likelihood."""

    name: str

    def __call__(self, batch: torch.Tensor) -> Explained:
        """Run the batch, ``BCHW``."""
        ...


class TorchBackend:
    """The deployed network in torch itself, see :func:`deploy`.

    Args:
        network: trained.
        device: where it runs.
    """

    name = "torch"

    def __init__(self, network: nn.Module, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.network = explained_network(deploy(network, portable=self.device.type != "cpu")).to(self.device)

    def __call__(self, batch: torch.Tensor) -> Explained:
        """Run the batch."""
        result = run_batch(self.network, batch.to(self.device))
        return Explained(result.cpu()) if isinstance(result, torch.Tensor) else Explained(*(v.cpu() for v in result))


class OnnxBackend:
    """An exported network in ONNX Runtime, on the CPU; wide convolutions go Winograd's way, see :mod:`.onnx_winograd`.

    Args:
        path: ``model.onnx`` of :func:`vmfseg.export.export_bundle`.
        plain: run the file as it is, without Winograd's convolutions.

    Raises:
        VmfError: VMF530 if ONNX Runtime or onnx is not installed, VMF337 if the file is no network of ours.
    """

    name = "onnx"

    def __init__(self, path: StrPath, plain: bool = False) -> None:
        runtime, _ = require_package("onnxruntime"), require_package("onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            content = Path(path).read_bytes() if plain else read_with_winograd(Path(path))
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has no common class for what it raises
            raise _unusable(path, error) from error
        self.input = self.session.get_inputs()[0].name
        _check_outputs(path, len(self.session.get_outputs()))

    def __call__(self, batch: torch.Tensor) -> Explained:
        """Run the batch."""
        found = self.session.run(None, {self.input: np.ascontiguousarray(batch.numpy(), dtype=np.float32)})
        return Explained(*(torch.from_numpy(value) for value in found))


class OpenVINOBackend:
    """An exported network in OpenVINO, on the CPU, always in float32 unless the file itself is int8.

    Args:
        path: ``model.xml`` of :func:`vmfseg.export.export_bundle`.
        int8: whether the file holds int8 layers; these are tried in a child process first, see :func:`guard_int8`.

    Raises:
        VmfError: VMF530 if OpenVINO is not installed, VMF531 if int8 does not run on this machine, VMF337 if the file
            is no network of ours.
    """

    name = "openvino"

    def __init__(self, path: StrPath, int8: bool = False) -> None:
        if int8:
            guard_int8(path)
            self.name = "openvino-int8"
        openvino = require_package("openvino")
        core = openvino.Core()
        # OpenVINO takes bfloat16 by itself where the processor claims to have it; some die of it
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        try:
            self.model = core.compile_model(str(path), "CPU", options)
        except Exception as error:  # OpenVINO raises RuntimeError and its own kinds
            raise _unusable(path, error) from error
        _check_outputs(path, len(self.model.outputs))

    def __call__(self, batch: torch.Tensor) -> Explained:
        """Run the batch."""
        found = self.model(np.ascontiguousarray(batch.numpy(), dtype=np.float32))
        return Explained(*(torch.from_numpy(np.array(found[index])) for index in range(len(found))))


def open_backend(name: str, network: nn.Module, weights: Path, device: torch.device | str = "cpu") -> Backend:
    """Return the backend ``name``, for weights and what was exported from them.

    Args:
        name: a key of :data:`BACKENDS`.
        network: with the weights loaded.
        weights: their file; exports lie beside it.
        device: for torch.

    Raises:
        ValueError: another name, or a device other than the CPU for what runs there only.
        VmfError: VMF336 if there is no export, VMF344 if it was made of other weights; see the backends.
    """
    check_choice("backend", name, BACKENDS)
    if name == "torch":
        return TorchBackend(network, device)
    if torch.device(device).type != "cpu":
        raise ValueError(f"device must be cpu for backend {name}, got {device}. Use backend torch on other devices.")
    path = exported_file(name, weights)
    if name == "onnx":
        return OnnxBackend(path)
    return OpenVINOBackend(path, int8=name.endswith("int8"))


def exported_file(name: str, weights: Path) -> Path:
    """Return the export of ``weights`` for a backend, checked to be of these very weights.

    Raises:
        VmfError: VMF336 if there is none, VMF344 if it was made of other weights.
    """
    path = weights.with_name(BACKENDS[name])
    kind = name.removesuffix("-int8")
    order = f"vmfseg export BUNDLE --to {kind}{' --int8' if name.endswith('int8') else ''} --overwrite"
    if not path.is_file():
        raise VmfError("VMF336", subject=str(path), rule=f"there is no export for backend {name}", fix=order)
    note = path.with_name(path.name + ".json")
    made_of = read_json(note).get("weights_sha256") if note.is_file() else None
    if made_of != sha256_file(weights):
        raise VmfError(
            "VMF344",
            subject=str(path),
            found="it was made of other weights" if made_of else f"no {note.name} that says of which",
            fix=order,
        )
    return path


def _check_outputs(path: StrPath, count: int) -> None:
    if count not in (1, len(Explained._fields)):
        raise _unusable(path, f"{count} outputs instead of 1 or {len(Explained._fields)}")


def _unusable(path: StrPath, cause: Any) -> VmfError:
    return VmfError("VMF337", subject=str(path), found=" ".join(str(cause).split())[:200])
