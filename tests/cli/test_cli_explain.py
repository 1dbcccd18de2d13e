# SPDX-License-Identifier: Apache-2.0
"""``vmfseg explain``: the picture of all kernels and their names, from any scan."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from vmfseg.cli.main import app
from vmfseg.model import Predictor
from vmfseg.utils import VmfError
from vmfseg.visualize.kernel_maps import explain_scan

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from inference_bundle import tiny_network, write_tiny_bundle
from plain_network import write_plain_bundle

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), tiny_network())


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Return a cine of two frames with structures of a few pixels, and its label map."""
    folder = tmp_path_factory.mktemp("scans")
    rng = np.random.default_rng(0)
    coarse = rng.random((8, 8, 3, 2)).repeat(4, axis=0).repeat(4, axis=1)
    affine = np.diag([2.0, 2.0, 8.0, 1.0])
    nib.save(nib.Nifti1Image((1000 * coarse).astype(np.int16), affine), folder / "cine.nii.gz")
    label = (coarse[..., 0] * 3.99).astype(np.uint8)
    nib.save(nib.Nifti1Image((1000 * coarse[..., 0]).astype(np.int16), affine), folder / "scan.nii.gz")
    nib.save(nib.Nifti1Image(label, affine), folder / "scan_gt.nii.gz")
    return folder


def test_it_writes_a_picture_and_the_kernels(bundle, scan, tmp_path):
    words = ["explain", str(bundle), str(scan / "cine.nii.gz"), "-o", str(tmp_path), "--frame", "1"]
    result = RUNNER.invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cine_explain.png", "cine_kernels.json"]
    assert (tmp_path / "cine_explain.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "cine_kernels.json").read_text())
    assert content["frame"] == 1
    assert content["named_by"] == "the prediction itself"
    assert sorted(entry["kernel"] for entry in content["kernels"]) == list(range(6))
    assert sum(entry["share_of_scan"] for entry in content["kernels"]) == pytest.approx(1, abs=1e-3)
    for entry in content["kernels"]:
        assert sum(entry["active_in"].values()) == pytest.approx(1, abs=0.05)
        assert entry["stands_for"] in ("LV", "MYO", "RV", "other", None)
    again = RUNNER.invoke(app, words)
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF503"
    assert RUNNER.invoke(app, [*words, "--overwrite", "--json"], catch_exceptions=False).exit_code == 0


def test_a_label_names_the_kernels(bundle, scan):
    found = explain_scan(Predictor.from_bundle(bundle, "cpu"), scan / "scan.nii.gz", label=scan / "scan_gt.nii.gz")
    assert found.named_by == "the given label"
    assert found.view.truth is not None
    by_hand = np.zeros(6)  # soft Dice of every kernel with class 1, without the package's own table
    activations = np.stack([view.activations for view in found.views])
    factor = found.view.truth.shape[0] // activations.shape[2]
    truth = np.stack([view.truth == 1 for view in found.views]).astype(float)
    blocks = truth.reshape(len(truth), truth.shape[1] // factor, factor, truth.shape[2] // factor, factor).mean((2, 4))
    for j in range(6):
        overlap = (blocks * activations[:, j]).sum()
        by_hand[j] = 2 * overlap / (blocks.sum() + activations[:, j].sum())
    row = found.table.dice[list(found.table.names).index("LV")]
    np.testing.assert_allclose(row, by_hand, rtol=1e-5)


def test_the_shown_slice_can_be_chosen(bundle, scan):
    assert explain_scan(Predictor.from_bundle(bundle, "cpu"), scan / "scan.nii.gz", slice_index=2).view.index == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({"frame": 5}, "VMF235"), ({"slice_index": 9}, "VMF176")],
    ids=["frame", "slice"],
)
def test_what_is_not_there_is_named(bundle, scan, arguments, code):
    with pytest.raises(VmfError, match=rf"(?s){code}.*Choose a \w+ from 0 to \d"):
        explain_scan(Predictor.from_bundle(bundle, "cpu"), scan / "cine.nii.gz", **arguments)


def test_missing_weights_and_a_network_without_kernels_are_named(bundle, scan, tmp_path):
    words = ["explain", str(bundle), str(scan / "cine.nii.gz"), "-o", str(tmp_path / "out")]
    assert RUNNER.invoke(app, [*words, "--checkpoint", "no.pt"]).exception.code == "VMF335"
    plain = write_plain_bundle(tmp_path / "bundles")
    refused = RUNNER.invoke(app, ["explain", str(plain), *words[2:]]).exception
    assert refused.code == "VMF354"
    assert "monai.networks.nets.UNet" in refused.found
    assert refused.fix
    assert not (tmp_path / "out").exists()


