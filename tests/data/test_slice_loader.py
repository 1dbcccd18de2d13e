# SPDX-License-Identifier: Apache-2.0
"""Batches: the order, the augmentation and the bytes are a function of (seed, epoch)."""

import gc
import os
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch
from slice_files import chain, write_subjects

from vmfseg.data import SliceDataset, SliceLoader
from vmfseg.data.sampling import shard_subjects
from vmfseg.transforms import BatchAugment
from vmfseg.transforms.presence_labels import presence_labels
from vmfseg.utils import VmfError, derive_seed

STRONG = BatchAugment(gamma=(0.6, 1.6), fourier=0.5, noise=0.05)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return SliceDataset(write_subjects(tmp_path_factory.mktemp("labeled"), 7, domains="AAAAABC"), chain())


@pytest.fixture(scope="module")
def unlabeled(tmp_path_factory):
    return SliceDataset(write_subjects(tmp_path_factory.mktemp("unlabeled"), 2, labeled=False), chain())


def names(loader):
    return [name for batch in loader for name in batch["sample"]]


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == b[key].dtype
                assert value.numpy().tobytes() == b[key].numpy().tobytes()
            else:
                assert value == b[key]


def test_batches_hold_what_they_say(dataset):
    loader = SliceLoader(dataset, batch_size=4, shuffle=False)
    batches = list(loader)
    assert len(loader) == len(batches) == 9  # 35 slices, the last batch is incomplete
    batch = batches[0]
    assert batch["image"].shape == batch["label"].shape == (4, 1, 32, 32)
    assert (batch["image"].dtype, batch["label"].dtype) == (torch.float32, torch.uint8)
    assert batch["presence"].shape == (4, 3)
    assert batch["annotated"].shape == (4, 4)
    assert batch["slice"].tolist() == [0, 1, 2, 3]
    assert batch["frame"].tolist() == [-1] * 4
    assert batch["domain"] == ["A"] * 4
    assert names(batches) == [dataset.sample(k) for k in range(35)]


