# SPDX-License-Identifier: Apache-2.0
"""Slices that nobody annotated are neither drawn nor counted, whatever way the file stores them."""

import itertools
import json

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import DataLoader, decollate_batch
from monai.transforms import AsDiscreted, Compose, CopyItemsd
from slice_files import chain

from vmfseg.data import Datalist, FolderDataset, SliceDataset, SliceLoader, VolumeDataset, verify_datalist
from vmfseg.data.datalist import Row
from vmfseg.transforms import MaskUnannotatedd
from vmfseg.transforms.annotation_text import parse_slices
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "LV", 2: "MYO"}
DEPTH = 6


def volumes():
    """Every slice holds its own number; classes 1 and 2 are in all of them."""
    image = np.zeros((16, 18, DEPTH), np.int16)
    label = np.zeros((16, 18, DEPTH), np.uint8)
    image[:] = 10 * np.arange(1, DEPTH + 1)
    image[0, 0] = 0
    label[3:8, 3:8], label[9:12, 9:12] = 1, 2
    return image, label


def write(folder, name="s", ornt=None, slices=None, label=None, **extra):
    image, mask = volumes()
    mask = mask if label is None else label
    affine = np.diag([1.25, 1.25, 8.0, 1.0])
    for suffix, array in (("", image), ("_gt", mask)):
        file = nib.Nifti1Image(array, affine)
        if ornt is not None:
            file = file.as_reoriented(ornt)
        nib.save(file, folder / f"{name}{suffix}.nii.gz")
    rows = [{"image": f"{name}.nii.gz", "label": f"{name}_gt.nii.gz", "domain": "A", "slices": slices, **extra}]
    (folder / "t.json").write_text(json.dumps({"labels": {k: v for k, v in LABELS.items() if k}, "rows": rows}))
    return FolderDataset(folder, "t.json").datalist()


def drawn(dataset):
    """Return the number that each drawn slice holds, with its annotated classes."""
    items = [dataset[k] for k in range(len(dataset))]
    return {round(float(item["image"].max()) / 10) - 1: item["annotated"].tolist() for item in items}


def dataset_of(datalist, **kwargs):
    return SliceDataset(datalist.to_dicts(), chain(normalize=None), num_classes=3, **kwargs)


ALL, LV = [True, True, True], [True, True, False]


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        (None, dict.fromkeys(range(DEPTH), ALL)),
        ("1-3", {1: ALL, 2: ALL, 3: ALL}),
        ("0,2-3 5", {0: ALL, 2: ALL, 3: ALL, 5: ALL}),
        ([4, 1], {1: ALL, 4: ALL}),
        ({"1": "1-3", "2": "2"}, {1: LV, 2: ALL, 3: LV}),
        ({"LV": "1-3", "myo": [2]}, {1: LV, 2: ALL, 3: LV}),
        ({"slices": "1-3", "myo_slices": "2"}, {1: LV, 2: ALL, 3: LV}),
        ('{"slices": [1, 2], "MYO": []}', {1: LV, 2: LV}),
    ],
    ids=str,
)
def test_forms(tmp_path, slices, expected):
    assert drawn(dataset_of(write(tmp_path, slices=slices))) == expected


def test_a_json_file_beside_the_label(tmp_path):
    (tmp_path / "s_annotated.json").write_text(json.dumps({"slices": [2, 3], "myo_slices": []}))
    datalist = write(tmp_path, slices="s_annotated.json")
    assert drawn(dataset_of(datalist)) == {2: LV, 3: LV}
    datalist.save(tmp_path / "datalist.json")
    loaded = Datalist.load(tmp_path / "datalist.json")
    assert loaded.rows == datalist.rows
    (tmp_path / "s_annotated.json").unlink()
    with pytest.raises(VmfError, match=r"VMF281[\s\S]*s_annotated.json"):
        Datalist.load(tmp_path / "datalist.json")


def test_a_csv_cell(tmp_path):
    write(tmp_path)
    (tmp_path / "t.csv").write_text('image,label,domain,slices\ns.nii.gz,s_gt.nii.gz,A,"0,2-3"\n')
    datalist = FolderDataset(tmp_path, "t.csv", labels={1: "LV", 2: "MYO"}).datalist()
    assert sorted(drawn(dataset_of(datalist))) == [0, 2, 3]


ORIENTATIONS = [
    [[axis, sign] for axis, sign in zip(order, signs, strict=True)]
    for order in itertools.permutations(range(3))
    for signs in itertools.product((1, -1), repeat=3)
]


@pytest.mark.parametrize("ornt", ORIENTATIONS, ids=str)
def test_numbers_count_slices_as_the_file_stores_them(tmp_path, ornt):
    datalist = write(tmp_path, ornt=np.array(ornt), slices={"LV": "1-3", "MYO": "1"})
    stored = nib.load(tmp_path / "s.nii.gz").get_fdata()
    axis = int(np.argmin(stored.shape))
    in_file = np.moveaxis(stored, axis, 0).max(axis=(1, 2)) / 10 - 1
    expected = {round(in_file[1]): ALL, round(in_file[2]): LV, round(in_file[3]): LV}
    assert drawn(dataset_of(datalist)) == expected


