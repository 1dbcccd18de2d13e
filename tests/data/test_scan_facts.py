# SPDX-License-Identifier: Apache-2.0
"""Facts of scans, against hand-worked numbers."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from vmfseg.data import Datalist
from vmfseg.data.datalist import Row
from vmfseg.data.scan_facts import by_domain, measure_scans, refuse_isotropic, undrawn_ends
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "cord", 2: "canal"}


def write(folder, name, mask, spacing=(0.5, 0.8, 4.0), **row):
    """Write an image whose voxels count from 0, and its label, and return the row."""
    affine = np.diag([*spacing, 1.0])
    image = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
    nib.save(nib.Nifti1Image(image, affine), folder / f"{name}.nii.gz")
    nib.save(nib.Nifti1Image(mask.astype(np.uint8), affine), folder / f"{name}_gt.nii.gz")
    row = {"label": f"{name}_gt.nii.gz", "domain": "a", **row}
    return Row(image=f"{name}.nii.gz", subject=name, **row)


def box(depth=10):
    label = np.zeros((40, 30, depth))
    label[14:34, 10:20] = 2
    label[20:24, 13:18] = 1
    return label


def test_a_scan_is_measured_in_slice_space(tmp_path):
    (facts,) = measure_scans(Datalist("demo", tmp_path, LABELS, (write(tmp_path, "s", box()),)))
    assert facts.shape == (40, 30, 10)
    assert facts.spacing == pytest.approx((0.5, 0.8, 4.0))
    assert facts.extent == pytest.approx((20.0, 24.0))
    assert facts.codes == "RAS"
    assert facts.reach == pytest.approx((14 * 0.5, 5 * 0.8))  # 34 - 20 pixels, and 15 - 10
    assert facts.widths[1] == pytest.approx(2 * np.sqrt(4 * 5 * 0.4 / np.pi))
    assert facts.widths[2] == pytest.approx(2 * np.sqrt((20 * 10 - 20) * 0.4 / np.pi))
    assert facts.intensity == pytest.approx(np.percentile(np.arange(40 * 30 * 10), (1, 50, 99)), rel=1e-4)
    assert (facts.drawn, facts.empty, facts.undrawn) == (10, 0, None)


def test_slices_that_nobody_drew_are_counted_and_suspected_unless_declared(tmp_path):
    label = box()
    label[..., 7:] = 0
    rows = (write(tmp_path, "s", label), write(tmp_path, "t", label, slices="0-6"))
    plain, declared = measure_scans(Datalist("demo", tmp_path, LABELS, rows), workers=2)
    assert (plain.drawn, plain.empty, plain.undrawn) == (10, 3, "0-6")
    assert (declared.drawn, declared.empty, declared.undrawn) == (7, 0, None)


def test_a_scan_without_label_has_no_reach(tmp_path):
    row = write(tmp_path, "s", box(), label=None, domain="b")
    other = write(tmp_path, "t", box())
    facts = measure_scans(Datalist("demo", tmp_path, LABELS, (row, other)))
    assert facts[0].reach is None
    assert facts[0].widths == {}
    assert {name: [scan.row.subject for scan in scans] for name, scans in by_domain(facts).items()} == {
        "a": ["t"],
        "b": ["s"],
    }


@pytest.mark.parametrize(
    ("spacing", "depth", "refused"),
    [
        pytest.param((1.0, 1.0, 1.0), 40, True, id="cubes"),
        pytest.param((0.9, 1.0, 1.2), 40, True, id="nearly cubes"),
        pytest.param((1.0, 1.0, 1.5), 40, False, id="slices"),
        pytest.param((1.0, 1.0, 1.0), 6, False, id="a few thin slices"),
    ],
)
def test_volumes_of_cubes_are_refused_with_what_to_use_instead(tmp_path, spacing, depth, refused):
    facts = measure_scans(Datalist("demo", tmp_path, LABELS, (write(tmp_path, "s", box(depth), spacing),)))
    if not refused:
        refuse_isotropic(facts)
        return
    with pytest.raises(VmfError, match="nnU-Net") as error:
        refuse_isotropic(facts)
    assert (error.value.code, error.value.exit_code) == ("VMF242", 3)
    assert len(error.value.render().splitlines()) <= 5


@pytest.mark.parametrize(
    ("areas", "drawn"),
    [
        pytest.param([9, 9, 9, 0], "0-2", id="cord, one end"),
        pytest.param([0, 9, 9, 0, 0], "1-2", id="both ends"),
        pytest.param([0, 8, 9, 5, 1, 0], None, id="heart with its apex"),
        pytest.param([1, 5, 9, 8, 0], None, id="heart, the apex at the edge"),
        pytest.param([9, 9], None, id="all drawn"),
        pytest.param([0, 0], None, id="nothing"),
    ],
)
def test_undrawn_ends(areas, drawn):
    assert undrawn_ends(np.array(areas)) == drawn
