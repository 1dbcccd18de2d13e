# SPDX-License-Identifier: Apache-2.0
"""Images of several channels, from the table to batches."""

import json

import nibabel as nib
import numpy as np
import pytest
import torch
from slice_files import chain

from vmfseg.data import Datalist, FolderDataset, LoadVolumed, SliceDataset, SliceLoader, verify_datalist
from vmfseg.data.datalist import Row
from vmfseg.transforms import BatchAugment
from vmfseg.utils import VmfError, sha256_file

LABELS = {1: "LV", 2: "MYO", 3: "RV"}


@pytest.fixture
def folder(save_volume, scan, heart, tmp_path):
    for k in range(2):
        save_volume(f"s{k}_t1.nii.gz", scan(seed=k))
        save_volume(f"s{k}_t2.nii.gz", 3 * scan(seed=10 + k) + 7)
        save_volume(f"s{k}_gt.nii.gz", heart())
    return tmp_path


def csv(folder):
    lines = [f"s{k}_t1.nii.gz;s{k}_t2.nii.gz,s{k}_gt.nii.gz,{'AB'[k]}" for k in range(2)]
    (folder / "scans.csv").write_text("image,label,domain\n" + "\n".join(lines) + "\n")
    return FolderDataset(folder, "scans.csv", labels=LABELS).datalist()


def table(folder):
    rows = [
        {"image": [f"s{k}_t1.nii.gz", f"s{k}_t2.nii.gz"], "label": f"s{k}_gt.nii.gz", "domain": "AB"[k]}
        for k in range(2)
    ]
    (folder / "scans.json").write_text(json.dumps({"labels": LABELS, "rows": rows}))
    return FolderDataset(folder, "scans.json").datalist()


@pytest.mark.parametrize("read", [csv, table])
def test_a_table_names_the_channels_in_order(folder, read):
    datalist = read(folder)
    row = datalist.rows[1]
    assert row.images == ("s1_t1.nii.gz", "s1_t2.nii.gz")
    assert row.subject == "s1_t1"
    assert row.image_sha256 == tuple(sha256_file(folder / name) for name in row.images)
    assert datalist.to_dicts()[1]["image"] == [str(folder / name) for name in row.images]
    datalist.save(folder / "out" / "datalist.json")
    assert Datalist.load(folder / "out" / "datalist.json").rows == datalist.rows
    assert not [finding for finding in verify_datalist(datalist) if finding.severity == "error"]


def test_batches_hold_the_channels_each_normalized_by_itself(folder):
    rows = csv(folder).to_dicts()
    loaded = LoadVolumed(keys=["image"])(rows[0])
    files = [nib.load(name).get_fdata() for name in rows[0]["image"]]
    np.testing.assert_array_equal(loaded["image"].numpy(), np.stack(files))
    assert loaded["image"].meta["filename_or_obj"] == rows[0]["image"][0]
    dataset = SliceDataset(rows, chain(roi=None))
    low, high = np.percentile(files[1][..., 2], [0.5, 99.5])
    expected = (np.clip(files[1][..., 2], low, high) - low) / (high - low)
    np.testing.assert_allclose(dataset[2]["image"][1].numpy(), expected, atol=1e-6)
    batch = next(iter(SliceLoader(dataset, 4, augment=BatchAugment())))
    assert batch["image"].shape == (4, 2, 20, 18)
    assert batch["label"].shape == (4, 1, 20, 18)
    alone = SliceDataset([{**row, "image": row["image"][1]} for row in rows], chain(roi=None))
    single = next(iter(SliceLoader(alone, 4, augment=BatchAugment())))
    assert torch.equal(batch["image"][:, 1:], single["image"])


def test_channels_stored_in_another_orientation_are_reordered(folder, save_volume, scan):
    affine = np.diag([1.25, -1.25, 8.0, 1.0])
    affine[1, 3] = 17 * 1.25
    save_volume("s0_t2.nii.gz", scan(seed=10)[:, ::-1], affine)
    loaded = LoadVolumed(keys=["image"])(csv(folder).to_dicts()[0])
    np.testing.assert_array_equal(loaded["image"].numpy()[1], scan(seed=10))


@pytest.mark.parametrize(("shape", "shift", "code"), [((20, 18, 5), 0.0, "VMF253"), ((20, 18, 4), 9.0, "VMF254")])
def test_a_channel_on_another_grid_is_refused_by_name(folder, save_volume, scan, shape, shift, code):
    affine = np.diag([1.25, 1.25, 8.0, 1.0])
    affine[2, 3] = shift
    save_volume("s1_t2.nii.gz", scan(shape, seed=77), affine)
    datalist = csv(folder)
    with pytest.raises(VmfError, match=f"{code}[\\s\\S]*channel") as caught:
        LoadVolumed()(datalist.to_dicts()[1])
    assert caught.value.subject.endswith("s1_t2.nii.gz")
    (finding,) = [finding for finding in verify_datalist(datalist) if finding.severity == "error"]
    assert (finding.code, finding.file) == (code, caught.value.subject)


def test_a_changed_or_missing_channel_is_noticed(folder, save_volume, scan):
    datalist = csv(folder)
    save_volume("s0_t2.nii.gz", scan(seed=99))
    assert [finding.code for finding in verify_datalist(datalist) if finding.severity == "error"] == ["VMF261"]
    (folder / "s0_t2.nii.gz").unlink()
    with pytest.raises(VmfError, match=r"VMF281[\s\S]*s0_t2"):
        datalist.check_files()


@pytest.mark.parametrize("image", [[], ["a.nii.gz", ""], ["a.nii.gz", "../b.nii.gz"]], ids=str)
def test_bad_lists_of_channels_are_refused(image):
    with pytest.raises(VmfError, match=r"VMF28[03]"):
        Datalist("x", ".", {0: "background", 1: "LV"}, [Row(image=image, domain="A", subject="s")])
