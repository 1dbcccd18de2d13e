# SPDX-License-Identifier: Apache-2.0
"""Hearts: anatomy, function, labels and scanners."""

import numpy as np
import pytest

from vmfseg.phantom.heart import PATHOLOGIES, contraction, draw_heart
from vmfseg.phantom.heart_scan import heart_protocol, scan_heart
from vmfseg.phantom.tissues import TISSUES
from vmfseg.utils import numpy_rng

SUBJECTS = 8


@pytest.fixture(scope="module")
def scans():
    return [scan_heart(index, 0, frames=5, size=112) for index in range(SUBJECTS)]


def cubic_cm(scan):
    return abs(np.linalg.det(scan.affine[:3, :3])) / 1000


def test_shapes_and_types(scans):
    for scan in scans:
        assert scan.image.dtype == np.int16
        assert scan.label.dtype == scan.factors.dtype == np.uint8
        assert scan.image.shape == scan.label.shape == scan.factors.shape
        assert max(scan.image.shape[:2]) == 112
        assert scan.image.shape[3] == 5
        assert set(np.unique(scan.label)) == {0, 1, 2, 3}


def test_labels_only_at_ed_and_es(scans):
    for scan in scans:
        marked = {int(t) for t in np.flatnonzero(scan.label.any(axis=(0, 1, 2)))}
        assert marked == {scan.row["ED"], scan.row["ES"]}
        assert set(np.flatnonzero(scan.factors.any(axis=(0, 1, 2)))) == marked


def test_myocardium_surrounds_the_left_ventricle(scans):
    """The centroid test of the label convention: 1 LV, 2 MYO, 3 RV."""
    for scan in scans:
        label = scan.label[..., scan.row["ED"]]
        world = [scan.affine[:3, :3] @ np.argwhere(label == value).mean(axis=0) for value in (1, 2, 3)]
        assert np.linalg.norm(world[1] - world[0]) < 0.5 * np.linalg.norm(world[1] - world[2])


def test_volumes_and_ejection_fractions_are_human(scans):
    for scan in scans:
        cavity = [(scan.label[..., scan.row[phase]] == 1).sum() * cubic_cm(scan) for phase in ("ED", "ES")]
        assert 60 < cavity[0] < 400
        assert cavity[1] < cavity[0]
        assert 0.1 < 1 - cavity[1] / cavity[0] < 0.85
        assert scan.row["lv_volume_ml"] == pytest.approx(cavity, abs=0.1)
        right = [(scan.label[..., scan.row[phase]] == 3).sum() for phase in ("ED", "ES")]
        assert right[1] < right[0]


def test_wall_is_incompressible(scans):
    for scan in scans:
        wall = [(scan.label[..., scan.row[phase]] == 2).sum() for phase in ("ED", "ES")]
        assert wall[1] == pytest.approx(wall[0], rel=0.25)


def test_papillaries_are_their_own_tissue_inside_the_cavity(scans):
    code = TISSUES["papillary"].code
    for scan in scans:
        for phase in ("ED", "ES"):
            where = scan.factors[..., scan.row[phase]] == code
            assert where.any()
            assert (scan.label[..., scan.row[phase]][where] == 1).mean() > 0.9


def test_factors_agree_with_labels(scans):
    for scan in scans:
        frame = scan.row["ED"]
        factors, label = scan.factors[..., frame], scan.label[..., frame]
        assert (label[factors == TISSUES["lv_myocardium"].code] == 2).mean() > 0.95
        assert (label[factors == TISSUES["rv_blood"].code] == 3).mean() > 0.95
        assert not label[factors == TISSUES["left_atrium_blood"].code].any() or (
            (label[factors == TISSUES["left_atrium_blood"].code] == 0).mean() > 0.8
        )


@pytest.mark.parametrize(
    "name", ["lung", "liver", "subcutaneous_fat", "epicardial_fat", "muscle", "aorta", "marrow", "rv_wall", "air"]
)
def test_the_rest_of_the_chest_is_there(scans, name):
    assert all((scan.factors == TISSUES[name].code).any() for scan in scans)


def test_spine_shows_in_some_basal_slices(scans):
    code = TISSUES["cartilage"].code
    assert any((scan.factors == code).any() for scan in scans)


def test_presence_varies_over_slices(scans):
    for scan in scans:
        label = scan.label[..., scan.row["ED"]]
        present = np.stack([(label == value).any(axis=(0, 1)) for value in (1, 2, 3)])
        assert (~present.any(axis=0)).sum() >= 1  # a slice without any structure
        assert present.all(axis=0).sum() >= 3
    partial = [
        (p.any(axis=0) & ~p.all(axis=0)).any()
        for p in (
            np.stack([(s.label[..., s.row["ED"]] == value).any(axis=(0, 1)) for value in (1, 2, 3)]) for s in scans
        )
    ]
    assert np.mean(partial) > 0.5  # base or apex with some structures only


def test_end_diastole_is_often_not_the_first_frame():
    late = [scan_heart(index, 0, frames=4, size=32).row["ED"] != 0 for index in range(1, 40, 4)]  # vendor B
    assert sum(late) >= 5


