# SPDX-License-Identifier: Apache-2.0
"""Evaluation of vMF networks, with or without a look inside."""

from __future__ import annotations

from typing import Any

import torch
from monai.engines.evaluator import SupervisedEvaluator
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

__all__ = ["VMFEvaluator"]


class VMFEvaluator(SupervisedEvaluator):  # type: ignore[misc]
    """MONAI's ``SupervisedEvaluator`` that can also return the parts of the network.

    With ``return_parts=True`` the output has, beside ``pred`` (the logits), ``activations``, ``features``,
    ``reconstruction`` and ``presence`` where the network makes them. A batch without a label gives none.

    Args:
        return_parts: ask the network for its parts.
        **kwargs: as for ``SupervisedEvaluator``; mixed precision follows the device type, as in the trainers.
    """

    def __init__(self, return_parts: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.return_parts = return_parts

    def _iteration(self, engine: VMFEvaluator, batchdata: dict[str, Any]) -> dict[str, Any]:
        image, label = engine.prepare_batch(batchdata, engine.state.device, engine.non_blocking, **engine.to_kwargs)[:2]
        output: dict[str, Any] = {Keys.IMAGE: image} if label is None else {Keys.IMAGE: image, Keys.LABEL: label}
        engine.state.output = output
        amp = engine.amp and (image.device.type != "cpu" or "dtype" in engine.amp_kwargs)  # as in the trainers' Stepper
        with engine.mode(engine.network), torch.autocast(image.device.type, enabled=amp, **engine.amp_kwargs):
            if engine.return_parts:
                parts = engine.inferer(image, engine.network, return_parts=True)
                output[Keys.PRED] = parts.logits
                for name in ("activations", "features", "reconstruction", "presence"):
                    value = getattr(parts, name)
                    if value is not None:
                        output[name] = value
            else:
                output[Keys.PRED] = engine.inferer(image, engine.network)
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # type: ignore[no-any-return]
