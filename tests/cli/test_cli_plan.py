# SPDX-License-Identifier: Apache-2.0
"""``vmfseg plan`` as a user meets it: a folder of mixed sites, real ones where they are."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from vmfseg.bundle.check import inspect_bundle
from vmfseg.cli.main import app
from vmfseg.cli.plan_command import bundle_name
from vmfseg.utils import VmfError
from vmfseg.visualize.contact_sheet import SheetPane, draw_contact_sheet

RUNNER = CliRunner()
REAL = Path(os.environ.get("VMFSEG_REAL_DATA") or Path(__file__).parents[2].parent / "shared/data/real_mini")
LABELS = {0: "background", 1: "LV", 2: "RV"}


def heart(size: int, spacing: float, depth: int, drawn: int) -> np.ndarray:
    x, y = (np.indices((size, size)) - (size - 1) / 2) * spacing
    label = np.where(np.hypot(x, y) < 16, 1, 0)
    label[np.hypot(x - 36, y - 8) < 16] = 2
    stack = np.repeat(label[..., None], depth, axis=2)
    stack[..., drawn:] = 0
    return stack.astype(np.uint8)


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Sites a and b lie alike, c is turned under a header that says nothing, d did not draw its last slices."""
    folder = tmp_path / "My Hearts"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["image,label,domain"]
    for site, spacing, quarters, drawn in (("a", 1.2, 0, 8), ("b", 1.5, 0, 8), ("c", 1.5, 1, 8), ("d", 2.0, 0, 5)):
        label = np.rot90(heart(round(150 / spacing), spacing, 8, drawn), quarters)
        image = 100 * (label > 0) + rng.integers(0, 50, label.shape)
        for name, array in ((f"{site}.nii.gz", image.astype(np.int16)), (f"{site}_gt.nii.gz", label)):
            nib.save(nib.Nifti1Image(array, np.diag([spacing, spacing, 8.0, 1.0])), folder / name)
        lines.append(f"{site}.nii.gz,{site}_gt.nii.gz,{site}")
    (folder / "table.csv").write_text("\n".join(lines))
    (folder / "labels.json").write_text('{"1": "LV", "2": "RV"}')
    return folder


def plan(*words, **options):
    return RUNNER.invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "200"}, **options)


def test_a_plan_says_what_differs_proposes_with_reasons_and_writes_a_good_bundle(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in mixed.iterdir()}
    result = plan(mixed, "--target_domain", "b", catch_exceptions=False)
    assert result.exit_code == 0
    assert "d drawn on 0-4 only" in result.output
    assert "VMF244 c: RV lies in another direction from LV" in result.output
    assert "median of 3 domains (1.2 to 2 mm)" in result.output
    assert "vmfseg train bundles/my_hearts" in result.output
    assert inspect_bundle(tmp_path / "bundles" / "my_hearts") == []
    train = json.loads((tmp_path / "bundles" / "my_hearts" / "configs" / "train.json").read_text())
    assert train["labels"] == {"0": "background", "1": "LV", "2": "RV"}
    assert (train["pixdim"], train["target_domain"]) == (1.5, "b")
    assert train["image_size"] * 1.5 >= 2.5 * (36 + 15)
    assert imread(tmp_path / "my_hearts_sites.png").shape[1] > 800
    assert before == {path: path.read_bytes() for path in mixed.iterdir()}
    again = plan(mixed)
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF503"


