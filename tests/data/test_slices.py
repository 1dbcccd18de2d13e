# SPDX-License-Identifier: Apache-2.0
"""Slices of volumes that are read once, from memory or from disk."""

import gc
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from slice_files import SHAPE, chain, write_subjects

import vmfseg.data.reader as reader
from vmfseg.data import LoadVolumed, SliceDataset, SliceLoader
from vmfseg.transforms import slice_space_transforms
from vmfseg.utils import VmfError


def same_items(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert torch.equal(value, b[key]) if isinstance(value, torch.Tensor) else value == b[key]


def items(dataset):
    return [dataset[k] for k in range(len(dataset))]


def test_items_are_the_slices_of_the_files(tmp_path):
    rows = write_subjects(tmp_path, 2)
    dataset = SliceDataset(rows, chain(roi=None, normalize=None))
    assert len(dataset) == 10
    for k, row in enumerate(rows):
        image, label = nib.load(row["image"]).get_fdata(), nib.load(row["label"]).get_fdata()
        for z in range(5):
            item = dataset[5 * k + z]
            np.testing.assert_array_equal(item["image"][0].numpy(), image[..., z])
            np.testing.assert_array_equal(item["label"][0].numpy(), label[..., z])
            assert item["image"].dtype == torch.float32
            assert item["label"].dtype == torch.uint8
            assert (item["domain"], item["subject"], item["slice"], item["frame"]) == ("AB"[k], f"s{k}", z, -1)
            assert item["sample"] == f"{'AB'[k]}/s{k}/-/{z}"
            assert item["annotated"].tolist() == [True] * 4
    assert dataset[-1]["sample"] == dataset[9]["sample"]
    with pytest.raises(IndexError):
        dataset[10]


def test_motion_is_the_spread_of_the_prepared_images_over_the_frames_of_a_file(tmp_path):
    rows = write_subjects(tmp_path, 2, frames=3)
    dataset = SliceDataset(rows, chain(), motion=True)
    images = {dataset.sample(k): dataset[k]["image"][0].numpy() for k in range(len(dataset))}
    for item in items(dataset):
        frames = [images[f"{item['domain']}/{item['subject']}/{frame}/{item['slice']}"] for frame in range(3)]
        np.testing.assert_allclose(item["motion"][0], np.minimum(4 * np.std(frames, axis=0), 1), atol=1e-6)
    assert SliceLoader(dataset, batch_size=4).spec(0)
    assert float(SliceDataset(rows[:1], chain(), motion=True)[0]["motion"].abs().max()) == 0  # nothing to compare


def test_motion_and_random_transforms_of_slices_do_not_go_together(tmp_path):
    from monai.transforms import Compose, RandFlipd

    with pytest.raises(ValueError, match="Use BatchAugment"):
        SliceDataset(write_subjects(tmp_path, 1), Compose([*chain().transforms, RandFlipd("image")]), motion=True)


def test_samples_are_unique_over_frames(tmp_path):
    dataset = SliceDataset(write_subjects(tmp_path, 2, frames=3), chain())
    names = [dataset.sample(k) for k in range(len(dataset))]
    assert len(names) == len(set(names)) == 2 * 3 * 5
    assert {item["frame"] for item in items(dataset)} == {0, 1, 2}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_cine_is_opened_once_even_when_its_rows_are_shuffled(tmp_path, monkeypatch, num_workers):
    rows = write_subjects(tmp_path, 2, frames=4, labeled=False)
    opened = []
    read = reader.read_nifti
    monkeypatch.setattr(reader, "read_nifti", lambda path, rules: opened.append(path) or read(path, rules))
    reader.clear_cache()
    mixed = [rows[k] for k in (5, 0, 6, 1, 4, 3, 7, 2)]
    dataset = SliceDataset(mixed, chain(), num_workers=num_workers)
    assert dataset[0]["subject"] == "s1"
    assert dataset[5]["subject"] == "s0"
    if num_workers == 0:
        assert sorted(opened) == sorted({row["image"] for row in rows})


def test_unlabeled_rows_never_open_a_label(tmp_path):
    rows = write_subjects(tmp_path, 2)
    for row in rows:
        Path(row.pop("label")).unlink()
    rows[1]["label"] = None
    dataset = SliceDataset(rows, chain())
    assert all("label" not in item for item in items(dataset))
    with pytest.raises(ValueError, match="presence must be asked of labeled rows only"):
        dataset.presence()


def test_presence_and_annotated(tmp_path):
    rows = write_subjects(tmp_path, 2)
    rows[1]["annotated"] = [1, 2]
    dataset = SliceDataset(rows, chain())
    table = dataset.presence()
    assert table.shape == (10, 3)
    for k, item in enumerate(items(dataset)):
        assert table[k].tolist() == [bool((item["label"] == c).any()) for c in (1, 2, 3)]
    assert table[0].tolist() == [False, False, False]
    assert table[:5, 2].tolist() == [False, False, True, False, False]
    assert dataset[9]["annotated"].tolist() == [True, True, True, False]


def test_threads_and_disk_give_the_same_slices(tmp_path):
    rows = write_subjects(tmp_path, 3)
    expected = items(SliceDataset(rows, chain()))
    same_items(items(SliceDataset(rows, chain(), num_workers=3)), expected)
    for _ in range(2):  # written, then found again
        same_items(items(SliceDataset(rows, chain(), cache_dir=tmp_path / "cache")), expected)
    assert len(list((tmp_path / "cache").rglob("*.pt"))) == 3


def test_what_does_not_fit_goes_to_disk_with_the_estimate_and_away_again(tmp_path):
    rows = write_subjects(tmp_path, 4)
    expected = items(SliceDataset(rows, chain()))
    volume = 5 * 32 * 32 * 5 + 5 * 3 + 5 * 4
    with pytest.warns(UserWarning, match=r"4 volumes need about 0\.00 GiB of memory.* on disk in") as caught:
        dataset = SliceDataset(rows, chain(), memory_limit=2 * volume)
    assert len(caught) == 1
    folder = Path(str(caught[0].message).split(" on disk in ")[1].split(" for this run")[0])
    assert len(list(folder.rglob("*.pt"))) == 2
    same_items(items(dataset), expected)
    np.testing.assert_array_equal(dataset.presence(), SliceDataset(rows, chain()).presence())
    del dataset, caught
    gc.collect()
    assert not folder.exists()


def test_what_does_not_fit_goes_to_the_cache_dir_and_stays(tmp_path):
    rows = write_subjects(tmp_path, 3)
    expected = items(SliceDataset(rows, chain()))
    with pytest.warns(UserWarning, match=str(tmp_path / "cache")):
        dataset = SliceDataset(rows, chain(), cache_dir=tmp_path / "cache", memory_limit=0)
    same_items(items(dataset), expected)
    del dataset
    gc.collect()
    assert len(list((tmp_path / "cache").rglob("*.pt"))) == 3


def test_too_little_disk_is_told_before_the_work(tmp_path, monkeypatch):
    rows = write_subjects(tmp_path, 3)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with (
        pytest.warns(UserWarning, match="volumes need"),
        pytest.raises(VmfError, match=r"VMF511[\s\S]*cache_dir") as caught,
    ):
        SliceDataset(rows, chain(), cache_dir=tmp_path / "cache", memory_limit=0)
    assert caught.value.exit_code == 6


def test_a_cache_damaged_in_use_is_rebuilt(tmp_path):
    rows = write_subjects(tmp_path, 2)
    expected = items(SliceDataset(rows, chain()))
    with pytest.warns(UserWarning, match="volumes need"):
        dataset = SliceDataset(rows, chain(), cache_dir=tmp_path / "cache", memory_limit=0)
    entries = sorted((tmp_path / "cache").rglob("*.pt"))
    data = bytearray(entries[0].read_bytes())
    data[len(data) // 2] ^= 4
    entries[0].write_bytes(data)
    entries[1].unlink()
    with pytest.warns(UserWarning, match="It is rebuilt") as caught:
        same_items(items(dataset), expected)
    assert len(caught) == 1


def test_a_dataset_can_be_sent_to_a_spawned_worker(tmp_path):
    rows = write_subjects(tmp_path, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = SliceDataset(rows, chain(), cache_dir=tmp_path / "cache", memory_limit=30_000)
    same_items(items(pickle.loads(pickle.dumps(dataset))), items(dataset))


def test_a_bad_file_is_named(tmp_path):
    rows = write_subjects(tmp_path, 4)
    bad = Path(rows[2]["image"])
    bad.write_bytes(bad.read_bytes()[:200])
    for workers in (0, 3):
        with pytest.raises(VmfError) as caught:
            SliceDataset(rows, chain(), num_workers=workers)
        assert caught.value.subject == str(bad)
        assert caught.value.exit_code == 3
        assert str(caught.value).count("\n") <= 4


def test_a_worker_s_error_names_the_file(tmp_path):
    """The entry and the scan vanish while the loader runs: the worker cannot rebuild and says which file is missing."""
    rows = write_subjects(tmp_path, 2)
    with pytest.warns(UserWarning, match="volumes need"):
        dataset = SliceDataset(rows, chain(), cache_dir=tmp_path / "cache", memory_limit=0)
    for entry in (tmp_path / "cache").rglob("*.pt"):
        entry.unlink()
    for row in rows:
        Path(row["image"]).unlink()
    with pytest.raises(VmfError, match="VMF201") as caught:
        list(SliceLoader(dataset, num_workers=2))
    assert caught.value.subject in {row["image"] for row in rows}


def test_a_failing_transform_names_the_volume(tmp_path):
    rows = write_subjects(tmp_path, 1)

    def broken(row):
        raise RuntimeError("no such luck")

    with pytest.raises(VmfError, match=r"VMF151[\s\S]*s0\.nii\.gz[\s\S]*no such luck"):
        SliceDataset(rows, [LoadVolumed(), broken])


def test_memory_errors_become_advice(tmp_path):
    rows = write_subjects(tmp_path, 1)

    def greedy(row):
        raise MemoryError

    with pytest.raises(VmfError, match=r"VMF510[\s\S]*use fewer workers") as caught:
        SliceDataset(rows, [LoadVolumed(), greedy])
    assert caught.value.exit_code == 6


def test_labels_outside_the_classes_and_other_shapes_are_refused(tmp_path):
    rows = write_subjects(tmp_path, 1)
    with pytest.raises(VmfError, match=r"VMF153[\s\S]*3 \("):
        SliceDataset(rows, chain(), num_classes=3)
    with pytest.raises(VmfError, match=r"VMF154[\s\S]*s0_gt\.nii\.gz"):
        SliceDataset(rows, [*chain(roi=None).transforms, lambda d: {**d, "label": d["label"][:, :-1]}])


@pytest.mark.parametrize(
    ("rows", "transform", "message"),
    [
        pytest.param([], chain(), "data must hold at least one row", id="empty"),
    ],
)
def test_bad_arguments(rows, transform, message):
    with pytest.raises(ValueError, match=message):
        SliceDataset(rows, transform)


def test_all_goes_through_slice_space(tmp_path):
    rows = write_subjects(tmp_path, 1)
    dataset = SliceDataset(rows, [LoadVolumed(), slice_space_transforms(1.0, 48)])
    assert dataset.image_sizes == {(48, 48)}
    assert len(dataset) == SHAPE[2]
    assert dataset[2]["image"].max() == 1.0


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from slice_files import chain, write_subjects
from vmfseg.data import SliceDataset, SliceLoader
from vmfseg.transforms import BatchAugment

rows = write_subjects(Path(sys.argv[2]), 1, shape=(32, 32, 40), labeled=False) * 24  # 24 x 13 MB at 288 x 288
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
dataset = SliceDataset([{**row, "frame": 0, "phase": str(k)} for k, row in enumerate(rows)], chain(roi=288))
loader = SliceLoader(dataset, batch_size=4, augment=BatchAugment())
loader.start_at(len(loader) - 20)
print(len(dataset), sum(batch["image"].shape[0] for batch in loader))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_dataset_larger_than_the_memory_is_told_and_served(tmp_path):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", LIMITED, here, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.stdout.split() == ["960", "80"], done.stderr
    assert "24 volumes need about 0.30 GiB of memory" in done.stderr
    assert not list(tmp_path.glob("vmfseg-cache-*"))