def test_shuffled_epochs_visit_each_slice_once_in_new_orders(dataset):
    loader = SliceLoader(dataset, batch_size=4, drop_last=False)
    epochs = [names(loader) for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(dataset.sample(k) for k in range(35))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert loader.epoch == 3


def test_order_is_a_function_of_seed_and_epoch(dataset):
    loader = SliceLoader(dataset, seed=3)
    first, second = names(loader), names(loader)
    loader.set_epoch(1)
    assert names(loader) == second
    loader.set_epoch(0)
    assert names(loader) == first
    assert names(SliceLoader(dataset, seed=4)) != first


@pytest.mark.parametrize(
    "augment",
    [None, BatchAugment(), STRONG],
    ids=["plain", "reference", "strong"],
)
def test_workers_give_the_same_bytes(dataset, augment):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loaders = [SliceLoader(dataset, seed=5, augment=augment, num_workers=n) for n in (0, 2)]
        for _ in range(2):
            same(*loaders)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("start", [0, 1, 5, 8])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_within_an_epoch_gives_the_same_batches(dataset, start, num_workers):
    augment = BatchAugment()
    whole = SliceLoader(dataset, seed=5, augment=augment)
    whole.set_epoch(2)
    resumed = SliceLoader(dataset, seed=5, augment=augment, num_workers=num_workers)
    resumed.set_epoch(2)
    resumed.start_at(start)
    expected = list(whole)[start:]
    got = list(resumed)
    assert len(got) == len(whole) - start
    if expected:
        same(got, expected)
    same(resumed, whole)  # the next epoch is complete again


def test_augmentation_is_seeded_by_seed_epoch_and_sample(dataset):
    augment = BatchAugment()
    loader = SliceLoader(dataset, batch_size=5, seed=9, augment=augment)
    loader.set_epoch(4)
    batch = next(iter(loader))
    index = {dataset.sample(k): k for k in range(len(dataset))}
    for k, name in enumerate(batch["sample"]):
        item = dataset[index[name]]
        alone = augment({"image": item["image"][None], "label": item["label"][None]}, [derive_seed(9, 4, name)])
        assert torch.equal(alone["image"][0], batch["image"][k])
        assert torch.equal(alone["label"][0], batch["label"][k])


def test_several_augmentations_are_called_in_turn_with_the_same_seeds(dataset):
    seen = []

    def step(factor):
        def change(batch, seeds):
            seen.append(list(seeds))
            return {**batch, "image": factor * batch["image"] + 1.0}

        return change

    plain = next(iter(SliceLoader(dataset, batch_size=3, seed=9)))
    both = next(iter(SliceLoader(dataset, batch_size=3, seed=9, augment=[step(2.0), step(3.0)])))
    assert torch.equal(both["image"], 3.0 * (2.0 * plain["image"] + 1.0) + 1.0)
    assert seen[0] == seen[1]


def test_presence_is_computed_after_augmentation(dataset):
    augment = BatchAugment(rotation=0.0, flip=0.0, blur_sigma=None, scale=(4.0, 4.0))  # magnified: corners are lost
    batches = list(SliceLoader(dataset, batch_size=35, shuffle=False, augment=augment))
    assert torch.equal(batches[0]["presence"], presence_labels(batches[0]["label"], 4))
    assert not batches[0]["presence"][:, 2].any()
    assert dataset.presence()[:, 2].any()


def test_the_cache_is_never_written_to(dataset):
    before = [dataset[k]["image"].clone() for k in range(len(dataset))]
    list(SliceLoader(dataset, augment=STRONG))
    assert all(torch.equal(dataset[k]["image"], image) for k, image in enumerate(before))


def test_domains_get_equal_turns(dataset):
    loader = SliceLoader(dataset, batch_size=3, balanced="domain", drop_last=False)
    for _ in range(2):
        batches = list(loader)
        counts = Counter(domain for batch in batches for domain in batch["domain"])
        assert sum(counts.values()) == 35
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(set(batch["domain"]) == set("ABC") for batch in batches[:-1])
        seen = Counter(name for batch in batches for name in batch["sample"])
        for domain, size in (("B", 5), ("C", 5)):  # small domains repeat evenly
            times = [n for name, n in seen.items() if name.startswith(domain)]
            assert len(times) == size
            assert max(times) - min(times) <= 1


def test_a_repeated_slice_is_augmented_anew(dataset):
    loader = SliceLoader(dataset, batch_size=35, balanced="domain", augment=BatchAugment(), drop_last=False)
    batch = next(iter(loader))
    name, times = Counter(batch["sample"]).most_common(1)[0]
    assert times >= 2
    first, second = [k for k, sample in enumerate(batch["sample"]) if sample == name][:2]
    assert not torch.equal(batch["image"][first], batch["image"][second])


def test_foreground_classes_get_equal_turns(dataset):
    batch = next(iter(SliceLoader(dataset, batch_size=32, balanced="foreground", drop_last=True)))
    share = batch["presence"].float().mean(dim=0)
    assert share[2] >= 0.25  # class 3 is in a fifth of the slices
    assert 0.2 <= float((~batch["presence"].any(dim=1)).float().mean()) <= 0.3


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_out_whole_subjects_in_equal_lengths(dataset, world_size):
    loaders = [
        SliceLoader(dataset, batch_size=2, rank=r, world_size=world_size, drop_last=False) for r in range(world_size)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        subjects = [{s for batch in loader for s in batch["subject"]} for loader in loaders]
        assert sum(len(s) for s in subjects) == len(set().union(*subjects)) == 7
    plain = [SliceLoader(dataset, shuffle=False, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(name for loader in plain for name in names(loader)) == sorted(dataset.sample(k) for k in range(35))


def test_shares_are_even_and_total():
    rng = np.random.default_rng(0)
    subjects = [f"s{k}" for k in range(40) for _ in range(int(rng.integers(5, 20)))]
    shares = shard_subjects(subjects, 4)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(subjects)))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 20


@pytest.mark.parametrize(
    ("supervision", "keys"), [("mask", {"label", "presence"}), ("presence", {"presence"}), ("none", set())]
)
def test_supervision_decides_what_is_shown(dataset, supervision, keys):
    plain = next(iter(SliceLoader(dataset, augment=BatchAugment())))
    batch = next(iter(SliceLoader(dataset, augment=BatchAugment(), supervision=supervision)))
    assert keys == batch.keys() & {"label", "presence"}
    assert torch.equal(batch["image"], plain["image"])
    if "presence" in keys:
        assert torch.equal(batch["presence"], plain["presence"])


def test_unlabeled_slices_have_no_label(unlabeled):
    loader = SliceLoader(unlabeled, augment=BatchAugment())
    assert loader.supervision == "none"
    assert all(not batch.keys() & {"label", "presence"} for batch in loader)


def test_a_small_dataset_keeps_its_only_batch(unlabeled):
    assert len(SliceLoader(unlabeled, batch_size=64)) == 1
    with pytest.raises(
        ValueError, match="batch_size must be at most the number of slices with drop_last, got 64 for 10"
    ):
        SliceLoader(unlabeled, batch_size=64, drop_last=True)


class Suicide:
    def __call__(self, batch, seeds):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_reported(dataset):
    with pytest.raises(VmfError, match=r"VMF513[\s\S]*fewer workers") as caught:
        list(SliceLoader(dataset, augment=Suicide(), num_workers=1))
    assert caught.value.exit_code == 6


class Failing:
    def __call__(self, batch, seeds):
        raise RuntimeError("the augmentation is broken")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_errors_stay_what_they_are_and_workers_end_at_once(dataset, num_workers, monkeypatch):
    # how long torch waits for each worker when it finds the iterator unfinished
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1000.0)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="the augmentation is broken") as caught:
        list(SliceLoader(dataset, augment=Failing(), num_workers=num_workers))
    assert not isinstance(caught.value, VmfError)
    del caught
    gc.collect()
    assert time.monotonic() - start < 500


