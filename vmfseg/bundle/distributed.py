# SPDX-License-Identifier: Apache-2.0
"""What ``multi_gpu_train.json`` needs of ``torch.distributed``: NCCL on GPUs, gloo on CPUs, one process a device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from vmfseg.utils import VmfError

__all__ = ["device", "first_rank_first", "rank", "share", "start", "stop", "world_size", "wrap"]

T = TypeVar("T")


def start() -> None:
    """Join the process group that torchrun describes; joining twice does nothing.

    Raises:
        VmfError: VMF308 if the process was not started by torchrun.
    """
    if dist.is_initialized():
        return
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise VmfError("VMF308", subject="multi_gpu_train.json", found=f"{', '.join(missing)} not set")
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def stop() -> None:
    """Leave the process group together: a process that leaves early takes the connections of the others with it."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def rank() -> int:
    """Return the number of this process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def device() -> torch.device:
    """Return the device of this process."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def first_rank_first(call: str, **kwargs: Any) -> Any:
    """Call ``call`` in the first process, then in the others: what it downloads or makes is there by then.

    Args:
        call: dotted name of the function.
        kwargs: its arguments.

    Raises:
        ValueError: for a function of another package; a config from elsewhere might name any.
    """
    if not call.startswith("vmfseg."):
        raise ValueError(f"call must be a function of vmfseg, got {call}. Use _target_ for others.")
    function = resolve_name(call)
    if rank() and dist.is_initialized():
        dist.barrier()
        return function(**kwargs)
    try:
        return function(**kwargs)
    finally:
        if dist.is_initialized():
            dist.barrier()


def share(rows: Sequence[T], rank: int, world_size: int) -> list[T]:
    """Return the rows that process ``rank`` evaluates: every ``world_size``-th, or all where there are too few.

    Every process must have a volume, as the processes exchange buffers in the first forward pass; volumes that come
    twice count once in the scores, and equally often in a mean.

    Example:
        >>> share("abcde", 1, 2), share("a", 1, 2)
        (['b', 'd'], ['a'])
    """
    return list(rows[rank::world_size] if len(rows) >= world_size else rows)


def wrap(
    network: torch.nn.Module, sync_batch_norm: bool = False, find_unused_parameters: bool = False
) -> DistributedDataParallel:
    """Return ``network`` as a module whose gradients are averaged over the processes.

    Args:
        network: on its device already.
        sync_batch_norm: take the statistics of batch norm over all processes (GPUs only).
        find_unused_parameters: for trainers that freeze a part of the network.

    Raises:
        VmfError: VMF309 for synchronized batch norm on a CPU.
    """
    place = next(network.parameters()).device
    if sync_batch_norm:
        if place.type == "cpu":
            raise VmfError("VMF309", subject="sync_batch_norm", found=f"device {place}")
        network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    network.register_forward_hook(_join_outputs)
    return DistributedDataParallel(
        network,
        device_ids=[place] if place.type == "cuda" else None,
        find_unused_parameters=find_unused_parameters,
    )


class _Join(torch.autograd.Function):
    """Identity on several tensors; when one gets a gradient, the others get zeros."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients


def _join_outputs(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
    """Let every parameter behind any output take part in the backward pass.

    DDP waits for the gradient of every parameter that an output depends on. On an unlabelled batch the logits are an
    output that no term of the loss uses.
    """
    if not isinstance(output, tuple) or not torch.is_grad_enabled():
        return output
    places = [i for i, value in enumerate(output) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not places:
        return output
    joined = _Join.apply(*(output[i] for i in places))  # type: ignore[no-untyped-call]
    values = list(output)
    for place, tensor in zip(places, joined, strict=True):
        values[place] = tensor
    return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