def test_a_dry_run_writes_nothing_and_json_is_for_programs(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = plan(mixed, "--dry-run", "--json", catch_exceptions=False)
    about = json.loads(result.output)
    assert [choice["name"] for choice in about["choices"]] == ["labels", "spacing", "size", "width", "batch"]
    assert [row["domain"] for row in about["domains"]] == list("abcd")
    assert about["bundle"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["My Hearts"]


def test_bundle_new_plans_what_is_not_given(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["bundle", "new", "own", "--from", str(mixed), "--size", "64", "--target_domain", "b"]
    result = RUNNER.invoke(app, words, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert "64 x 64 pixels of 1.5 mm hold 96 mm" in result.output
    train = json.loads((tmp_path / "bundles" / "own" / "configs" / "train.json").read_text())
    assert (train["pixdim"], train["image_size"]) == (1.5, 64)
    without = RUNNER.invoke(app, ["bundle", "new", "other", "--size", "64"])
    assert "--spacing, --labels must be given" in str(without.exception)


def test_volumes_of_cubes_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    image = np.random.default_rng(0).integers(0, 9, (30, 30, 30)).astype(np.int16)
    nib.save(nib.Nifti1Image(image, np.eye(4)), tmp_path / "data" / "a.nii.gz")
    (tmp_path / "data" / "t.csv").write_text("image,domain\na.nii.gz,x\n")
    result = plan(tmp_path / "data", "--classes", "brain")
    assert result.exception.code == "VMF242"
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize(
    ("given", "name"), [("Knee-T2.csv", "knee_t2"), ("7T scans.json", "data_7t_scans"), ("x" * 60, "x" * 40)]
)
def test_bundles_are_named_after_their_data(given, name):
    assert bundle_name(Path(given)) == name


def test_the_sheet_shows_the_right_side_on_the_left_and_the_front_on_top():
    """A bright corner at the right and front of the patient is found at the upper left of its pane."""
    image = np.zeros((40, 40))
    image[30:, 30:] = 1.0  # slice space: to the right, to the front
    sheet = imread(io.BytesIO(draw_contact_sheet([SheetPane("x", image, None, (1.0, 1.0), "RA")], LABELS, 30.0)))
    white = sheet[..., :3].min(axis=2) > 0.95
    black = sheet[..., :3].max(axis=2) < 0.1
    rows, columns = (np.flatnonzero(black.sum(axis=axis) > 100)[[0, -1]] for axis in (1, 0))
    pane = white[rows[0] : rows[1], columns[0] : columns[1]]
    half = pane.shape[0] // 2, pane.shape[1] // 2
    corners = [pane[: half[0], : half[1]], pane[: half[0], half[1] :], pane[half[0] :, : half[1]]]
    assert corners[0].mean() > 0.1 > max(corner.mean() for corner in corners[1:])


def real_table(folder: Path, part: str) -> Path:
    lines = ["image,label,domain,subject,annotated"]
    for path in sorted((REAL / part).glob("*.nii.gz")):
        stem = path.name.removesuffix(".nii.gz")
        if part == "sunnybrook" and stem.endswith("_ED_label"):
            name = stem.removesuffix("_ED_label")
            frame = json.loads((REAL / part / f"{name}_cine.json").read_text())["ed"]
            lines[0] = "image,label,domain,subject,annotated,frame"
            lines.append(f"{part}/{name}_cine.nii.gz,{part}/{path.name},{name.split('-')[1]},{name},1;2,{frame}")
        elif part != "sunnybrook" and not stem.endswith("_label"):
            site = stem.split("_")[0]
            annotated = "LV;MYO" if site == "sunnybrook" else ""
            lines.append(f"{part}/{path.name},{part}/{stem}_label.nii.gz,{site},{stem},{annotated}")
    root = folder / "data"
    root.mkdir()
    (root / part).symlink_to(REAL / part)
    (root / "table.csv").write_text("\n".join(lines))
    return root


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="no real scans here (set VMFSEG_REAL_DATA to their folder)")
@pytest.mark.parametrize(
    ("part", "classes", "words", "pixels"),
    [
        pytest.param("spinal", "GM,WM", ["chum_9604 drawn on 0-13 only"], (0.42, 0.78), id="spinal"),
        pytest.param("cardiac", "LV,MYO,RV", ["VMF243 sunnybrook", "in another plane"], (1.2, 2.0), id="cardiac"),
        pytest.param("sunnybrook", "LV,MYO", ["8 labelled scans of 8"], (1.2, 2.0), id="sunnybrook"),
    ],
)
def test_real_scans_are_planned(part, classes, words, pixels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = plan(real_table(tmp_path, part), "--classes", classes, "--name", "mine", catch_exceptions=False)
    assert result.exit_code == 0
    for word in words:
        assert word in result.output
    train = json.loads((tmp_path / "bundles" / "mine" / "configs" / "train.json").read_text())
    assert pixels[0] <= train["pixdim"] <= pixels[1]
    assert train["image_size"] == 96
    assert (tmp_path / "mine_sites.png").stat().st_size > 10_000
