# SPDX-License-Identifier: Apache-2.0
"""Mean teacher: a slow copy of the networks in training, for pseudo-labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ignite.engine import Engine
from monai.engines.utils import IterationEvents

from vmfseg.networks.parts import VMFParts, bare_network, network_parts

__all__ = ["EMATeacher"]

#: Parts of a network that no logit depends on; a teacher does without.
_TRAINING_ONLY = ("composer", "presence_head")


class EMATeacher:
    r"""Keep an exponential moving average of a network's weights, and predict with it.

    After the optimizer step number :math:`t = 0, 1, \dots`

    .. math:: \bar\theta \leftarrow a\,\bar\theta + (1 - a)\,\theta, \qquad a = \min(1 - 1 / (t + 1),\ \text{decay})

    (mean teacher; Tarvainen and Valpola, NeurIPS 2017): the plain mean of all weights first, a moving one later. The
    running statistics of batch norm are averaged with the weights and used as they are (eval mode), where the released
    codes let the teacher's batch statistics decide. It has a state: give it to the checkpoint, so that a resumed run
    equals an uninterrupted one bit for bit.

    Args:
        networks: one network, or several whose probabilities are averaged.
        decay: largest :math:`a`.

    Example:
        >>> student = torch.nn.Conv2d(1, 2, 1)
        >>> teacher = EMATeacher([student])
        >>> _ = torch.nn.init.ones_(student.weight)
        >>> teacher.update()
        >>> bool((teacher.teachers[0].weight == 1).all()), teacher.steps
        (True, 1)
    """

    def __init__(self, networks: Sequence[torch.nn.Module], decay: float = 0.99) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}. 0.99 is usual.")
        self.networks, self.decay, self.steps = list(networks), decay, 0
        self.teachers = [_slow_copy(network) for network in networks]

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer of MONAI or vmfseg: follow after every optimizer step."""
        engine.add_event_handler(IterationEvents.MODEL_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Follow, unless gradients are still being added up."""
        stepper = getattr(engine, "stepper", None)
        if stepper is None or stepper.position(engine)[1]:
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Move the teachers towards their networks."""
        keep = min(1 - 1 / (self.steps + 1), self.decay)
        for teacher, network in zip(self.teachers, self.networks, strict=True):
            now = bare_network(network).state_dict()
            for name, value in teacher.state_dict().items():
                if value.is_floating_point():
                    value.lerp_(now[name].to(value), 1 - keep)
                else:
                    value.copy_(now[name])
        self.steps += 1

    @torch.no_grad()
    def predict(self, image: torch.Tensor) -> tuple[torch.Tensor, list[VMFParts]]:
        """Return the mean class probabilities ``BNHW`` (softmax) and the parts of every teacher."""
        parts = [network_parts(teacher, image) for teacher in self.teachers]
        return torch.stack([one.logits.float().softmax(dim=1) for one in parts]).mean(dim=0), parts

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"steps": self.steps, "teachers": [teacher.state_dict() for teacher in self.teachers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.steps = int(state["steps"])
        for teacher, weights in zip(self.teachers, state["teachers"], strict=True):
            teacher.load_state_dict(weights)


def _slow_copy(network: torch.nn.Module) -> torch.nn.Module:
    bare = bare_network(network)
    parts = [getattr(bare, name, None) for name in _TRAINING_ONLY]
    twin: torch.nn.Module = copy.deepcopy(bare, {id(part): None for part in parts if part is not None})
    return twin.eval().requires_grad_(False)
