# SPDX-License-Identifier: Apache-2.0
"""Batches of several loaders by shares: counts, order, resuming."""

from __future__ import annotations

import pytest
import torch
from slice_files import chain, write_subjects

from vmfseg.data import InterleavedLoader, MixedLoader, PhantomLoader, SliceDataset, SliceLoader


class Numbers:
    """A loader whose batches are its name and their number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, start: int, count: int):
        yield from ((self.name, number) for number in range(start, start + count))


def mixed(shares: dict[str, float], **others: object) -> MixedLoader:
    return MixedLoader({**{name: Numbers(name) for name in shares}, **others}, shares)


SHARES = [
    pytest.param({"a": 1, "b": 1}, id="halves"),
    pytest.param({"a": 3, "b": 1}, id="three to one"),
    pytest.param({"a": 0.1, "b": 0.9}, id="a tenth"),
    pytest.param({"a": 2, "b": 1, "c": 0.5}, id="three loaders"),
    pytest.param({"a": 1 / 3, "b": 1}, id="no round number"),
]


@pytest.mark.parametrize("shares", SHARES)
def test_every_loader_gives_its_share_in_its_own_order(shares):
    total = sum(shares.values())
    batches = list(mixed(shares).stream(0, 500))
    for name, share in shares.items():
        own = [number for who, number in batches if who == name]
        assert own == list(range(len(own))), "each batch of a loader once, in order"
        for end in (1, 7, 50, 333, 500):
            count = sum(who == name for who, _ in batches[:end])
            assert abs(count - end * share / total) <= (1 if len(shares) == 2 else 2)


@pytest.mark.parametrize("shares", SHARES)
def test_a_stream_can_begin_anywhere(shares):
    whole = list(mixed(shares).stream(0, 60))
    for start in (0, 1, 2, 5, 13, 59):
        assert list(mixed(shares).stream(start, 60 - start)) == whole[start:]
    assert list(mixed(shares).stream(7, 0)) == []


def test_a_loader_that_is_not_there_or_has_no_share_is_left_out():
    assert {who for who, _ in mixed({"a": 1, "b": 0}).stream(0, 20)} == {"a"}
    assert {who for who, _ in MixedLoader({"a": Numbers("a"), "b": None}).stream(0, 20)} == {"a"}


@pytest.mark.parametrize(
    ("shares", "loaders"),
    [
        pytest.param({"a": -1, "b": 1}, ("a", "b"), id="negative"),
        pytest.param({"a": float("nan")}, ("a",), id="not a number"),
        pytest.param({"a": 0}, ("a",), id="none positive"),
        pytest.param({"typo": 1}, ("a",), id="unknown name"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares, loaders):
    with pytest.raises(ValueError, match="share"):
        MixedLoader({name: Numbers(name) for name in loaders}, shares)


def test_phantom_and_real_labels_in_one_resumable_stream(tmp_path):
    def loader() -> InterleavedLoader:
        real = SliceLoader(SliceDataset(write_subjects(tmp_path, 2), chain()), batch_size=2, seed=3)
        phantom = PhantomLoader("cords", 4, batch_size=2, seed=3, size=32)
        free = SliceLoader(SliceDataset(write_subjects(tmp_path, 3, labeled=False), chain()), batch_size=3, seed=3)
        return InterleavedLoader(MixedLoader({"phantom": phantom, "labeled": real}), free, steps_per_epoch=4)

    whole = list(loader())
    assert ["label" in batch for batch in whole] == [True, False] * 4
    drawn = [batch["sample"][0].startswith("cords") for batch in whole[::2]]
    assert sorted(drawn) == [False, False, True, True]
    resumed = loader()
    resumed.start_at(3)
    for one, other in zip(whole[3:], resumed, strict=True):
        assert one["sample"] == other["sample"]
        assert torch.equal(one["image"], other["image"])