def test_labels_and_presence_of_classes_that_were_not_annotated_are_hidden(tmp_path):
    dataset = dataset_of(write(tmp_path, slices={"LV": "1-3", "MYO": "2"}))
    assert dataset.presence().tolist() == [[True, False], [True, True], [True, False]]
    for item in (dataset[k] for k in range(3)):
        assert set(item["label"].unique().tolist()) == {0, 1} | ({2} if item["annotated"][2] else set())
    batch = next(iter(SliceLoader(dataset, 3, shuffle=False)))
    assert batch["annotated"].tolist() == [LV, ALL, LV]
    assert batch["slice"].tolist() == [1, 2, 3]


def test_rows_without_label_give_all_slices(tmp_path):
    datalist = write(tmp_path, slices="2-3")
    (row,) = datalist.to_dicts([row.without_label() for row in datalist.rows])
    assert "slices" not in row
    assert len(SliceDataset([row], chain(), num_classes=3)) == DEPTH


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("flip", [1, -1], ids=["as-is", "flipped"])
def test_validation_ignores_what_was_not_annotated(tmp_path, flip, cached):
    ornt = np.array([[0, 1], [1, 1], [2, flip]])
    rows = write(tmp_path, ornt=ornt, slices={"LV": "0-3", "MYO": "2"}).to_dicts()
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    steps = Compose(
        [chain(normalize=None), CopyItemsd("label", names="pred"), AsDiscreted(["label", "pred"], to_onehot=3)]
    )
    dataset = VolumeDataset(rows, steps, cache_dir=tmp_path / "c" if cached else None)
    (item,) = decollate_batch(next(iter(DataLoader(dataset, batch_size=1))))
    plain = item["label"].clone()
    item["pred"] = item["pred"].as_tensor()  # as a network gives it
    masked = MaskUnannotatedd()(item)
    order = range(DEPTH)[::flip]  # slice space runs along the world
    keep = torch.tensor([[order[d] in (0, 1, 2, 3), order[d] in (0, 1, 2, 3), order[d] == 2] for d in range(DEPTH)]).T
    for key in ("label", "pred"):
        assert torch.equal(torch.as_tensor(masked[key]), plain.as_tensor() * keep[:, None, None])


def test_nothing_said_nothing_masked():
    volume = torch.ones(3, 2, 2, 4)
    assert MaskUnannotatedd("label")({"label": volume})["label"] is volume


@pytest.mark.parametrize(
    ("slices", "found"),
    [
        ("x", "numbers such as 2-5,7"),
        ("0-99999999", "numbers such as 2-5,7"),
        ("9" * 5001, "numbers such as 2-5,7"),
        ({"LV": "1"}, "got none for MYO"),
        ({"slices": "1", "MYOO": "1"}, "Did you mean 'myo'"),
        ("{1", "valid JSON"),
        ("[" * 100_000, "valid JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_slices_that_cannot_be_read_are_refused(tmp_path, slices, found):
    with pytest.raises(VmfError, match="VMF280") as caught:
        write(tmp_path, slices=slices)
    assert found in str(caught.value)


def test_spans_that_overlap_are_joined():
    assert parse_slices("4-6,1,2-5,6,9-8", LABELS) == {1: [1, 2, 3, 4, 5, 6], 2: [1, 2, 3, 4, 5, 6]}


def test_classes_that_are_not_annotated_at_all_need_no_slices(tmp_path):
    datalist = write(tmp_path, slices={"LV": "1-2"}, annotated=[1])
    assert drawn(SliceDataset(datalist.to_dicts(), chain(normalize=None), num_classes=3)) == {1: LV, 2: LV}


def test_a_slice_that_the_file_has_not(tmp_path):
    datalist = write(tmp_path, slices="2-6")
    with pytest.raises(VmfError, match=r"VMF280[\s\S]*0 \.\.\. 5, got 6"):
        dataset_of(datalist)
    assert [finding.code for finding in verify_datalist(datalist)] == ["VMF280"]


@pytest.mark.parametrize(
    ("areas", "slices", "warned"),
    [
        ([0, 5, 6, 6, 3, 0], None, True),
        ([0, 0, 6, 6, 5, 0], None, True),
        ([0, 5, 6, 6, 3, 0], "1-4", False),
        ([0, 5, 6, 6, 1, 0], None, False),
        ([5, 5, 6, 6, 5, 0], None, True),
        ([5, 5, 6, 6, 5, 5], None, False),
    ],
    ids=str,
)
def test_verify_warns_where_an_end_is_empty_beside_a_large_area_and_none_tapers(tmp_path, areas, slices, warned):
    label = np.zeros((16, 18, DEPTH), np.uint8)
    for z, area in enumerate(areas):
        label[2 : 2 + area, 2:8, z] = 1
        label[10 : 10 + area // 2, 10:12, z] = 2
    findings = verify_datalist(write(tmp_path, slices=slices, label=label))
    assert [finding.code for finding in findings if finding.severity == "warning"] == ["VMF266"] * warned
    if warned:
        assert "in a column slices" in str(findings[0])


def test_rows_with_slices_are_hashable_and_compare():
    a, b = (Row(image="a.nii", domain="A", subject="s", label="l.nii", slices=s) for s in ({"1": "2"}, {"1": "3"}))
    assert len({a, b, Row(image="a.nii", domain="A", subject="s", label="l.nii", slices={"1": "2"})}) == 2
    assert a.without_label().slices is None