def named_model(bundle, scan, folder, *words):
    start = ["explain", str(bundle), str(scan / "scan.nii.gz"), "-o", str(folder / "out")]
    return RUNNER.invoke(app, [*start, "--save-named", str(folder / "named"), *words])


def test_names_by_hand_become_the_classes_of_a_model_that_segments(bundle, scan, tmp_path):
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"3": "lung", "1": "RV", "5": "lung", "0": "background"}))
    result = named_model(bundle, scan, tmp_path, "--names", str(names))
    assert result.exit_code == 0, result.output
    assert "a model of RV, lung" in result.output
    old, new = Predictor.from_bundle(bundle), Predictor.from_bundle(tmp_path / "named")
    assert new.labels == {0: "background", 1: "RV", 2: "lung"}
    x = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a = old.network.kernels(old.network.encoder(x))
        sums = torch.stack([a[:, [0, 2, 4]].sum(1), a[:, 1], a[:, [3, 5]].sum(1)], dim=1)
        sums = torch.nn.functional.interpolate(sums, scale_factor=old.network.encoder.stride, mode="bilinear")
        torch.testing.assert_close(new.network(x).sigmoid(), sums, atol=1e-4, rtol=1e-4)
    words = ["segment", str(tmp_path / "named"), str(scan / "scan.nii.gz"), "-o", str(tmp_path / "labels")]
    assert RUNNER.invoke(app, words, catch_exceptions=False).exit_code == 0
    labels = np.asarray(nib.load(next((tmp_path / "labels").glob("*.nii.gz"))).dataobj)
    assert labels.shape == (32, 32, 3)
    assert set(np.unique(labels)) <= {0, 1, 2}
    again = named_model(bundle, scan, tmp_path, "--names", str(names), "--overwrite")
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF358"


def test_a_few_drawn_slices_name_the_kernels(bundle, scan, tmp_path):
    drawn = nib.load(scan / "scan_gt.nii.gz")
    label = np.asarray(drawn.dataobj).copy()
    label[..., 1:] = 0
    nib.save(nib.Nifti1Image(label, drawn.affine), tmp_path / "few.nii.gz")
    result = named_model(bundle, scan, tmp_path, "--label", str(tmp_path / "few.nii.gz"))
    assert result.exit_code == 0, result.output
    found = explain_scan(Predictor.from_bundle(bundle), scan / "scan.nii.gz", label=tmp_path / "few.nii.gz")
    names = found.names_by_label()
    activations = found.views[0].activations
    stride = len(found.views[0].truth) // activations.shape[1]
    shares = [
        (found.views[0].truth == n).reshape(activations.shape[1], stride, -1, stride).mean(axis=(1, 3))
        for n in range(4)
    ]
    mass = np.einsum("nhw,jhw->nj", np.stack(shares), activations)

    def score(classes):
        sets = [[j for j, c in enumerate(classes) if c == n] for n in range(4)]
        return np.mean([2 * mass[n, sets[n]].sum() / (mass[:, sets[n]].sum() + mass[n].sum()) for n in (1, 2, 3)])

    values = {"LV": 1, "MYO": 2, "RV": 3}
    best = max(score(classes) for classes in itertools.product(range(4), repeat=6))
    assert score([values.get(names.get(j, ""), 0) for j in range(6)]) == pytest.approx(best, abs=1e-6)
    named = Predictor.from_bundle(tmp_path / "named")
    assert set(named.labels.values()) == {"background", *names.values()}


@pytest.mark.parametrize("content", ["[1]", '{"6": "lung"}', '{"-1": "lung"}', '{"2": 7}', '{"2": "background"}', "{}"])
def test_names_of_no_kernel_are_refused(bundle, scan, tmp_path, content):
    names = tmp_path / "names.json"
    names.write_text(content)
    result = named_model(bundle, scan, tmp_path, "--names", str(names))
    assert isinstance(result.exception, SystemExit | VmfError)
    assert not (tmp_path / "named").exists()
    assert not (tmp_path / "out").exists()


def test_a_named_model_needs_names(bundle, scan, tmp_path):
    result = named_model(bundle, scan, tmp_path)
    assert result.exit_code != 0
    assert not (tmp_path / "named").exists()
