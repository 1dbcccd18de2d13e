# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest
import torch
from inference_bundle import edit_manifest, tiny_network
from safetensors.torch import save_file

from vmfseg.engines import CalibrationStage, StageRunner
from vmfseg.export import export_bundle
from vmfseg.model import Predictor
from vmfseg.model.calibration import QualityCase, fit_quality, quality_cases
from vmfseg.model.corruption import CORRUPTIONS, LEVELS, corrupt
from vmfseg.model.deploy import Explained
from vmfseg.model.prediction import FramePrediction
from vmfseg.model.quality import (
    QUALITY_FORMAT,
    SIGNALS,
    QualityModel,
    SignalCollector,
    atypicality,
    native_noise,
    typical_ranges,
)
from vmfseg.model.survey import shift_groups
from vmfseg.model.verdict import judge
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}


def frame(signals, shares=(0.5, 0.5), volumes=()):
    return FramePrediction(np.zeros((0, 0, 0), np.uint8), signals, list(shares), dict(volumes))


def made_up_cases(rng, count=40, noise=0.01):
    cases = []
    for k in range(count):
        level = k % 4
        badness = level / 3 * rng.uniform(0.5, 1)
        signals = {
            # too high is as bad as too low
            "log_likelihood": 20 + (-1) ** (k // 4) * 4 * badness + rng.normal(0, 0.3),
            "entropy": 0.05 + 0.4 * badness + rng.normal(0, 0.02),
            "present": 1.0,
            "connected": 1 - 0.5 * badness * rng.uniform(),
            "continuous": 1.0,
        }
        dice = 0.95 - 0.7 * badness + rng.normal(0, noise)
        cases.append(QualityCase(frame(signals), dice, f"s{k % 8}", level=level))
    return cases


def predict(model, case):
    return model.predict(model.judged(case.frame))


def test_fit_finds_the_dice_and_never_against_common_sense():
    rng = np.random.default_rng(0)
    model = fit_quality(made_up_cases(rng))
    assert model.error < 0.08
    assert all(model.weights[name] * sign >= 0 for name, sign in SIGNALS.items())
    assert model.weights["atypical"] < 0
    fresh = made_up_cases(rng, 20)
    assert np.corrcoef([predict(model, case) for case in fresh], [case.dice for case in fresh])[0, 1] > 0.95
    best = {"atypical": 0.5, "entropy": 0.05, "present": 1, "connected": 1, "continuous": 1}
    assert model.light(best) == "green"
    for name, sign in SIGNALS.items():
        worse = {**best, name: best.get(name, 0) - sign * 0.5}
        assert model.predict(worse) <= model.predict(best)
    assert model.light({"present": 0.0}) == "red"


@pytest.mark.parametrize("moved", [-6.0, 6.0], ids=["cannot be explained", "too easy to explain"])
def test_what_no_source_volume_looks_like_is_atypical_in_either_direction(moved):
    source = [{"log_likelihood": 10 + x, "kernel 0": 0.5} for x in (-1.0, 1.0)]
    ranges = typical_ranges(source)
    assert ranges["log_likelihood"] == [10.0, 1.0]
    assert atypicality({"log_likelihood": 10.0, "kernel 0": 0.5}, ranges) == 0
    # by hand: one of two statistics is six spreads away
    assert atypicality({"log_likelihood": 10 + moved, "kernel 0": 0.5}, ranges) == pytest.approx(np.log1p(18**0.5))
    assert atypicality({"kernel 0": 0.5}, ranges) == 0
    assert typical_ranges(source[:1]) == {}
    assert atypicality({"log_likelihood": 3.0}, {}) == 0


def test_a_trace_of_a_structure_is_no_structure():
    volumes = [60.0, 90.0, 140.0, 6.0, 3.0, 560.0]  # three of source, two remains, one far too large
    cases = [
        QualityCase(frame({}, volumes={"LV": volume, "MYO": 100.0}), 0.9 if k < 3 else 0.2, "s", level=int(k > 2))
        for k, volume in enumerate(volumes)
    ]
    model = fit_quality(cases)
    assert model.sizes == {"LV": [60.0, 140.0], "MYO": [100.0, 100.0]}, "corrupted images say nothing about sizes"
    sized = [model.judged(case.frame)["sized"] for case in cases]
    assert sized == pytest.approx([1, 1, 1, 0.1, 0.05, 0.25])
    lost = frame({}, volumes={"LV": 0.0, "MYO": 100.0})
    assert model.judged(lost)["sized"] == 0
    assert model.predict(model.judged(lost)) < 0.4 < 0.7 < predict(model, cases[0])


def test_two_volumes_are_the_least():
    with pytest.raises(ValueError, match="cases must be at least two volumes with a truth, got 1"):
        fit_quality([QualityCase(frame({}), 0.5, "a")])


def test_quality_files_round_trip_and_others_are_refused(tmp_path):
    model = fit_quality(made_up_cases(np.random.default_rng(1)))
    model.save(tmp_path / "quality.json", source_validation_dice=0.8)
    assert QualityModel.load(tmp_path / "quality.json") == model
    good = json.loads((tmp_path / "quality.json").read_text())
    flat = {**good, "model": {**good["model"], "scale": dict.fromkeys(SIGNALS, 0.0)}}
    old = {**good, "format": "vmfseg-quality-1"}
    for content in ({}, [], {"format": QUALITY_FORMAT, "model": {"mean": {}}}, flat, old):
        (tmp_path / "quality.json").write_text(json.dumps(content))
        with pytest.raises(VmfError, match="VMF338"):
            QualityModel.load(tmp_path / "quality.json")


def test_signals_by_hand():
    logits = torch.full((1, 3, 4, 4), -20.0)
    logits[:, 0] = 20.0
    logits[0, :, :2, :2] = torch.tensor([-20.0, 0.0, 0.0])[:, None, None]  # two classes alike, the first is taken
    likelihood = torch.tensor([[1.0, 2.0], [3.0, 100.0]]).reshape(1, 1, 2, 2)
    activations = torch.tensor([0.25, 0.75])[None, :, None, None].expand(1, 2, 2, 2)
    image = torch.full((1, 1, 4, 4), 0.5)
    image[..., 2:, 2:] = 0.0  # the last position shows nothing
    collector = SignalCollector()
    collector.update(image, Explained(logits, activations, likelihood))
    signals = collector.signals()
    assert signals["log_likelihood"] == pytest.approx(2.0)
    assert signals["log_likelihood_foreground"] == pytest.approx(1.0)
    assert signals["entropy"] == pytest.approx(np.log(2) / np.log(3), abs=1e-5)  # softmax of (-20, 0, 0)
    assert signals["image_mean"] == pytest.approx(0.5)
    assert signals["image_contrast"] == pytest.approx(0, abs=1e-6)
    assert collector.activations() == pytest.approx([0.25, 0.75])


def test_native_noise_is_that_of_white_noise_and_of_no_scale():
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 1000, 80)[:, None, None] * np.ones((80, 80, 3))  # a ramp has no second difference
    image = torch.from_numpy(ramp + rng.normal(0, 20, ramp.shape))[None]
    # oracle: the median magnitude of a normal variable is 0.6745 of its standard deviation
    span = np.subtract(*np.percentile(image.numpy(), [99.5, 0.5]))
    assert native_noise(image)["image_noise"] == pytest.approx(np.log(0.6745 * 20 / span), abs=0.05)
    assert native_noise(3 * image + 50)["image_noise"] == pytest.approx(native_noise(image)["image_noise"], abs=1e-3)
    padded = torch.nn.functional.pad(image, (0, 0, 100, 100, 100, 100))  # what is set to zero around the body
    assert native_noise(padded)["image_noise"] == pytest.approx(native_noise(image)["image_noise"], abs=0.15)
    assert native_noise(torch.zeros(1, 8, 8, 2)) == {}
    assert native_noise(torch.rand(1, 2, 8, 2)) == {}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_grow_level_by_level_and_repeat(kind):
    image = np.random.default_rng(0).normal(300, 90, (32, 28, 3)).astype(np.float32)
    image[8:20, 8:20] += 400
    changes = [np.abs(corrupt(image, kind, level, seed=3) - image).mean() for level in range(LEVELS + 1)]
    assert changes[0] == 0
    assert np.all(np.diff(changes) > 0)
    assert np.array_equal(corrupt(image, kind, 4, seed=3), corrupt(image, kind, 4, seed=3))
    assert np.isfinite(corrupt(image, kind, LEVELS)).all()
    with pytest.raises(ValueError, match="level must be from 0 to 5, got 6"):
        corrupt(image, kind, 6)


