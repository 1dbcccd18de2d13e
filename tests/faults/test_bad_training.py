# SPDX-License-Identifier: Apache-2.0
"""What training says and does with data and settings that cannot work, and with those that only look so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from training_runs import TINY, checkpoints

from vmfseg.cli.main import main
from vmfseg.utils import sha256_file

QUICK = {**TINY, "image_size": 16, "pixdim": 4.0, "max_iterations": 4, "batch_size": 4}
UNET = {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "channels": [4, 8], "strides": [2]}


def _text(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _scan(number: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    label = np.zeros((20, 18, 3), np.uint8)
    for n in range(1, classes + 1):
        label[4 * n : 4 * n + 3, 5:13] = n
    noise = np.random.default_rng(number).normal(0, 5, label.shape)
    return (40 * label + 100 + noise).astype(np.int16), label


@pytest.fixture
def scans(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes scans: labelled and unlabelled subjects by domain, and the classes they show."""

    def make(
        labeled: dict[str, int], unlabeled: dict[str, int] | None = None, classes: int = 3, columns: str = ""
    ) -> Path:
        folder = tmp_path / "scans"
        folder.mkdir()
        lines, number = ["image,label,domain" + columns.split("=")[0]], 0
        for part, counts in (("labeled", labeled), ("unlabeled", unlabeled or {})):
            for domain, count in counts.items():
                for _ in range(count):
                    number += 1
                    image, label = _scan(number, classes)
                    for name, array in ((f"s{number}.nii.gz", image), (f"s{number}_gt.nii.gz", label)):
                        nib.save(nib.Nifti1Image(array, np.diag([4.0, 4.0, 10.0, 1.0])), folder / name)
                    truth = f"s{number}_gt.nii.gz" if part == "labeled" else ""
                    lines.append(f"s{number}.nii.gz,{truth},{domain}" + "".join(columns.split("=")[1:]))
        (folder / "scans.csv").write_text("\n".join(lines))
        (folder / "labels.json").write_text(json.dumps({"1": "LV", "2": "MYO", "3": "RV"}))
        return folder

    return make


