# SPDX-License-Identifier: Apache-2.0
"""Random MONAI transforms in the chain: run on slices, seeded by (run seed, epoch, sample)."""

import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    Lambdad,
    OneOf,
    RandAffined,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandSpatialCropd,
    ScaleIntensityd,
)
from slice_files import chain, write_subjects
from torch.utils.data import DataLoader

from vmfseg.data import InterleavedLoader, SliceDataset, SliceLoader
from vmfseg.transforms import BatchAugment
from vmfseg.utils import VmfError, derive_seed

KEYS = ("image", "label")


def steps():
    return [
        RandAffined(KEYS, prob=0.8, rotate_range=0.5, mode=("bilinear", "nearest"), allow_missing_keys=True),
        RandFlipd(KEYS, prob=0.5, spatial_axis=0, allow_missing_keys=True),
        RandGaussianNoised("image", prob=0.9, std=0.1),
        ScaleIntensityd("image"),
    ]


def build(rows, extra=None, **kwargs):
    return SliceDataset(rows, Compose([chain(), *(steps() if extra is None else extra)]), **kwargs)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_subjects(tmp_path_factory.mktemp("labeled"), 3)


@pytest.fixture(scope="module")
def dataset(rows):
    return build(rows)


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, torch.Tensor):
                assert value.numpy().tobytes() == b[key].numpy().tobytes()
            else:
                assert value == b[key]


def test_the_chain_is_split_before_the_first_random_transform(dataset):
    names = [type(step).__name__ for step in dataset.deterministic.transforms]
    assert names[0] == "LoadVolumed"
    assert names[-1] == "AsClassesd"
    assert [type(step).__name__ for step in dataset.random.transforms] == [type(step).__name__ for step in steps()]


def test_a_slice_is_what_monai_makes_of_it_with_that_seed(rows, dataset):
    plain = SliceDataset(rows, chain())
    loader = SliceLoader(dataset, 5, seed=9)
    loader.set_epoch(4)
    batch = next(iter(loader))
    index = {plain.sample(k): k for k in range(len(plain))}
    for k, name in enumerate(batch["sample"]):
        item = plain[index[name]]
        oracle = Compose(steps()).set_random_state(derive_seed(9, 4, name) % 2**32)
        expected = oracle({key: item[key].clone() for key in KEYS})
        np.testing.assert_array_equal(batch["image"][k].numpy(), np.asarray(expected["image"]))
        np.testing.assert_array_equal(batch["label"][k].numpy(), np.asarray(expected["label"]))
    assert (batch["image"].dtype, batch["label"].dtype) == (torch.float32, torch.uint8)
    assert type(batch["image"]) is torch.Tensor


@pytest.mark.parametrize("augment", [None, BatchAugment()], ids=["plain", "augment"])
def test_workers_and_resuming_give_the_same_bytes(rows, augment):
    whole = SliceLoader(build(rows), 4, seed=5, augment=augment)
    epochs = [list(whole) for _ in range(2)]
    assert not torch.equal(epochs[0][0]["image"], epochs[1][0]["image"])
    other = SliceLoader(build(rows), 4, seed=5, augment=augment, num_workers=2)
    same(other, epochs[0])
    resumed = SliceLoader(build(rows), 4, seed=5, augment=augment)
    resumed.set_epoch(1)
    resumed.start_at(1)
    same(resumed, epochs[1][1:])


def test_the_cache_is_never_written_to(rows, dataset):
    list(SliceLoader(dataset))
    plain = SliceDataset(rows, chain())
    for volume, expected in zip(dataset.volumes, plain.volumes, strict=True):
        assert torch.equal(volume["image"], expected["image"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_data_loader_is_seeded_by_the_epoch_of_the_dataset(rows, num_workers):
    dataset = build(rows, seed=3)
    loader = InterleavedLoader(DataLoader(dataset, batch_size=5, num_workers=num_workers))
    epochs = [list(loader) for _ in range(2)]
    assert not torch.equal(epochs[0][0]["image"], epochs[1][0]["image"])
    expected = dataset.fetch(0, seed=derive_seed(3, 1, dataset.sample(0)))
    assert torch.equal(epochs[1][0]["image"][0], expected["image"])


def test_rows_without_label_and_hidden_labels(tmp_path, rows):
    unlabeled = build(write_subjects(tmp_path, 2, labeled=False))
    assert all("label" not in batch for batch in SliceLoader(unlabeled))
    shown, hidden = SliceLoader(build(rows), seed=1), SliceLoader(build(rows), seed=1, supervision="none")
    for a, b in zip(shown, hidden, strict=True):
        assert "label" not in b
        assert torch.equal(a["image"], b["image"])


def test_crops_choices_and_other_sizes(rows):
    dataset = build(rows, [OneOf([RandFlipd(KEYS, prob=1.0), RandSpatialCropd(KEYS, 16, random_size=False)])])
    assert {tuple(dataset.fetch(0, seed=k)["image"].shape) for k in range(20)} == {(1, 16, 16), (1, 32, 32)}
    batch = next(iter(SliceLoader(build(rows, [RandSpatialCropd(KEYS, 16, random_size=False)]))))
    assert batch["image"].shape == batch["label"].shape == (4, 1, 16, 16)


def test_what_is_no_slice_or_no_label_is_refused(rows):
    many = RandCropByPosNegLabeld(KEYS, "label", spatial_size=8, num_samples=2)
    with pytest.raises(ValueError, match="transform must give one slice for a slice, got list"):
        build(rows, [many])[2]
    blurred = [RandFlipd(KEYS, prob=0.5), Lambdad("label", lambda x: x * 0.5)]
    with pytest.raises(VmfError, match="VMF153"):
        build(rows, blurred)[2]
