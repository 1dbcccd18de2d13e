# SPDX-License-Identifier: Apache-2.0
"""Two streams in one: pattern, restarts, resuming, joint batches."""

from collections import Counter

import pytest
import torch
from monai.data import DataLoader, Dataset
from slice_files import chain, write_subjects
from torch.utils.data import DistributedSampler

from vmfseg.data import InterleavedLoader, SliceDataset, SliceLoader
from vmfseg.transforms import BatchAugment


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return SliceDataset(write_subjects(tmp_path_factory.mktemp("few"), 3), chain())  # 15 slices


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return SliceDataset(write_subjects(tmp_path_factory.mktemp("many"), 5, labeled=False), chain())  # 25 slices


def build(few, many, num_workers=0, labeled_size=4, unlabeled_size=4, **kwargs):
    augment = BatchAugment()
    labeled = SliceLoader(few, labeled_size, seed=1, augment=augment, num_workers=num_workers)
    unlabeled = (
        None if many is None else SliceLoader(many, unlabeled_size, seed=1, augment=augment, num_workers=num_workers)
    )
    return InterleavedLoader(labeled, unlabeled, **kwargs)


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.items())


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_a_labeled_batch_then_ratio_unlabeled_ones(few, many, ratio):
    loader = build(few, many, ratio=ratio)
    pattern = ["label" in batch for batch in loader]
    assert pattern == ([True] + [False] * ratio) * 3
    assert len(loader) == len(pattern)
    assert all("presence" not in batch for batch in loader if "label" not in batch)


SIZES = [
    pytest.param(4, 4, 1, None, id="similar"),
    pytest.param(1, 12, 1, None, id="unlabeled-shorter"),
    pytest.param(1, 12, 3, None, id="unlabeled-much-shorter"),
    pytest.param(8, 1, 1, None, id="labeled-shorter"),
    pytest.param(8, 8, 2, 20, id="both-shorter-than-the-epoch"),
    pytest.param(1, 1, 1, 2, id="both-longer-than-the-epoch"),
]


@pytest.mark.parametrize(("labeled_size", "unlabeled_size", "ratio", "steps"), SIZES)
def test_no_stream_ends_early_and_all_is_seen_before_anything_repeats(
    few, many, labeled_size, unlabeled_size, ratio, steps
):
    loader = build(
        few, many, labeled_size=labeled_size, unlabeled_size=unlabeled_size, ratio=ratio, steps_per_epoch=steps
    )
    streams = {True: [], False: []}
    for _ in range(3):
        epoch = list(loader)
        assert len(epoch) == len(loader)
        for batch in epoch:
            streams["label" in batch].append(batch["sample"])
    for labeled, source in ((True, loader.labeled), (False, loader.unlabeled)):
        batches = streams[labeled]
        for first in range(0, len(batches), len(source)):
            one_pass = Counter(name for batch in batches[first : first + len(source)] for name in batch)
            assert set(one_pass.values()) == {1}
        if len(batches) >= 2 * len(source):  # a restart is shuffled anew
            assert batches[: len(source)] != batches[len(source) : 2 * len(source)]


