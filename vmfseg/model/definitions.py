# SPDX-License-Identifier: Apache-2.0
"""Plain definitions of networks and transforms: recorded from a config that is trained, built again for inference.

A definition is what a MONAI config says about an object once every reference and expression is resolved: ``{"_target_":
"monai.networks.nets.UNet", "channels": [16, 32]}``, nested where an argument is an object itself. It holds plain values
only, so it can be stored as JSON and built without evaluating anything:

* :func:`record_definitions` notes, for every object that MONAI's config parser builds, its target and its resolved
  arguments; :func:`definition_of` returns the definition of such an object;
* :func:`build` builds a definition, if every target is on the allow-list: networks of MONAI and vmfseg, and those
  transforms that change values and grids and touch no file, no network and no code by name.
"""

from __future__ import annotations

import functools
import inspect
import os
import pydoc
import re
import sys
import weakref
from collections.abc import Mapping
from enum import Enum
from types import FunctionType
from typing import Any

import monai.bundle.config_item as config_item
import numpy as np
import torch
from monai.transforms import Transform
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vmfseg.data.disk_cache import config_text
from vmfseg.model.weights import warm_start
from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath
from vmfseg.utils.seeds import seeded

__all__ = [
    "build",
    "build_network",
    "definition_of",
    "full_name",
    "is_allowed",
    "prepare_network",
    "record_definitions",
    "settings_of",
]

#: Where networks may come from, by module prefix.
_NETWORKS = ("monai.networks.nets.", "monai.networks.blocks.", "vmfseg.networks.", "vmfseg.methods.", "torch.nn.")
#: Where transforms may come from, by the module that defines them.
_TRANSFORMS = (
    "monai.transforms.intensity.", "monai.transforms.spatial.", "monai.transforms.croppad.", "monai.transforms.post.",
    "monai.transforms.compose", "vmfseg.transforms.",
)  # fmt: skip
#: Of modules with dangerous classes, only these.
_ONLY = {
    "monai.transforms.utility.": (
        "AsChannelLast", "CastToType", "CopyItems", "DeleteItems", "EnsureChannelFirst", "EnsureType", "Identity",
        "RepeatChannel", "SelectItems", "SqueezeDim", "ToTensor", "Transpose",
    ),
    "vmfseg.data.": ("LoadVolume",),
}  # fmt: skip
#: Parts of the names of transforms that run code or write files wherever they are defined.
_DANGEROUS = ("Lambda", "Save")
#: Arguments that load weights, from a file or from the network, whoever takes them.
_FOREIGN_WEIGHTS = (
    "checkpoint", "load_from", "model_path", "path_or_repo_id", "pretrained", "pretrained_path", "pretrained_url",
    "weights", "weights_path",
)  # fmt: skip
#: Arguments that say where and how, not what: a run moved to another folder or device is the same run.
_WHERE = frozenset(
    {
        "bundle_root", "cache_dir", "ckpt_dir", "data", "dataset_dir", "default", "device", "given", "init", "log_dir",
        "mention", "num_workers", "output_dir", "path", "progress", "quiet", "rank", "root", "version",
    }
)  # fmt: skip
#: Handlers that look on and change nothing (MONAI's ``--tracking`` adds one, with the time of day in it).
_OBSERVERS = frozenset(
    {
        "HistoryHandler", "ListedOutputHandler", "MLFlowHandler", "ProgressHandler", "RunWriter", "StatsHandler",
        "TensorBoardStatsHandler",
    }
)  # fmt: skip
_ARCHITECTURE = re.compile(r"[a-z]+_?\d+[a-z0-9_]*")  # resnet18, seresnet50, senet154; not get_pretrained_...
_MAX_DEPTH = 20
_MAX_ELEMENTS = 2_000_000_000  # of all parameters together: 8 GB in float32

#: Target and arguments by the identity of the object that was made; an entry goes with its object.
_RECORDS: dict[int, tuple[str, dict[str, Any]]] = {}
#: Seed of the initial weights of a network.
_SEEDS: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


def record_definitions() -> None:
    """Let MONAI's config parser note target and resolved arguments of every object that it builds.

    MONAI keeps no record of how the objects of a config were made; a trained model needs one of its network and its
    transforms. Called when :mod:`vmfseg.bundle` is imported; a second call changes nothing.
    """
    original = config_item.instantiate
    if getattr(original, "records_definitions", False):
        return

    @functools.wraps(original)
    def instantiate(path: str, mode: str, /, **arguments: Any) -> Any:
        made = original(path, mode, **arguments)
        if _record(made) is None:
            _keep(made, (path, arguments))
        return made

    instantiate.records_definitions = True  # type: ignore[attr-defined]
    config_item.instantiate = instantiate