def test_headers_are_oblique_and_differ_between_vendors(scans):
    codes = set()
    for scan in scans:
        direction = scan.affine[:3, :3] / np.linalg.norm(scan.affine[:3, :3], axis=0)
        np.testing.assert_allclose(direction.T @ direction, np.eye(3), atol=1e-9)
        assert np.abs(direction).max() < 0.995
        codes.add(
            tuple(np.sign(direction[np.abs(direction).argmax(axis=0), range(3)]))
            + tuple(np.abs(direction).argmax(axis=0))
        )
    assert len(codes) >= 3
    assert len({round(float(np.linalg.norm(s.affine[:3, 2])), 2) for s in scans[:4]}) >= 2


def test_vendors_differ_in_intensity_and_noise(scans):
    blood = TISSUES["lv_blood"].code
    wall = TISSUES["lv_myocardium"].code
    means, contrast = [], []
    for scan in scans[:4]:
        frame = scan.row["ED"]
        image, factors = scan.image[..., frame].astype(float), scan.factors[..., frame]
        means.append(image[factors == blood].mean())
        contrast.append(image[factors == blood].mean() / image[factors == wall].mean())
    assert max(means) > 5 * min(means)
    assert all(ratio > 1.5 for ratio in contrast)
    assert max(contrast) > 1.1 * min(contrast)


def test_blood_is_bright_and_lung_dark(scans):
    for scan in scans:
        frame = scan.row["ED"]
        image, factors = scan.image[..., frame].astype(float), scan.factors[..., frame]
        level = {n: np.median(image[factors == TISSUES[n].code]) for n in ("lv_blood", "lv_myocardium", "lung")}
        assert level["lv_blood"] > 1.7 * level["lv_myocardium"] > 1.7 * level["lung"]


def test_subject_is_reproducible_and_its_anatomy_ignores_frames():
    first, second = scan_heart(5, 3, 3, 64), scan_heart(5, 3, 3, 64)
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.affine, second.affine)
    other = scan_heart(5, 3, 6, 64)
    assert {k: other.row[k] for k in ("Age", "Sex", "Pathology", "Weight")} == {
        k: first.row[k] for k in ("Age", "Sex", "Pathology", "Weight")
    }
    assert not np.array_equal(first.image, scan_heart(5, 4, 3, 64).image[: first.image.shape[0]])


def test_contraction_is_a_heartbeat():
    times = np.linspace(0, 1, 201)
    curve = np.array([contraction(t, 0.36) for t in times])
    assert curve.min() >= 0
    assert curve.max() == 1
    assert times[curve.argmax()] == pytest.approx(0.36, abs=0.005)
    assert (np.diff(curve[times <= 0.36]) > 0).all()
    assert (np.diff(curve[times > 0.365]) <= 1e-12).all()


def test_groups_have_their_features():
    hearts = [draw_heart(numpy_rng("groups", i)) for i in range(400)]
    groups = {name: [h for h in hearts if h.pathology == name] for name in PATHOLOGIES}
    assert all(groups.values())
    mean = {
        name: {k: np.mean([getattr(h, k) for h in group]) for k in ("radius", "wall", "ef", "rv_width")}
        for name, group in groups.items()
    }
    assert mean["DCM"]["radius"] > mean["NOR"]["radius"] + 5
    assert mean["DCM"]["ef"] < 0.4 < mean["NOR"]["ef"]
    assert mean["HHD"]["wall"] > mean["NOR"]["wall"] + 3
    assert mean["ARV"]["rv_width"] > mean["NOR"]["rv_width"] + 8
    assert all(h.bump[0] > 0 for h in groups["HCM"])
    assert all(h.bump[0] < 0 < h.slack for h in groups["IHD"])


def test_vendors_come_in_turn():
    found = [(heart_protocol(i).vendor, heart_protocol(i).center) for i in range(24)]
    counts = {pair: found.count(pair) for pair in found}
    assert counts == {("A", 1): 6, ("B", 2): 3, ("B", 3): 3, ("C", 4): 6, ("D", 5): 6}


def test_right_ventricle_above_the_mitral_plane_leaves_the_middle_free():
    found = 0
    for number in range(40):
        heart = draw_heart(numpy_rng("outflow", number))
        section = heart.section(heart.base - 3.0, 0.0)
        assert not section.has_left
        if section.has_right:
            found += 1
            assert section.core.min() > 0.5 * heart.radius
            assert (section.rv > section.core + 0.5).mean() < 0.5
    assert found > 5


def test_heart_never_leaves_the_space_of_diastole_and_systole():
    """The scanner paints only the box that both end phases span; every other phase must fit into it."""
    for number in range(25):
        heart = draw_heart(numpy_rng("box", number))
        for w in np.linspace(heart.base - 10, heart.outer_apex, 7):
            low, high = (np.array(heart.section(w, c).extent()) for c in (0.0, 1.0))
            outer = np.where([True, False, True, False], np.minimum(low, high), np.maximum(low, high))
            for c in (0.2, 0.5, 0.8):
                beyond = (np.array(heart.section(w, c).extent()) - outer) * np.array([-1, 1, -1, 1])
                assert beyond.max() < 1.5  # of the 3 mm that the box adds
