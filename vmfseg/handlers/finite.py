# SPDX-License-Identifier: Apache-2.0
"""Stop at the first NaN, before it reaches the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

from vmfseg.utils import VmfError

__all__ = ["FiniteHandler"]


class FiniteHandler:
    """Refuse NaN and infinity in the images, the loss and the gradients, and name the images of the batch.

    The optimizer has not stepped yet, so the weights and the last checkpoint are good. Under a gradient scaler
    (float16 on CUDA) infinite gradients are its business: it skips the step and lowers the scale.

    Raises:
        VmfError: VMF296 with the term or layer and the images.
    """

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer of MONAI or vmfseg. Attach it before the gradient clip, which hides infinity."""
        engine.add_event_handler(Events.ITERATION_STARTED, self._check_images)
        engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self._check_loss)
        engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self._check_gradients)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._explain)

    def _check_images(self, engine: Any) -> None:
        images = engine.state.batch.get(Keys.IMAGE) if isinstance(engine.state.batch, Mapping) else None
        if not isinstance(images, torch.Tensor) or bool(torch.isfinite(images).all()):
            return
        bad = [i for i, image in enumerate(images) if not bool(torch.isfinite(image).all())]
        self._refuse(engine, f"an image is not finite in iteration {engine.state.iteration}", "NaN or infinity", bad)

    def _check_loss(self, engine: Any) -> None:
        output = engine.state.output
        if bool(torch.isfinite(output[Keys.LOSS]).all()):
            return
        names = [k for k, v in output.items() if isinstance(v, torch.Tensor) and v.ndim == 0 and not torch.isfinite(v)]
        self._refuse(engine, f"the loss is not finite in iteration {engine.state.iteration}", ", ".join(names))

    def _check_gradients(self, engine: Any) -> None:
        scaler = getattr(getattr(engine, "stepper", engine), "scaler", None)
        if scaler is not None and scaler.is_enabled():
            return
        for network in getattr(engine, "networks", [engine.network]):
            gradients = [(n, p.grad.abs().amax()) for n, p in network.named_parameters() if p.grad is not None]
            if not gradients or bool(torch.isfinite(torch.stack([g for _, g in gradients])).all()):
                continue
            layer = next(name for name, largest in gradients if not bool(torch.isfinite(largest)))
            self._refuse(engine, f"a gradient is not finite in iteration {engine.state.iteration}", f"layer {layer}")

    def _explain(self, engine: Any, error: BaseException) -> None:
        """Name the images where a layer found the NaN first (``check_finite`` of the kernels)."""
        if isinstance(error, ValueError) and not isinstance(error, VmfError) and "must be finite" in str(error):
            found = str(error).split(". ")[0]
            self._refuse(engine, f"the network overflows in iteration {engine.state.iteration}", found)
        raise error

    @staticmethod
    def _refuse(engine: Any, rule: str, found: str, only: Sequence[int] | None = None) -> None:
        names = _names(engine.state.batch)
        if only is not None:
            names = [names[i] for i in only if i < len(names)]
        raise VmfError(
            "VMF296",
            subject=", ".join(names) or "the current batch",
            rule=f"{rule}; the last checkpoint is good",
            found=found,
            fix="look at these images (vmfseg verify), or lower learning_rate",
        )


def _names(batch: Any) -> list[str]:
    """Return what identifies the images of a batch: our sample names, or the files that MONAI remembers."""
    if not isinstance(batch, Mapping):
        return []
    names = batch.get("sample")
    if names is None:
        names = getattr(batch.get(Keys.IMAGE), "meta", {}).get("filename_or_obj", ())
    return [names] if isinstance(names, str) else [str(name) for name in names]