def definition_of(value: Any, place: str) -> Any:
    """Return the plain definition of an object that was built from a config.

    Args:
        value: the object, or a plain value, or a list or dictionary of those.
        place: the id in the config, for messages.

    Raises:
        VmfError: VMF320 if the object, or one of its arguments, is neither plain nor built from a config.

    Example:
        >>> definition_of({"channels": (16, 32), "dtype": torch.float32}, "network_def")
        {'channels': [16, 32], 'dtype': {'_dtype_': 'float32'}}
    """
    value = bare_network(value) if isinstance(value, nn.Module) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.dtype):
        return {"_dtype_": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [definition_of(item, f"{place}::{index}") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): definition_of(item, f"{place}::{key}") for key, item in value.items()}
    record = _record(value)
    if record is None:
        raise VmfError("VMF320", subject=place, found=f"{type(value).__module__}.{type(value).__qualname__}")
    target, arguments = record
    return {"_target_": target, **{k: definition_of(v, f"{place}::{k}") for k, v in arguments.items()}}


def settings_of(value: Any) -> Any:
    """Return everything plain that decides what an object of a config does, for comparison with an earlier run.

    Like :func:`definition_of`, but transforms and functions that an expression made count by their attributes or code,
    other objects of expressions by their class, and arguments that only say where
    (folders, devices, workers, rows) and handlers that only look on are left out.

    Example:
        >>> settings_of({"lr": 0.1, "device": "cpu", "other": object()})
        {'lr': 0.1, 'other': 'object'}
    """
    if isinstance(value, Mapping):
        return {str(k): settings_of(v) for k, v in value.items() if k not in _WHERE and not _observes(v)}
    if isinstance(value, list | tuple):
        return [settings_of(item) for item in value if not _observes(item)]
    value = bare_network(value) if isinstance(value, nn.Module) else value
    record = _record(value)
    if record is not None:
        start = {"initial_seed": _SEEDS[value]} if isinstance(value, nn.Module) and value in _SEEDS else {}
        return {"_target_": record[0], **settings_of(record[1]), **start}
    try:
        return definition_of(value, "")
    except VmfError:
        if isinstance(value, Transform | FunctionType | functools.partial):  # made by an expression
            return config_text(value)
        return getattr(value, "__qualname__", type(value).__qualname__)


def is_allowed(target: str) -> bool:
    """Tell whether inference may build a target: a class of the allow-list, wherever it is named from.

    Example:
        >>> is_allowed("monai.networks.nets.UNet"), is_allowed("ScaleIntensityd"), is_allowed("os.system")
        (True, True, False)
        >>> is_allowed("monai.transforms.SaveImaged"), is_allowed("monai.networks.nets.os.system")
        (False, False)
    """
    return _locate(target) is not None


def build(definition: Any, place: str, *, trust: bool = False) -> Any:
    """Build an object from its plain definition; nothing is evaluated.

    Args:
        definition: with ``_target_``.
        place: where it stands, for messages.
        trust: build targets that are not on the allow-list too.

    Raises:
        VmfError: VMF418 for a target that is not allowed, VMF322 for arguments that it does not take or that are not
            plain.

    Example:
        >>> build({"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 2,
        ...        "channels": [4, 8], "strides": [2]}, "network")(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 2, 8, 8])
        >>> build({"_target_": "os.system", "command": "id"}, "network")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF418: only networks and transforms of MONAI and vmfseg are built...
    """
    return _build(definition, place, trust, 0)


def build_network(definition: Mapping[str, Any], place: str, *, trust: bool = False) -> nn.Module:
    """Build a network without weights, on the meta device where it can be built there: a definition asks for no memory.

    Args:
        definition: with ``_target_``.
        place: where it stands, for messages.
        trust: build targets that are not on the allow-list too.

    Raises:
        VmfError: see :func:`build`; VMF323 if it is no network, or larger than any machine.
    """
    try:
        with torch.device("meta"):
            network = build(definition, place, trust=trust)
    except (VmfError, NotImplementedError) as error:
        if isinstance(error, VmfError) and "meta" not in error.found.lower():
            raise
        with _BoundedMemory():  # some networks read values of tensors when they are made
            network = build(definition, place, trust=trust)
    if not isinstance(network, nn.Module):
        raise _no_network(place, type(network).__name__)
    return network


