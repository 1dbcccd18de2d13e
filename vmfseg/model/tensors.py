# SPDX-License-Identifier: Apache-2.0
"""Tensors from a file that nobody has to trust, into a network that they must fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vmfseg.handlers import load_tensors
from vmfseg.utils import VmfError, read_json, sha256_bytes
from vmfseg.utils.io import StrPath
from vmfseg.utils.weights import safetensors_problem

__all__ = ["fill_network", "is_about", "read_tensors", "tensors_digest"]


def read_tensors(path: StrPath) -> dict[str, torch.Tensor]:
    """Read the tensors of a ``.safetensors`` or ``.pt`` file; nothing in it is executed.

    Raises:
        VmfError: VMF401 if the file is missing, damaged or holds anything but named tensors.
    """
    if Path(path).suffix == ".safetensors":
        problem = safetensors_problem(Path(path))  # the library takes the last of two tensors of one name
        if problem:
            raise _refuse(path, problem)
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise _refuse(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    content = load_tensors(path)
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise _refuse(path, "something else than named tensors")
    return dict(content)


def fill_network(network: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: StrPath) -> None:
    """Put ``tensors`` into ``network``; every one must be there, fit and be finite.

    Args:
        network: where they go; it may be on the meta device, so that nothing is allocated before this check.
        tensors: by name, as in its state dict.
        path: where they come from, for messages.

    Raises:
        VmfError: VMF306 if they belong to another network, VMF402 if some are NaN or infinite.
    """
    problems = _problems(network.state_dict(), tensors)
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise VmfError(
            "VMF306",
            subject=str(path),
            rule="the weights must fit the network",
            found="; ".join(problems[:3]) + more,
            fix="give the options of the training (channels, num_kernels ... or paper.json) here too, or train again",
        )
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor.float()).all())]
    if broken:
        raise VmfError(
            "VMF402",
            subject=str(path),
            rule="weights must be finite",
            found=f"NaN or infinite values in {', '.join(broken[:3])}",
            fix="use another checkpoint, or train again with a lower learning rate",
        )
    blank = any(tensor.is_meta for tensor in network.state_dict().values())
    wanted = network.state_dict()
    network.load_state_dict({name: t.to(wanted[name].dtype) for name, t in tensors.items()}, assign=blank)


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a checksum of named tensors: the same for ``.pt`` and ``.safetensors``, for any device and memory format.

    What was learnt about a network says by it which one that was.

    Example:
        >>> one = {"a": torch.ones(2, 3, 4, 4), "b": torch.zeros(1)}
        >>> other = {"b": torch.zeros(1), "a": torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)}
        >>> tensors_digest(one) == tensors_digest(other), tensors_digest(one) == tensors_digest({"a": one["a"]})
        (True, False)
    """
    parts: list[bytes] = []
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        parts += [f"{name} {plain.dtype} {tuple(plain.shape)} ".encode(), plain.numpy().tobytes()]
    return sha256_bytes(*parts)


def is_about(note: StrPath, digest: str) -> bool:
    """Tell whether a JSON file that was learnt about a network is about the one with this checksum, or does not say."""
    content = read_json(note)
    return not isinstance(content, dict) or content.get("weights") in (None, digest)


def _problems(wanted: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    shapes = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    missing = [f"{name} is missing" for name in wanted if name not in given]
    return shapes + missing + [f"{name} is not known" for name in given if name not in wanted]


def _refuse(path: StrPath, found: Any) -> VmfError:
    return VmfError(
        "VMF401",
        subject=str(path),
        rule="the file must hold named tensors only",
        found=str(found),
        fix="use a file written by vmfseg, or train again",
    )
