# SPDX-License-Identifier: Apache-2.0
"""Rows that say what their slices show (``present``) teach without a mask."""

import nibabel as nib
import numpy as np
import pytest
import torch
from slice_files import chain, write_subjects

from vmfseg.data import FolderDataset, SliceDataset, SliceLoader
from vmfseg.data.experiment import prepare_experiment
from vmfseg.losses import VMFLoss
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError

LABELS = {1: "LV", 2: "MYO", 3: "RV"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six subjects of two domains with masks on disk; the table gives two of them a mask, two what they show."""
    place = tmp_path_factory.mktemp("presence")
    write_subjects(place, 6, domains="AAAAAB")
    noise = nib.load(place / "s4.nii.gz")
    ramp = np.broadcast_to(np.arange(noise.shape[0], dtype=np.int16)[:, None, None], noise.shape)
    nib.save(nib.Nifti1Image(ramp, noise.affine), place / "s4.nii.gz")
    lines = [
        "image,label,domain,subject,annotated,slices,present",
        "s0.nii.gz,s0_gt.nii.gz,A,s0,,,",
        "s1.nii.gz,,A,s1,,,LV;MYO",
        's2.nii.gz,,A,s2,,0-3,"{""LV"": ""1-2"", ""RV"": [3]}"',
        "s3.nii.gz,,A,s3,,,",
        "s4.nii.gz,,A,s4,1;2,,background",
        "s5.nii.gz,s5_gt.nii.gz,B,s5,,,",
    ]
    (place / "datalist.csv").write_text("\n".join(lines) + "\n")
    (place / "labels.json").write_text('{"1": "LV", "2": "MYO", "3": "RV"}')
    return place


@pytest.fixture(scope="module")
def weak(folder):
    experiment = prepare_experiment(
        "folder", folder, target_domain="B", labeled_fraction=1.0, validation_fraction=0.0, quiet=True
    )
    return experiment.weak


def test_rows_with_presence_are_weak_rows_and_others_are_not(weak, folder):
    assert [row["subject"] for row in weak] == ["s0", "s1", "s2", "s4"]
    again = prepare_experiment(
        "folder", folder, target_domain="B", labeled_fraction=1.0, validation_fraction=0.0, quiet=True
    )
    assert all("present" not in row for row in again.unlabeled)  # elsewhere they are images and nothing more


def test_a_loader_shows_what_the_table_says_and_what_masks_show(weak, folder):
    loader = SliceLoader(
        SliceDataset(weak, chain()), batch_size=4, shuffle=False, drop_last=False, supervision="presence"
    )
    found, known = {}, {}
    for batch in loader:
        assert "label" not in batch
        for k, name in enumerate(batch["sample"]):
            found[name] = batch["presence"][k].tolist()
            known[name] = batch["annotated"][k].tolist()
    mask = np.asarray(nib.load(folder / "s0_gt.nii.gz").dataobj)
    for z in range(mask.shape[2]):
        assert found[f"A/s0/-/{z}"] == [bool((mask[..., z] == value).any()) for value in LABELS]
        assert found[f"A/s1/-/{z}"] == [True, True, False]
        assert found[f"A/s4/-/{z}"] == [False, False, False]
        assert known[f"A/s4/-/{z}"] == [True, True, True, False]  # nobody looked for an RV
    said = {z: found.get(f"A/s2/-/{z}") for z in range(5)}
    one, rv, nothing = [True, False, False], [False, False, True], [False, False, False]
    assert said == {0: nothing, 1: one, 2: one, 3: rv, 4: None}  # of slice 4 nothing is known


def test_presence_alone_trains_a_network(weak):
    rows = [row for row in weak if row["subject"] in ("s1", "s4")]  # LV and MYO in noise, nothing in a ramp
    loader = SliceLoader(SliceDataset(rows, chain()), batch_size=10, seed=3, supervision="presence")
    network = VMFNet(channels=(4, 8), num_kernels=4, hidden_channels=4, reconstruct=False, seed=1)
    head = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    loss = VMFLoss({"presence": 1.0}, presence_kind="balanced")
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], 2e-2)
    values = []
    for _ in range(30):
        (batch,) = loader
        optimizer.zero_grad()
        parts = network(batch["image"], return_parts=True)
        parts = parts._replace(presence=head(parts.logits))
        (term,) = loss(parts, batch).values()
        term.backward()
        optimizer.step()
        values.append(float(term.detach()))
    assert values[-1] < 0.5 * values[0]
    seen = parts.presence.detach() > 0
    assert torch.equal(seen[:, :2], batch["presence"][:, :2])  # the RV of s4 is not known


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("s0.nii.gz,s0_gt.nii.gz,A,LV", "rows without label"),
        ("s0.nii.gz,,A,LA", "'LA'"),
        ('s0.nii.gz,,A,"{""LV"": ""x""}"', "x"),
        ("s0.nii.gz,,A,{", "valid JSON"),
    ],
    ids=["beside a mask", "unknown class", "no slices", "no JSON"],
)
def test_wrong_presence_is_refused(tmp_path, folder, line, found):
    for name in ("s0.nii.gz", "s0_gt.nii.gz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "datalist.csv").write_text(f"image,label,domain,present\n{line}\n")
    with pytest.raises(VmfError, match=found) as caught:
        FolderDataset(tmp_path, labels=LABELS).datalist()
    assert caught.value.code == "VMF280"


def test_tiles_need_masks(weak):
    with pytest.raises(ValueError, match="tile must be 0 for rows that say what whole slices show"):
        SliceLoader(SliceDataset(weak, chain()), supervision="presence", tile=16)
