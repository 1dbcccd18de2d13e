# SPDX-License-Identifier: Apache-2.0
"""Volumes prepared once, held by MONAI's datasets in memory or on disk."""

import gc
import pickle
from pathlib import Path

import pytest
import torch
from monai.data import CacheDataset, DataLoader, MetaTensor
from monai.transforms import Compose, RandGaussianNoised, RandShiftIntensityd
from slice_files import chain, write_subjects

from vmfseg.data import VolumeDataset


class Count:
    """A transform that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, row):
        self.calls += 1
        return row


CALLS = []


def tally(row):
    CALLS.append(1)
    return row


def same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]) if isinstance(value, torch.Tensor) else value == right[key]


def test_volumes_are_prepared_once_and_held_by_a_cache_dataset(tmp_path):
    rows, count = write_subjects(tmp_path, 3), Count()
    dataset = VolumeDataset(rows, Compose([*chain().transforms, count]))
    assert isinstance(dataset, CacheDataset)
    for _ in range(2):
        for k, row in enumerate(rows):
            same(dataset[k], chain()({key: value for key, value in row.items() if value is not None}))
    assert count.calls == 3
    assert dataset[1]["image"].data_ptr() == dataset[1]["image"].data_ptr(), "held, not made again"
    assert dataset[-1]["subject"] == "s2"


def test_rows_that_are_handed_over_come_before_the_default(tmp_path):
    rows = write_subjects(tmp_path, 3)
    assert [item["subject"] for item in VolumeDataset([], chain(), default=rows)] == ["s0", "s1", "s2"]
    assert [item["subject"] for item in VolumeDataset(None, chain(), default=rows)] == ["s0", "s1", "s2"]
    given = [{"image": rows[1]["image"], "label": rows[1]["label"]}]
    (item,) = VolumeDataset(given, chain(), default=rows)
    assert item["image"].meta["filename_or_obj"] == rows[1]["image"]
    with pytest.raises(ValueError, match="data must hold at least one row"):
        VolumeDataset([], chain())


def test_random_transforms_run_each_time_and_leave_the_cache_alone(tmp_path):
    rows, count = write_subjects(tmp_path, 1), Count()
    noise = RandGaussianNoised("image", prob=1.0)
    dataset = VolumeDataset(rows, Compose([*chain().transforms, count, noise, RandShiftIntensityd("image", 1.0)]))
    first, second = dataset[0]["image"], dataset[0]["image"]
    assert not torch.equal(first, second)
    assert count.calls == 1
    assert torch.equal(dataset._cache[0]["image"], chain()(rows[0])["image"])


@pytest.mark.parametrize("limit", [None, 0], ids=["memory", "disk"])
def test_the_disk_gives_equal_volumes_metadata_and_the_way_back(tmp_path, limit):
    rows = write_subjects(tmp_path, 2)
    steps = chain(roi=40, pixdim=1.0)
    for _ in range(2):
        dataset = VolumeDataset(rows, chain(roi=40, pixdim=1.0), cache_dir=tmp_path / "c", memory_limit=limit)
        for k, row in enumerate(rows):
            got, expected = dataset[k], steps(dict(row))
            for key in ("image", "label"):
                assert isinstance(got[key], MetaTensor)
                assert torch.equal(got[key], expected[key])
                assert torch.equal(got[key].affine, expected[key].affine)
                assert got[key].meta["filename_or_obj"] == row[key]
            back, true = (steps.inverse({"image": item["image"]})["image"] for item in (got, expected))
            assert torch.equal(back, true)
            assert torch.equal(back.affine, true.affine)
    assert len(list((tmp_path / "c").rglob("*.pt"))) == 2


def test_the_next_run_finds_what_is_on_disk(tmp_path):
    rows = write_subjects(tmp_path, 2)
    CALLS.clear()
    for _ in range(2):
        VolumeDataset(rows, Compose([*chain().transforms, tally]), cache_dir=tmp_path / "c")
    assert len(CALLS) == 2
    VolumeDataset(rows, Compose([*chain(roi=40).transforms, tally]), cache_dir=tmp_path / "c")
    assert len(CALLS) == 4, "another setting is another entry"


@pytest.mark.parametrize("num_workers", [0, 3])
def test_what_does_not_fit_goes_to_a_temporary_folder_with_one_warning(tmp_path, num_workers):
    rows = write_subjects(tmp_path, 5)
    expected = list(VolumeDataset(rows, chain()))
    size = sum(value.nbytes for value in expected[0].values() if isinstance(value, torch.Tensor))
    with pytest.warns(UserWarning, match="5 volumes need about") as caught:
        dataset = VolumeDataset(rows, chain(), num_workers=num_workers, memory_limit=2 * size)
    assert len(caught) == 1
    folder = Path(str(caught[0].message).split(" on disk in ")[1].split(" for this run")[0])
    assert len(list(folder.rglob("*.pt"))) == 3
    for got, item in zip(pickle.loads(pickle.dumps(dataset)), expected, strict=True):
        same(got, item)
    del dataset, got
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("limit", [None, 0], ids=["memory", "disk"])
def test_other_rows_take_the_place_of_the_first(tmp_path, limit):
    rows = write_subjects(tmp_path, 4)
    dataset = VolumeDataset(rows[:2], chain(), cache_dir=tmp_path / "c", memory_limit=limit)
    dataset.set_data(rows[1:])
    assert [item["subject"] for item in dataset] == ["s1", "s2", "s3"]
    assert torch.equal(dataset[2]["image"], chain()(rows[3])["image"])


def test_a_data_loader_takes_it(tmp_path):
    dataset = VolumeDataset(write_subjects(tmp_path, 2), chain())
    batches = list(DataLoader(dataset, batch_size=2, num_workers=1))
    assert batches[0]["image"].shape == (2, 1, 32, 32, 5)
    assert batches[0]["subject"] == ["s0", "s1"]