def prepare_network(
    network: nn.Module, device: str | torch.device = "cpu", seed: int | None = None, init: StrPath = "", rank: int = 0
) -> nn.Module:
    """Return a network of a config ready for training: seeded weights or those of another model, on its device.

    The network is built again from its definition with torch's generator seeded, so that equal seeds give equal
    weights, and two networks of one definition can start differently.

    Args:
        network: built from a config.
        device: where it goes.
        seed: of the initial weights; ``None`` takes the network as it is.
        init: bundle, run or file of weights to start from, see :func:`vmfseg.model.weights.warm_start`; empty for none.
        rank: of this process; only the first one tells what was taken over.
    """
    record = _record(network)
    if seed is not None and record is not None:
        definition = definition_of(network, "network_def")
        with seeded(seed, "network"):
            network = build(definition, "network_def", trust=True)
        _keep(network, record)
        _SEEDS[network] = seed
    if os.fspath(init):
        for line in warm_start(network, init):
            if rank == 0:
                sys.stdout.write(f"init: {line}\n")
        sys.stdout.flush()
    return network.to(device=torch.device(device), memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class _BoundedMemory(TorchDispatchMode):
    """Refuse tensors beyond :data:`_MAX_ELEMENTS` in all, before they are allocated."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], list | tuple) and all(isinstance(size, int) for size in args[0]):
            self.elements += int(np.prod([float(size) for size in args[0]]))
            if self.elements > _MAX_ELEMENTS:
                raise _no_network("network", f"more than {_MAX_ELEMENTS} parameters")
        return func(*args, **(kwargs or {}))


def _build(value: Any, place: str, trust: bool, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _wrong_arguments(place, f"more than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_build(item, f"{place}::{i}", trust, depth + 1) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        if isinstance(value, str) and value[:1] in ("$", "@", "%"):
            raise _wrong_arguments(place, value)
        return value
    if set(value) == {"_dtype_"}:
        dtype = getattr(torch, str(value["_dtype_"]), None)
        if not isinstance(dtype, torch.dtype):
            raise _wrong_arguments(place, str(value["_dtype_"]))
        return dtype
    arguments = {str(k): _build(v, f"{place}::{k}", trust, depth + 1) for k, v in value.items() if k != "_target_"}
    if "_target_" not in value:
        return arguments
    target = str(value["_target_"])
    made = _locate(target) or (pydoc.locate(target) if trust else None)
    if made is None:
        raise VmfError(
            "VMF418",
            subject=place,
            rule="only networks and transforms of MONAI and vmfseg are built from a model's manifest",
            found=target,
            fix="pass --trust if you know who wrote it",
        )
    try:
        if not trust:
            arguments |= _without_foreign_weights(made, arguments)
        return made(**arguments)  # type: ignore[operator] # a class
    except VmfError:
        raise
    except Exception as error:
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise _wrong_arguments(place, f"{type(error).__name__}: {cause}"[:200]) from error


def _without_foreign_weights(made: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, given or by default, that would load weights, with values that load none.

    The model has weights of its own. Only a text or ``True`` loads: weights of terms are numbers.
    """
    parameters = inspect.signature(made).parameters
    defaults = {name: parameters[name].default for name in _FOREIGN_WEIGHTS if name in parameters}
    values = {name: arguments.get(name, defaults.get(name)) for name in _FOREIGN_WEIGHTS}
    return {
        name: False if name == "pretrained" else None
        for name, value in values.items()
        if value is True or (isinstance(value, str) and value)
    }


@functools.cache
def _locate(target: str) -> Any:
    """Return the class of an allowed target, or ``None``."""
    name = full_name(target)
    if not name.startswith((*_NETWORKS, "monai.transforms.", "vmfseg.transforms.", "vmfseg.data.")):
        return None
    found = pydoc.locate(name)
    if not inspect.isclass(found):
        return _factory(found, name)
    where = f"{found.__module__}."
    if issubclass(found, nn.Module):
        return found if where.startswith(_NETWORKS) else None
    if not issubclass(found, Transform):
        return None
    if where.startswith(_TRANSFORMS):
        return None if any(part in found.__name__ for part in _DANGEROUS) else found
    plain = found.__name__.removesuffix("Dict").removesuffix("D").removesuffix("d")
    return found if any(where.startswith(m) and plain in names for m, names in _ONLY.items()) else None


def _factory(found: Any, name: str) -> Any:
    """Return a function of MONAI's or ours that makes a network, such as ``resnet18``."""
    home = f"{getattr(found, '__module__', '')}."
    if inspect.isfunction(found) and home.startswith(("monai.networks.nets.", "vmfseg.networks.", "vmfseg.methods.")):
        return found if _ARCHITECTURE.fullmatch(found.__name__) else None
    return None


def full_name(target: str) -> str:
    """Return a target with its module, which configs may leave out for classes of MONAI."""
    if "." in target:
        return target
    module = _locator().get_component_module_name(target)
    module = module[0] if isinstance(module, list) else module
    return f"{module}.{target}" if module else target


@functools.cache
def _locator() -> Any:
    return config_item.ComponentLocator()  # it reads all of MONAI once


def _keep(made: Any, record: tuple[str, dict[str, Any]]) -> None:
    try:
        weakref.finalize(made, _RECORDS.pop, id(made), None).atexit = False
    except TypeError:  # a plain value, or a class without weak references
        return
    _RECORDS[id(made)] = record


def _record(value: Any) -> tuple[str, dict[str, Any]] | None:
    return _RECORDS.get(id(value))


def _observes(value: Any) -> bool:
    record = _record(value)
    return record is not None and record[0].rsplit(".", 1)[-1] in _OBSERVERS


def _wrong_arguments(place: str, found: str) -> VmfError:
    return VmfError("VMF322", subject=place, found=found)


def _no_network(place: str, found: str) -> VmfError:
    return VmfError("VMF323", subject=place, found=found)