BAD = [
    pytest.param({"batch_size": 0}, "batch_size must be at least 1, got 0", id="batch"),
    pytest.param({"balanced": "domains"}, "Did you mean 'domain'", id="balanced"),
    pytest.param({"balanced": "domain", "shuffle": False}, "balanced must be 'none' without shuffle", id="unshuffled"),
    pytest.param({"rank": 2, "world_size": 2}, "rank must be 0 to world_size - 1, got 2 of 2", id="rank"),
    pytest.param({"world_size": 8}, "world_size must be at most the number of subjects, got 8 for 7", id="world"),
    pytest.param({"supervision": "masks"}, "Did you mean 'mask'", id="supervision"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD)
def test_bad_arguments(dataset, kwargs, message):
    with pytest.raises(ValueError, match=message):
        SliceLoader(dataset, **kwargs)


def test_mixed_rows_and_mixed_sizes_are_refused(tmp_path):
    rows = write_subjects(tmp_path, 2)
    del rows[0]["label"]
    with pytest.raises(ValueError, match="labeled throughout or not at all, got 1 labeled rows of 2"):
        SliceLoader(SliceDataset(rows, chain()))
    (tmp_path / "b").mkdir()
    mixed = write_subjects(tmp_path, 1) + write_subjects(tmp_path / "b", 1, shape=(30, 22, 5))
    with pytest.raises(ValueError, match="slices must have one size"):
        SliceLoader(SliceDataset(mixed, chain(roi=None)))
    assert len(list(SliceLoader(SliceDataset(mixed, chain(roi=None)), batch_size=1))) == 10


def test_start_beyond_the_epoch(dataset):
    loader = SliceLoader(dataset)
    with pytest.raises(ValueError, match="iteration must be 0 to 8, got 9"):
        loader.start_at(9)
