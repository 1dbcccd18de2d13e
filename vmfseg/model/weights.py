# SPDX-License-Identifier: Apache-2.0
"""Weights of networks: read from untrusted files, checked, loaded, or taken over as far as they fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vmfseg.handlers.checkpoint import load_tensors
from vmfseg.model.shelves import on_shelf
from vmfseg.utils import VmfError, read_json
from vmfseg.utils.io import StrPath, sha256_bytes
from vmfseg.utils.tensor_files import safetensors_problem

__all__ = [
    "fill_network",
    "find_weights",
    "is_about",
    "read_tensors",
    "tensors_digest",
    "warm_start",
    "weights_at",
]


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
        raise VmfError("VMF306", subject=str(path), found="; ".join(problems[:3]) + more)
    _check_finite(tensors, path)
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


def find_weights(place: StrPath) -> Path | None:
    """Return the file of weights that a path or the name of a bundle stands for, or ``None``.

    A file; a folder with ``model.safetensors`` or ``model.pt``; a bundle or a run, which have these in ``models``; the
    name of a bundle, see :mod:`vmfseg.model.shelves`.
    """
    found = weights_at(place)
    named = on_shelf(place) if found is None else None
    return found if named is None else weights_at(named)


def weights_at(place: StrPath) -> Path | None:
    """Return the file of weights at a path: the file itself, or in a folder, a bundle or a run; or ``None``."""
    given = Path(place).expanduser()
    if given.is_file():
        return given
    names = ("model.safetensors", "model.pt")
    files = [folder / name for folder in (given, given / "models") for name in names]
    return next((file for file in files if file.is_file()), None)


def warm_start(network: torch.nn.Module, init: StrPath) -> list[str]:
    """Take over the weights of another model as far as name and shape agree; return a line a group of tensors.

    Args:
        network: where they go, perhaps wrapped for several processes.
        init: a bundle, a run, ``model.pt`` or ``model.safetensors``.

    Raises:
        VmfError: VMF335 if there is no such file, VMF401 if it holds anything but tensors, VMF402 if some are not
            finite, VMF351 if no tensor fits.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> save_file({"0.weight": torch.ones(2, 3), "1.weight": torch.ones(5, 2), "old": torch.ones(1)}, file)
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 4, bias=False))
        >>> for line in warm_start(network, file):
        ...     print(line)
        taken over: 1 of 2 tensors (0)
        not taken over, another shape: 1.weight (5, 2) instead of (4, 2)
        not in this network: old
    """
    file = find_weights(init)
    if file is None:
        raise VmfError(
            "VMF335", subject=str(init), rule="there are no weights", found="no such file, no model in the folder",
            fix="give a bundle, a run folder, model.pt or model.safetensors",
        )  # fmt: skip
    given, wanted = read_tensors(file), network.state_dict()
    prefix = "module." if all(name.startswith("module.") for name in wanted) else ""
    given = {prefix + name: tensor for name, tensor in given.items()}
    taken = {name: t for name, t in given.items() if name in wanted and wanted[name].shape == t.shape}
    if not any(t.ndim > 1 for t in taken.values()):
        raise VmfError(
            "VMF351", subject=str(file), found="; ".join(_problems(wanted, given)[:2]) or "no tensor in the file"
        )
    _check_finite(taken, file)
    network.load_state_dict({n: t.to(wanted[n].dtype) for n, t in taken.items()}, strict=False)
    groups = sorted({name.removeprefix(prefix).split(".")[0] for name in taken})
    lines = [f"taken over: {len(taken)} of {len(wanted)} tensors ({', '.join(groups)})"]
    other = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}"
        for name, tensor in given.items()
        if name in wanted and name not in taken
    ]
    for what, names in (
        ("not taken over, another shape", other),
        ("left at their start, not in the file", [n for n in wanted if n not in given]),
        ("not in this network", [n for n in given if n not in wanted]),
    ):
        if names:
            lines.append(f"{what}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}")
    return lines


def _check_finite(tensors: Mapping[str, torch.Tensor], path: StrPath) -> None:
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor.float()).all())]
    if broken:
        raise VmfError("VMF402", subject=str(path), found=f"NaN or infinite values in {', '.join(broken[:3])}")


def _problems(wanted: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    shapes = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    missing = [f"{name} is missing" for name in wanted if name not in given]
    return shapes + missing + [f"{name} is not known" for name in given if name not in wanted]


def _refuse(path: StrPath, found: Any) -> VmfError:
    return VmfError("VMF401", subject=str(path), rule="the file must hold named tensors only", found=str(found))