@pytest.fixture
def rows(save_scan, bundle, tmp_path):
    """Return labelled scans whose truth is what the network itself finds, so that clean scans have Dice 1."""
    predictor = Predictor.from_bundle(bundle, "cpu")
    found = []
    for k in range(6):
        path = save_scan(f"{k}.nii.gz", shape=(30, 26, 4), seed=k)
        label = tmp_path / f"{k}_gt.nii.gz"
        nib.save(predictor(nib.load(path)), label)
        found.append({"image": str(path), "label": str(label), "domain": "AB"[k % 2], "subject": f"s{k}"})
    return found


def test_cases_know_their_dice(bundle, rows):
    cases = quality_cases(Predictor.from_bundle(bundle, "cpu"), rows[:2])
    assert len(cases) == 2 * (1 + len(CORRUPTIONS))
    assert [case.dice for case in cases if case.level == 0] == [1.0, 1.0]
    assert min(case.dice for case in cases) < 0.95


def test_stage_leaves_what_segment_shift_and_int8_need(own_bundle, rows, tmp_path, capsys):
    models = own_bundle / "models"
    stage = CalibrationStage(models, rows, ckpt_dir=models, slices=10, device="cpu", fingerprint={"a": 1})
    runner = StageRunner([stage], tmp_path / "run")
    runner.run()
    said = capsys.readouterr().out
    assert "10 slices of validation images are stored" in said
    error = json.loads((own_bundle / "models" / "quality.json").read_text())["model"]["error"]
    assert f"typical error of predicted Dice: {error:.2f} on source validation" in said
    predictor = Predictor.from_bundle(own_bundle, "cpu")
    quality = predictor(rows[0]["image"]).quality
    assert quality["light"] in ("green", "amber", "red")
    assert 0 <= quality["predicted_dice"] <= 1
    assert export_bundle(own_bundle, "torch-export").real
    reports = shift_groups(predictor, tmp_path / "*.nii.gz")
    assert [report.new for report in reports.values()] == [False], reports
    for name in ("quality.json", "shift.json", "calibration.safetensors"):
        (own_bundle / "models" / name).unlink()
    runner.run()  # done already: the files are put back
    assert "done already" in capsys.readouterr().out
    assert (own_bundle / "models" / "quality.json").is_file()
    save_file(tiny_network(5).state_dict(), own_bundle / "models" / "model.safetensors")
    edit_manifest(own_bundle, sha256={})
    other = Predictor.from_bundle(own_bundle, "cpu")
    quality = other(rows[0]["image"]).quality
    assert quality["light"] == "unknown"
    assert any("VMF344" in line for line in quality["warnings"]), "what was learnt about other weights is not used"
    with pytest.raises(VmfError, match=r"VMF342(.|\n)*made with other weights"):
        shift_groups(other, tmp_path / "*.nii.gz")


