# SPDX-License-Identifier: Apache-2.0
"""From a volume to its logits: all slices, in batches."""

from __future__ import annotations

from typing import Any

import torch
from monai.inferers import Inferer

from vmfseg.networks import VMFParts

__all__ = ["SliceBatchInferer"]


class SliceBatchInferer(Inferer):  # type: ignore[misc]
    """Run a 2-D network over all slices of a volume, ``batch_size`` slices at a time.

    MONAI's ``SliceInferer`` slides a window over the plane as well; here the plane is the network's own size, so the
    slices of a volume simply become a batch. The result does not depend on ``batch_size``, as the network is in eval
    mode. Parts of a vMF network (``return_parts=True``) are put together likewise. A 4-D tensor is a batch of slices
    already.

    Shape: ``BCHWD`` -> ``BNHWD``; ``BCHW`` -> ``BNHW``.

    Args:
        batch_size: slices at once; bounds the memory.

    Example:
        >>> SliceBatchInferer(2)(torch.zeros(1, 1, 4, 4, 3), torch.nn.Conv2d(1, 5, 1)).shape
        torch.Size([1, 5, 4, 4, 3])
    """

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.batch_size = batch_size

    def __call__(self, inputs: torch.Tensor, network: Any, *args: Any, **kwargs: Any) -> torch.Tensor | VMFParts:
        """Return the logits, or the parts, of ``inputs``."""
        if inputs.ndim == 4:
            result: torch.Tensor | VMFParts = network(inputs, *args, **kwargs)
            return result
        if inputs.ndim != 5:
            raise ValueError(f"inputs must have shape BCHWD or BCHW, got {tuple(inputs.shape)}.")
        b, c, h, w, d = inputs.shape
        plain = inputs.as_tensor() if hasattr(inputs, "as_tensor") else inputs
        slices = plain.permute(0, 4, 1, 2, 3).reshape(b * d, c, h, w)
        results = [network(batch, *args, **kwargs) for batch in slices.split(self.batch_size)]
        if isinstance(results[0], torch.Tensor):
            return _stack(results, b, d)
        fields: dict[str, torch.Tensor | None] = {}
        for name in VMFParts._fields:
            values = [getattr(parts, name) for parts in results]
            fields[name] = None if values[0] is None else values[0] if name == "kernels" else _stack(values, b, d)
        return VMFParts(**fields)  # type: ignore[arg-type] # logits, features, activations are never None


def _stack(slices: list[torch.Tensor], b: int, d: int) -> torch.Tensor:
    """Put slices ``(BD)NHW`` together to a volume ``BNHWD`` (values ``(BD)K`` to ``BKD``)."""
    joined = torch.cat(slices)
    return joined.reshape(b, d, *joined.shape[1:]).movedim(1, -1).contiguous()
