# SPDX-License-Identifier: Apache-2.0
"""Two processes on gloo: the same result as one process on the same global batches."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY

from vmfseg.bundle import distributed
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m")
STEPS = {"max_iterations": 6, "epoch_length": 3}


def files(bundle: Path, *names: str) -> str:
    return str([str(bundle / "configs" / name) for name in names])


def test_two_processes_equal_one_on_the_same_global_batches(phantoms, copied, run_bundle, monkeypatch):
    both, one = copied("unsupervised_mnms"), copied("unsupervised_mnms")
    keys = {"dataset_dir": phantoms["mnms"], "learning_rate": 0.01, "pretraining_iterations": 2, **TINY, **STEPS}
    text = run_bundle(
        "training",
        "--config_file",
        files(both, "train.json", "multi_gpu_train.json"),
        program=TORCHRUN,
        batch_size=2,
        **keys,
    )
    assert text.count("stage 3/5 training") == 1, "only the first process speaks"
    (one / "configs" / "joined.json").write_text(
        json.dumps(
            {
                "pretraining::dataloader::batch_size": 2,
                "train::dataloader": {
                    "_target_": "global_batches.GlobalBatches",
                    "dataset": "@train::dataset",
                    "batch_size": 2,
                    "seed": "@seed",
                    "augment": "@augmentation",
                    "steps_per_epoch": "@epoch_length",
                    "world_size": 2,
                },
            }
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    run_bundle("training", "--config_file", files(one, "train.json", "joined.json"), **keys)
    scores = [json.loads((bundle / "output" / "metrics.json").read_text())["mean_dice"] for bundle in (both, one)]
    weights = [torch.load(bundle / "models" / "model.pt", weights_only=True) for bundle in (both, one)]
    start = torch.load(next(one.glob("output/stages/kernels-*/kernels.pt")), weights_only=True)["means"]
    assert not torch.allclose(weights[1]["kernels.weight"], start, atol=1e-3), "the kernels have learnt"
    torch.testing.assert_close(weights[0]["kernels.weight"], weights[1]["kernels.weight"], atol=1e-5, rtol=1e-4)
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "joint"),
    [("vmfnet_mnms", False), ("vmfnet_mnms", True), ("vmfpseudo_mnms", False), ("vmfweak_mnms", True)],
)
def test_two_processes_train_what_has_unused_outputs(name, joint, phantoms, copied, run_bundle):
    bundle = copied(name)
    config = files(bundle, "train.json", "multi_gpu_train.json")
    keys = {"dataset_dir": phantoms["mnms"], **TINY, **STEPS}
    run_bundle("training", "--config_file", config, program=TORCHRUN, joint=joint, batch_size=2, **keys)
    metrics = json.loads((bundle / "output" / "metrics.json").read_text())
    assert math.isfinite(metrics["mean_dice"])
    assert metrics["mean_dice"] >= 0


@pytest.mark.slow
def test_sharded_evaluation_equals_that_of_one_process(phantoms, copied, run_bundle):
    bundle = copied("vmfnet_mnms")
    data = {"dataset_dir": phantoms["mnms"]}
    run_bundle("training", "--config_file", str(bundle / "configs/train.json"), **data, **TINY, **STEPS)
    config = files(bundle, "train.json", "multi_gpu_train.json", "evaluate.json")
    run_bundle("evaluating", "--config_file", config, program=TORCHRUN, **data)
    assert (bundle / "eval" / "metrics.csv").read_bytes() == (bundle / "output" / "metrics.csv").read_bytes()


def test_start_asks_for_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(VmfError, match=r"VMF308(.|\n)*RANK"):
        distributed.start()


def test_synchronized_batch_norm_needs_gpus():
    with pytest.raises(VmfError, match="VMF309"):
        distributed.wrap(torch.nn.Conv2d(1, 1, 1), sync_batch_norm=True)


SHARES = [
    pytest.param(5, 2, [[0, 2, 4], [1, 3]], id="uneven"),
    pytest.param(2, 2, [[0], [1]], id="one each"),
    pytest.param(1, 3, [[0], [0], [0]], id="too few"),
]


@pytest.mark.parametrize(("count", "processes", "expected"), SHARES)
def test_every_process_has_something_to_evaluate(count, processes, expected):
    assert [distributed.share(range(count), rank, processes) for rank in range(processes)] == expected


def test_joined_outputs_give_every_parameter_a_gradient_and_change_none():
    image = torch.rand(2, 1, 16, 16)
    arguments = {"channels": (4, 8, 8), "num_kernels": 3, "hidden_channels": 4, "seed": 1}
    plain, joined = VMFNet(**arguments), VMFNet(**arguments)
    joined.register_forward_hook(distributed._join_outputs)
    for network in (plain, joined):
        network(image, return_parts=True).reconstruction.square().mean().backward()
    for (name, mine), other in zip(joined.named_parameters(), plain.parameters(), strict=True):
        expected = torch.zeros_like(mine) if other.grad is None else other.grad
        torch.testing.assert_close(mine.grad, expected, msg=name)
    assert any(parameter.grad is None for parameter in plain.parameters())
