# SPDX-License-Identifier: Apache-2.0
"""Real scans, where they are at hand: oblique and permuted affines, partial labels, five sites."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from slice_files import chain

from vmfseg.data import (
    FolderDataset,
    LoadVolumed,
    SliceDataset,
    leave_one_domain_out,
    read_volume,
    verify_datalist,
)

ROOT = Path(os.environ.get("VMFSEG_REAL_DATA") or Path(__file__).parents[2].parent / "shared/data/real_mini")

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not ROOT.is_dir(), reason="no real scans here (set VMFSEG_REAL_DATA to their folder)"),
]


def table(folder: Path, part: str) -> Path:
    """Write a table of the scans of one part outside their folder."""
    lines = ["image,label,domain,subject,annotated"]
    for path in sorted((ROOT / part).glob("*.nii.gz")):
        if path.name.endswith("_label.nii.gz"):
            continue
        stem = path.name.removesuffix(".nii.gz")
        site = stem.split("_")[0]
        annotated = "1;2" if site == "sunnybrook" else ""
        lines.append(f"{part}/{path.name},{part}/{stem}_label.nii.gz,{site},{stem},{annotated}")
    file = folder / f"{part}.csv"
    file.write_text("\n".join(lines))
    return file


PARTS = [
    pytest.param("cardiac", {1: "LV", 2: "MYO", 3: "RV"}, 7, id="cardiac"),
    pytest.param("spinal", {1: "GM", 2: "WM"}, 5, id="spinal"),
]


@pytest.mark.parametrize(("part", "labels", "count"), PARTS)
def test_real_scans_pass_the_folder_data_set_and_verification(part, labels, count, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in ROOT.rglob("*")}
    data = FolderDataset(ROOT, table(tmp_path, part), labels=labels).datalist()
    assert len(data.rows) == count
    assert [finding for finding in verify_datalist(data, workers=2) if finding.severity == "error"] == []
    for item in data.to_dicts():
        out = LoadVolumed(num_classes=data.num_classes)(item)
        np.testing.assert_array_equal(out["image"].numpy()[0], nib.load(item["image"]).get_fdata(dtype=np.float32))
        np.testing.assert_array_equal(out["label"].numpy()[0], np.asarray(nib.load(item["label"]).dataobj))
        np.testing.assert_allclose(out["image"].affine.numpy(), nib.load(item["image"]).affine, atol=1e-3)
    assert before == {path: path.stat().st_mtime_ns for path in ROOT.rglob("*")}


def test_real_sites_can_be_left_out(tmp_path):
    data = FolderDataset(ROOT, table(tmp_path, "cardiac"), labels={1: "LV", 2: "MYO", 3: "RV"}).datalist()
    split = leave_one_domain_out(data, "sunnybrook", labeled_fraction=0.5)
    assert split.counts() == {"labeled": 2, "unlabeled": 1, "validation": 1, "target": 3}
    assert all(row.annotated == (1, 2) for row in split.target)


@pytest.mark.parametrize("damage", [lambda d: d[: len(d) // 2], lambda d: d[:-1]], ids=["half", "last-byte"])
def test_damaged_real_scan_is_refused(damage, tmp_path):
    source = next((ROOT / "cardiac").glob("*.nii.gz"))
    (tmp_path / source.name).write_bytes(damage(source.read_bytes()))
    with pytest.raises(ValueError, match="VMF210"):
        read_volume(tmp_path / source.name)


@pytest.mark.skipif(not (ROOT / "sunnybrook").is_dir(), reason="no stacks with unannotated slices here")
def test_annotated_slices_of_real_stacks_come_from_the_file_beside_the_label(tmp_path):
    lines = ["image,label,domain,subject,frame,phase,annotated,slices"]
    expected = {}
    for path in sorted((ROOT / "sunnybrook").glob("*_annotated.json")):
        stem, phase, _ = path.name.rsplit("_", 2)
        frame = json.loads((path.parent / f"{stem}_cine.json").read_text())[phase.lower()]
        files = [f"sunnybrook/{stem}_cine.nii.gz", f"sunnybrook/{stem}_{phase}_label.nii.gz"]
        lines.append(",".join([*files, "sunnybrook", stem, str(frame), phase, "1;2", f"sunnybrook/{path.name}"]))
        expected[stem, frame] = json.loads(path.read_text())
    (tmp_path / "t.csv").write_text("\n".join(lines[:5]))
    datalist = FolderDataset(ROOT, tmp_path / "t.csv", labels={1: "LV", 2: "MYO", 3: "RV"}, checksums=False).datalist()
    assert "VMF266" not in {finding.code for finding in verify_datalist(datalist)}
    bare = datalist.with_rows(replace(row, slices=None) for row in datalist.rows)
    assert "VMF266" in {finding.code for finding in verify_datalist(bare)}
    dataset = SliceDataset(datalist.to_dicts(), chain(roi=96), num_classes=4)
    wanted = [expected[row.subject, row.frame] for row in datalist.rows]
    assert len(dataset) == sum(len(entry["slices"]) for entry in wanted)
    items = [dataset[k] for k in range(len(dataset))]
    assert sum(int(item["annotated"][2]) for item in items) == sum(len(entry["myo_slices"]) for entry in wanted)
    assert not any(item["annotated"][3] for item in items)
    assert dataset.presence()[:, 0].mean() > 0.9, "the slices that are drawn are those with a heart"
