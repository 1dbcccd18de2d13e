# SPDX-License-Identifier: Apache-2.0
"""Endless phantom batches: a pure function of seed and number, shared out among processes, ready for training."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from vmfseg.data import InterleavedLoader, PhantomLoader
from vmfseg.phantom import PhantomSlices
from vmfseg.transforms import BatchAugment

SMALL = {"size": 32, "pixdim": 1.5}


def loader(**kwargs):
    return PhantomLoader("cords", 3, **{"batch_size": 2, "seed": 5, **SMALL, **kwargs})


def test_a_batch_holds_the_slices_of_its_number():
    plain = PhantomSlices("cords", seed=5, **SMALL)
    (batch,) = loader().stream(3, 1)
    for place, number in enumerate((6, 7)):
        assert torch.equal(batch["image"][place], plain[number]["image"])
        assert torch.equal(batch["label"][place], plain[number]["label"])
        held = np.isin([1, 2], plain[number]["label"].numpy())
        assert batch["presence"][place].tolist() == held.tolist()
    assert batch["annotated"].tolist() == [[True] * 3] * 2


def test_workers_and_the_place_where_a_stream_begins_change_nothing():
    augment = BatchAugment(rotation=(-20.0, 20.0), integer_angles=False, noise=0.05)
    whole = list(loader(augment=augment).stream(0, 4))
    tail = list(loader(augment=augment, num_workers=2).stream(2, 2))
    for one, other in zip(whole[2:], tail, strict=True):
        assert one["sample"] == other["sample"]
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])
    assert not torch.equal(whole[0]["image"], next(loader().stream(0, 1))["image"])


def test_processes_share_the_slices_out():
    parts = [[s for b in loader(rank=rank, world_size=2).stream(0, 3) for s in b["sample"]] for rank in (0, 1)]
    alone = [s for b in loader().stream(0, 6) for s in b["sample"]]
    assert sorted(parts[0] + parts[1]) == sorted(alone)
    assert not set(parts[0]) & set(parts[1])


def test_epochs_go_on_where_the_last_one_ended():
    stream = InterleavedLoader(loader(length=2), steps_per_epoch=3)
    seen = [sample for _ in range(2) for batch in stream for sample in batch["sample"]]
    assert seen == [f"cords-5-{number}" for number in range(12)]
    stream.set_epoch(1)
    stream.start_at(2)
    assert [batch["sample"] for batch in islice(stream, 1)] == [["cords-5-10", "cords-5-11"]]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"rank": 2, "world_size": 2}, {"length": 0}, {"num_workers": -1}])
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match="must be at least 1"):
        loader(**wrong)