@pytest.mark.parametrize("joint", [False, True], ids=["alternating", "joint"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_anywhere_gives_the_same_batches(few, many, joint, num_workers):
    whole = build(few, many, ratio=2, joint=joint)
    epochs = [list(whole) for _ in range(3)]
    for epoch in (0, 2):
        for start in range(len(whole) + 1) if num_workers == 0 else (1, 2):
            resumed = build(few, many, ratio=2, joint=joint, num_workers=num_workers)
            resumed.set_epoch(epoch)
            resumed.start_at(start)
            same(resumed, epochs[epoch][start:])
            assert resumed.epoch == epoch + 1


@pytest.mark.parametrize("joint", [False, True], ids=["alternating", "joint"])
def test_workers_do_not_change_the_order(few, many, joint):
    same(build(few, many, joint=joint), build(few, many, joint=joint, num_workers=2))


def test_epochs_differ_and_stopping_early_changes_nothing(few, many):
    loader = build(few, many)
    first = list(loader)
    for _ in loader:
        break
    loader.set_epoch(0)
    same(loader, first)
    second = list(loader)
    assert [b["sample"] for b in first] != [b["sample"] for b in second]


def test_without_unlabeled_data_only_labeled_batches_come(few):
    loader = build(few, None, ratio=3)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert all("label" in batch for batch in batches)
    joint = list(build(few, None, joint=True))
    assert len(joint) == 3
    assert all(batch["labeled"].all() for batch in joint)


def test_joint_batches(few, many):
    loader = build(few, many, ratio=2, joint=True)
    parts = list(build(few, many, ratio=2))
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    for step, batch in enumerate(batches):
        labeled, *unlabeled = parts[3 * step : 3 * step + 3]
        assert batch["image"].shape == (12, 1, 32, 32)
        assert torch.equal(batch["image"], torch.cat([labeled["image"], *(u["image"] for u in unlabeled)]))
        assert torch.equal(batch["label"], labeled["label"])
        assert batch["presence"].shape == (4, 3)
        assert batch["labeled"].tolist() == [True] * 4 + [False] * 8
        assert batch["annotated"].shape == (12, 4)
        assert batch["sample"] == labeled["sample"] + unlabeled[0]["sample"] + unlabeled[1]["sample"]


def test_masks_of_the_unlabeled_stream_are_hidden(few):
    masked = InterleavedLoader(SliceLoader(few), SliceLoader(few))
    assert [batch.keys() & {"label", "presence"} for batch in masked][:2] == [{"label", "presence"}, set()]
    weak = InterleavedLoader(SliceLoader(few), SliceLoader(few, supervision="presence"))
    assert [batch.keys() & {"label", "presence"} for batch in weak][:2] == [{"label", "presence"}, {"presence"}]
    joint = InterleavedLoader(SliceLoader(few), SliceLoader(few, supervision="presence"), joint=True)
    batch = next(iter(joint))
    assert (len(batch["label"]), len(batch["presence"])) == (4, 8)


def test_bad_arguments(few, many, tmp_path):
    labeled, unlabeled = SliceLoader(few), SliceLoader(many)
    with pytest.raises(ValueError, match="unlabeled must be a loader that can be iterated again and again"):
        InterleavedLoader(labeled, iter([1]))
    with pytest.raises(ValueError, match="labeled must be a loader that can be iterated again and again, got int"):
        InterleavedLoader(1)
    with pytest.raises(ValueError, match="labeled must show labels"):
        InterleavedLoader(unlabeled, labeled)
    with pytest.raises(ValueError, match="ratio must be at least 1, got 0"):
        InterleavedLoader(labeled, unlabeled, ratio=0)
    with pytest.raises(ValueError, match="steps_per_epoch must be at least 1, got 0"):
        InterleavedLoader(labeled, unlabeled, steps_per_epoch=0)
    with pytest.raises(ValueError, match="iteration must be 0 to 6, got 7"):
        InterleavedLoader(labeled, unlabeled).start_at(7)
    other = SliceLoader(SliceDataset(write_subjects(tmp_path, 1, labeled=False), chain(roi=48)))
    with pytest.raises(ValueError, match="joint batches must have one image size"):
        InterleavedLoader(labeled, other, joint=True)
    assert len(InterleavedLoader(labeled, other)) == 6


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_one_loader_without_labels_is_a_stream_cut_into_epochs(many, steps):
    stream = InterleavedLoader(SliceLoader(many, 7, seed=1), steps_per_epoch=steps)
    whole = SliceLoader(many, 7, seed=1)
    expected = [batch["sample"] for _ in range(5) for batch in whole]
    epochs = [[batch["sample"] for batch in stream] for _ in range(2)]
    assert [batch for epoch in epochs for batch in epoch] == expected[: 2 * steps]
    assert len(stream) == steps
    stream.set_epoch(1)
    assert [batch["sample"] for batch in stream] == epochs[1]


def plain(count, size=2, label=True):
    """Batches that are told apart by the value of their voxels."""
    keys = ("image", "label") if label else ("image",)
    return [{key: torch.full((size, 1, 4, 4), float(k)) for key in keys} for k in range(count)]


def values(batches):
    return [(int(batch["image"][0, 0, 0, 0]), "label" in batch) for batch in batches]


def test_any_iterables_of_batches_are_interleaved():
    loader = InterleavedLoader(plain(3), plain(2), ratio=1)
    for _ in range(2):  # an epoch starts anew
        assert values(loader) == [(0, True), (0, False), (1, True), (1, False), (2, True), (0, False)]
    loader.start_at(3)
    assert values(loader) == [(1, False), (2, True), (0, False)]
    joint = list(InterleavedLoader(plain(2), plain(2, 4), ratio=2, joint=True))
    assert [tuple(batch["image"].shape) for batch in joint] == [(10, 1, 4, 4)] * 2
    assert [batch["labeled"].tolist() for batch in joint] == [[True] * 2 + [False] * 8] * 2


def test_a_plain_data_loader_joins_a_slice_loader(few):
    items = [{"image": torch.full((1, 32, 32), float(k)), "number": k} for k in range(6)]
    source = Dataset(items)
    sampler = DistributedSampler(source, num_replicas=1, rank=0, seed=3)
    loader = InterleavedLoader(SliceLoader(few, 4, seed=1), DataLoader(source, batch_size=2, sampler=sampler))
    epochs = [list(loader) for _ in range(2)]
    numbers = [[n for batch in epoch[1::2] for n in batch["number"].tolist()] for epoch in epochs]
    assert [sorted(epoch) for epoch in numbers] == [list(range(6))] * 2
    assert numbers[0] != numbers[1], "the sampler is told the epoch"
    loader.set_epoch(1)
    loader.start_at(2)
    again = list(loader)
    assert [n for batch in again[1::2] for n in batch["number"].tolist()] == numbers[1][2:]
    same(again[::2], epochs[1][2::2])


def test_a_loader_that_gives_nothing_is_an_error_and_not_an_endless_wait():
    class Once:
        def __init__(self):
            self.source = iter(plain(1))

        def __iter__(self):
            return self.source

    with pytest.raises(ValueError, match="loaders must give batches in every epoch"):
        list(InterleavedLoader(Once(), steps_per_epoch=2))
    with pytest.raises(ValueError, match="steps_per_epoch must be given for a loader without length"):
        InterleavedLoader(Once())