def test_stage_writes_only_what_it_can_and_removes_what_is_old(bundle, rows, tmp_path, capsys):
    unlabeled = [{key: value for key, value in row.items() if key != "label"} for row in rows]
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("quality.json", "calibration.safetensors"):
        (folder / name).write_text("of an older model")
    stage = CalibrationStage(bundle, unlabeled, ckpt_dir=folder, slices=0, device="cpu")
    assert stage.run(tmp_path / "stage", False) == ["shift.json"]
    assert "no labelled source volume" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["shift.json"]
    assert CalibrationStage(bundle, rows, rank=1).run(tmp_path / "other", False) == []
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"slices": -1}, "slices must not be negative, got -1"), ({"max_volumes": 0}, "max_volumes must be at least 1")],
)
def test_wrong_arguments_of_the_stage_are_named(bundle, changes, message):
    with pytest.raises(ValueError, match=message):
        CalibrationStage(bundle, [], **changes)


def test_without_statistics_there_is_no_verdict(bundle, rows):
    with pytest.raises(VmfError, match="VMF342"):
        shift_groups(Predictor.from_bundle(bundle, "cpu"), rows[0]["image"])


def test_the_reason_of_a_red_flag_tells_nothing_found_from_a_low_prediction():
    model = QualityModel({}, {}, {}, 0.2, 0.05)
    low, nothing = frame({"present": 1.0}), frame({"present": 0.0})
    assert judge({0: low}, {}, model, None)["light_reasons"] == ["a low Dice is predicted"]
    assert judge({0: low, 1: nothing}, {}, model, None)["light_reasons"] == ["no structure was found"]
