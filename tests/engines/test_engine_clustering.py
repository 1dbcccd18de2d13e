# SPDX-License-Identifier: Apache-2.0
"""KernelClusteringTrainer: the kernels move, nothing else does."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from torch.nn import functional as F

from vmfseg.engines import KernelClusteringTrainer
from vmfseg.handlers import ProgressHandler
from vmfseg.losses import VMFLoss


def _trainer(net, data, parameters=None, **kwargs):
    optimizer = torch.optim.Adam(net.parameters() if parameters is None else parameters, 0.05)
    return KernelClusteringTrainer(
        network=net, device="cpu", max_epochs=3, train_data_loader=data, optimizer=optimizer,
        loss_function=VMFLoss({"clustering": 1.0, "reconstruction": 1.0}), **kwargs,
    )  # fmt: skip


def test_only_the_kernels_change(vmf_net, batches, snapshot, same):
    net = vmf_net().train()
    before, modes = snapshot(net), []
    trainer = _trainer(net, batches((False,) * 3))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda _e: modes.append([m.training for m in net.modules()]))
    trainer.run()
    assert same(before, snapshot(net)) == ["kernels.weight"]
    assert not any(any(mode) for mode in modes)  # so the batch-norm statistics are those of pre-training
    assert any("running_mean" in name for name in before)


def test_the_kernels_come_closer_to_the_features(vmf_net, batches):
    net = vmf_net()
    data = batches((False,) * 3)

    def distance():
        with torch.no_grad():
            z = torch.cat([net.eval().encoder(b["image"]).flatten(2).movedim(1, 2).flatten(0, 1) for b in data])
            return float(1 - (F.normalize(z, dim=1) @ F.normalize(net.kernels.weight, dim=1).T).amax(dim=1).mean())

    before = distance()
    _trainer(net, data).run()
    assert distance() < before


def _fail(_engine):
    raise RuntimeError("stop here")


@pytest.mark.parametrize("handlers", [[], [ProgressHandler("x")]], ids=["alone", "with a handler that re-raises first"])
def test_requires_grad_is_restored_however_it_ends(vmf_net, batches, handlers):
    net = vmf_net()
    next(net.head.parameters()).requires_grad_(False)  # frozen by the user; it stays so
    wanted = [p.requires_grad for p in net.parameters()]
    during = []
    trainer = _trainer(net, batches((False,)), train_handlers=handlers)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda _e: during.extend(n for n, p in net.named_parameters() if p.requires_grad)
    )
    trainer.run()
    assert set(during) == {"kernels.weight"}
    assert [p.requires_grad for p in net.parameters()] == wanted

    trainer = _trainer(net, batches((False,)), train_handlers=handlers)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, _fail)
    with pytest.raises(RuntimeError, match="stop here"):
        trainer.run()
    assert [p.requires_grad for p in net.parameters()] == wanted


def test_an_optimizer_without_the_kernels_is_refused(vmf_net, batches):
    net = vmf_net()
    with pytest.raises(ValueError, match="optimizer must hold network"):
        _trainer(net, batches(), net.encoder.parameters())