@pytest.fixture
def train(bundle, tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``vmfseg train`` in this process: exit code, output, errors."""

    def run(data: Path | None, target: str, **more: object) -> tuple[int, str, str]:
        options = {**QUICK, "dataset": "folder", "dataset_dir": data, "target_domain": target, **more}
        words = [f"--{key}={_text(value)}" for key, value in options.items() if value is not True and value is not None]
        flags = [f"--{key}" for key, value in options.items() if value is True]
        monkeypatch.setattr("sys.argv", ["vmfseg", "train", str(bundle), "-o", str(tmp_path / "run"), *flags, *words])
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with pytest.raises(SystemExit) as caught:
            main()
        torch.set_num_threads(threads)
        out, error = capsys.readouterr()
        return int(caught.value.code or 0), out, error

    return run


GOOD = {"siteA": 3, "siteB": 3, "siteC": 1}


def test_good_scans_train_and_are_scored(scans, train, tmp_path):
    code, out, error = train(scans(GOOD, {"siteA": 1}), "siteC")
    assert code == 0, error
    assert "unseen domain siteC (1 subjects)" in out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["mean_dice"] >= 0
    assert "_target_" not in error


REFUSALS = [
    pytest.param({"siteC": 2}, {"siteA": 2}, "siteC", {}, 3, "VMF292", "must have labelled subjects", id="no label"),
    pytest.param({"siteA": 3}, {}, "siteA", {}, 3, "VMF291", "at least two domains", id="one domain"),
    pytest.param(GOOD, {}, "sitC", {}, 3, "VMF290", "Did you mean 'siteC'?", id="unknown target"),
    pytest.param(GOOD, {}, "siteC", {"labeled_fraction": 3}, 2, "VMF100", "write 5 % as 0.05", id="fraction"),
    pytest.param(GOOD, {}, "siteC", {"protocol": "papr"}, 2, "VMF100", "Did you mean 'paper'?", id="protocol"),
    pytest.param(GOOD, {}, "siteC", {"image_size": 18}, 2, "VMF100", "divisible", id="image size"),
    pytest.param(GOOD, {}, "siteC", {"network_def::kapa": 3}, 2, "VMF110", "Did you mean 'kappa'?", id="misspelt key"),
]


@pytest.mark.parametrize(("labeled", "unlabeled", "target", "more", "code", "name", "text"), REFUSALS)
def test_what_cannot_work_is_refused_by_name(
    scans, train, tmp_path, labeled, unlabeled, target, more, code, name, text
):
    got, _, error = train(scans(labeled, unlabeled), target, **more)
    assert got == code, error
    assert f"error {name}" in error
    assert text in error
    assert len(error.strip().splitlines()) <= 5
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "models").exists()


def test_a_class_that_no_mask_shows_stops_before_the_first_stage(scans, train):
    code, out, error = train(scans(GOOD, classes=2), "siteC")
    assert code == 3
    assert "VMF294: every class must be in some labelled training slice" in error
    assert "class 3" in error
    assert "stage 1" not in out


def _network(definition: dict) -> dict:
    """Return options with another network in the place of the tiny one."""
    return {**{key: None for key in QUICK if key.startswith("network_def::")}, "network_def": definition}


def test_a_loss_term_without_its_part_stops_before_the_first_stage_by_name(scans, train):
    code, out, error = train(scans(GOOD), "siteC", **_network({**UNET, "out_channels": 4}))
    assert code == 2, error
    assert "weights['reconstruction'] must be 0 for a network without reconstruction, got 0.1" in error
    assert "loss_weights of dice and cross_entropy alone" in error
    assert len(error.strip().splitlines()) <= 5
    assert "stage 1" not in out


def test_a_network_with_another_number_of_outputs_stops_before_the_first_stage(scans, train):
    weights = {"dice": 1.0, "cross_entropy": 1.0}
    network = _network({**UNET, "out_channels": 2})
    code, out, error = train(scans(GOOD), "siteC", loss_weights=weights, loss_ramps={}, **network)
    assert code == 4, error
    assert "error VMF350" in error
    assert "2 output channels" in error
    assert "stage 1" not in out


def test_a_network_of_monai_trains_with_terms_that_it_has(scans, train, tmp_path):
    weights = {"dice": 1.0, "cross_entropy": 1.0}
    network = _network({**UNET, "out_channels": 4})
    code, out, error = train(
        scans(GOOD), "siteC", loss_weights=weights, loss_ramps={}, **network, **{"train::dataloader::unlabeled": "null"}
    )
    assert code == 0, error
    manifest = json.loads((tmp_path / "run" / "models" / "manifest.json").read_text())
    assert manifest["network"] == {**UNET, "out_channels": 4}
    assert "mean Dice on the unseen domain" in out


def test_a_class_that_nobody_annotated_is_named(scans, train):
    code, _, error = train(scans(GOOD, columns=",annotated=,1;2"), "siteC")
    assert code == 3
    assert "VMF293" in error
    assert "RV" in error


def test_no_data_at_the_path_is_named(train, tmp_path):
    code, _, error = train(tmp_path / "nowhere", "A")
    assert code == 3
    assert "nowhere" in error


def test_an_empty_unlabelled_pool_is_said_and_works(scans, train):
    code, out, error = train(scans({"siteA": 1, "siteB": 1, "siteC": 1}), "siteC", labeled_fraction=1.0)
    assert code == 0, error
    assert "no unlabelled subject is left; the labelled images, without masks, stand in for them" in out
    assert "no validation subject is left; the labelled images choose the model" in out


@pytest.mark.parametrize("joint", ["True", "False"], ids=["joint", "alternating"])
def test_an_unlabelled_pool_smaller_than_the_labelled_one_works(scans, train, joint):
    data = scans({"siteA": 4, "siteB": 4, "siteC": 1}, {"siteA": 1})
    code, out, error = train(data, "siteC", labeled_fraction=1.0, batch_size=2, joint=joint, epoch_length=4)
    assert code == 0, error
    assert "1 unlabelled" in out


def test_a_target_without_labels_is_trained_for_and_said(scans, train, tmp_path):
    code, out, error = train(scans({"siteA": 2, "siteB": 2}, {"siteC": 1}), "siteC")
    assert code == 0, error
    assert "no mean Dice: the unseen domain has no label to compare with" in out
    assert (tmp_path / "run" / "models" / "model.pt").is_file()


def test_nan_in_a_scan_is_refused_with_its_file_before_training(scans, train):
    data = scans(GOOD)
    image = nib.load(data / "s1.nii.gz")
    array = image.get_fdata().astype(np.float32)
    array[3, 3, 1] = np.nan
    nib.save(nib.Nifti1Image(array, image.affine), data / "s1.nii.gz")
    code, out, error = train(data, "siteC")
    assert code == 3
    assert "s1.nii.gz" in error
    assert "stage 1" not in out


def test_a_loss_that_blows_up_stops_and_the_checkpoints_are_good(scans, train, tmp_path):
    data = scans(GOOD)
    code, out, error = train(data, "siteC", learning_rate=1e30, gradient_clip=1e30, max_iterations=40)
    assert code == 3, out + error
    assert "VMF296" in error
    assert "the network overflows in iteration" in error or "not finite in iteration" in error
    assert "siteA/" in error or "siteB/" in error
    assert len(error.strip().splitlines()) <= 5
    assert not (tmp_path / "run" / "models").exists()
    for path in checkpoints(tmp_path / "run"):
        index = json.loads((path.parent / "checkpoint.json").read_text())["checkpoints"]
        assert sha256_file(path) in {entry["sha256"] for entry in index}
        state = torch.load(path, weights_only=True)["objects"]["network"]
        assert all(bool(torch.isfinite(value).all()) for name, value in state.items() if "running" not in name)


def test_monais_own_command_ends_with_the_cause(bundle_run, scans):
    run = bundle_run(data=scans(GOOD))
    result = run.run(dataset="folder", target_domain="sitC")
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("fix    Did you mean 'siteC'?")
    assert "vmfseg: error VMF290" in result.stderr[-400:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("network_def::kapa", "Did you mean 'kappa'?"),
        ("train::lodaer", "Did you mean 'train::loader'?"),
        ("train#loader#batch_sise", "Did you mean 'batch_size'?"),
    ],
)
def test_monais_own_command_refuses_misspelt_keys(bundle_run, key, text):
    result = bundle_run().run(**{key: 3})
    assert result.returncode == 1
    assert "vmfseg: error VMF110" in result.stderr[-400:]
    assert text in result.stderr[-400:]
    assert "stage 1" not in result.stdout


def test_a_bundle_without_its_configs_is_named(bundle, train, tmp_path, monkeypatch, scans):
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    (broken / "configs" / "train.json").unlink()
    monkeypatch.setattr("sys.argv", ["vmfseg", "train", str(broken)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 4
