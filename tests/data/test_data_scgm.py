# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vmfseg.data import LoadVolumed, SCGMDataset, leave_one_domain_out, verify_datalist
from vmfseg.data.discover import open_datalist
from vmfseg.utils import VmfError


def cord(shift: int = 0) -> np.ndarray:
    mask = np.zeros((20, 18, 3), np.uint8)
    mask[5 + shift : 15 + shift, 4:14] = 2
    mask[8 + shift : 12 + shift, 7:11] = 1
    return mask


@pytest.fixture
def tree(tmp_path: Path, save_volume, scan) -> Path:
    for site in range(1, 5):
        for subject in (1, 2, 11):
            name = f"site{site}-sc{subject:02d}"
            folder = "test" if subject > 10 else "train"
            save_volume(f"{folder}/{name}-image.nii.gz", scan((20, 18, 3), 100 * site + subject))
            (tmp_path / folder / f"{name}-levels.txt").write_text("1,3")
            for rater in range(1, 5) if subject <= 10 else ():
                save_volume(f"{folder}/{name}-mask-r{rater}.nii.gz", cord(int(rater == 4)))
    return tmp_path


def test_sites_are_domains_and_raters_are_lists(tree):
    source = SCGMDataset(tree)
    data = source.datalist()
    assert data.domains == ("site1", "site2", "site3", "site4")
    assert len(data.rows) == 12
    assert source.findings == []
    row = data.rows[0]
    assert row.subject == "site1-sc01"
    assert row.labels == tuple(f"train/site1-sc01-mask-r{rater}.nii.gz" for rater in range(1, 5))
    assert len(row.label_sha256) == 4
    assert {row.subject for row in data.rows if not row.is_labeled} == {f"site{n}-sc11" for n in range(1, 5)}
    loaded = LoadVolumed(num_classes=3)(data.to_dicts()[0])
    np.testing.assert_array_equal(loaded["label"].numpy()[0], cord())  # three of four raters agree


def test_twenty_percent_is_two_subjects_a_site_at_ten_and_three_in_the_reference(save_volume, scan):
    for site in range(1, 5):
        for subject in range(1, 21):
            image = save_volume(f"site{site}-sc{subject:02d}-image.nii.gz", scan((8, 8, 1), 1))
            if subject <= 10:
                save_volume(f"site{site}-sc{subject:02d}-mask-r1.nii.gz", np.ones((8, 8, 1), np.uint8))
    data = SCGMDataset(image.parent, checksums=False).datalist()
    for protocol, count in (("clean", 6), ("reference", 9)):
        split = leave_one_domain_out(data, "site2", labeled_fraction=0.2, protocol=protocol)
        assert len(split.subjects("labeled")) == count
    assert split.subjects("labeled")[:3] == ("site1-sc01", "site1-sc02", "site1-sc03")


def test_missing_raters_are_tolerated_and_lost_files_named(tree):
    (tree / "train/site1-sc01-mask-r2.nii.gz").unlink()
    (tree / "train/site2-sc01-image.nii.gz").unlink()
    source = SCGMDataset(tree)
    data = source.datalist()
    assert len(data.rows[0].labels) == 3
    texts = " | ".join(str(finding) for finding in source.findings)
    assert "3 of 4 raters" in texts
    assert "site2-sc01" in texts
    assert "masks without an image" in texts


def test_copy_and_empty_folder_are_refused(tree, tmp_path_factory):
    (tree / "copy").mkdir()
    (tree / "copy/site1-sc01-image.nii.gz").write_bytes((tree / "train/site1-sc01-image.nii.gz").read_bytes())
    with pytest.raises(VmfError, match=r"(?s)VMF284.*a file must be there once"):
        SCGMDataset(tree).datalist()
    with pytest.raises(VmfError, match="VMF285"):
        SCGMDataset(tmp_path_factory.mktemp("empty")).datalist()


def test_tree_is_recognized_and_verified(tree):
    data, _ = open_datalist(tree)
    assert data.name == "scgm"
    assert verify_datalist(data) == []
