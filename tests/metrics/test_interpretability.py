# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from vmfseg.representation.homogeneity import class_profile, largest_piece, moran_index, resultant_length
from vmfseg.representation.interpretability import bootstrap_interval, describe_channels, match_channels
from vmfseg.representation.samples import ActivationSample, by_subject, lattice_masks

LABELS = {1: "LV", 2: "MYO", 3: "RV"}
SIZE = 96


def anatomy(seed: int) -> np.ndarray:
    """Drawn on the lattice and enlarged, so that activations can fit it exactly."""
    rng = np.random.default_rng(seed)
    x, y = np.indices((SIZE // 2, SIZE // 2))
    cx, cy = 22 + rng.uniform(-3, 3, 2)
    image = np.zeros((SIZE // 2, SIZE // 2), np.uint8)
    image[np.hypot(x - cx, y - cy - 10) < 7] = 3
    radius = np.hypot(x - cx, y - cy)
    image[radius < 9] = 2
    image[radius < 5.5] = 1
    return np.kron(image, np.ones((2, 2), np.uint8))


def soft(winner: np.ndarray, channels: int = 6) -> np.ndarray:
    """Activations on the half-size lattice: 0.9 for the winning channel, the rest shared."""
    small = winner[::2, ::2]
    result = np.full((channels, *small.shape), 0.1 / (channels - 1))
    np.put_along_axis(result, small[None], 0.9, axis=0)
    return result


def blocks(kind: str, image: np.ndarray, seed: int) -> np.ndarray:
    """Six synthetic networks: channels 0 and 4 are halves of the background, 1..3 the classes, 5 is spare."""
    rng = np.random.default_rng(seed + 100)
    background = np.where(np.indices(image.shape)[0] < SIZE // 2, 0, 4)
    winner = np.where(image == 0, background, image).astype(int)
    if kind == "merged":
        winner = np.where(image == 3, 1, winner)
    elif kind == "split":
        stripes = (np.indices(image.shape)[1] // 4) % 2
        winner = np.where((image == 1) & (stripes == 1), 5, winner)
    elif kind == "noise":
        winner = np.kron(rng.integers(0, 6, (SIZE // 2, SIZE // 2)), np.ones((2, 2), int))
    return winner


def samples(kind: str, seeds: range, domain: str = "A") -> list[ActivationSample]:
    result = []
    for seed in seeds:
        image = anatomy(seed)
        activations = (
            np.full((6, SIZE // 2, SIZE // 2), 1 / 6) if kind == "uniform" else soft(blocks(kind, image, seed))
        )
        result.append(ActivationSample(activations, image, f"s{seed}", domain, image=image.astype(float)))
    return result


def report(kind: str) -> dict:
    return describe_channels(samples(kind, range(4, 8), "B"), match_channels(samples(kind, range(4)), LABELS))


def test_one_channel_per_structure_is_perfect():
    result = report("perfect")
    assert result["matched_dice"] == 1.0
    assert {name: entry["channel"] for name, entry in result["classes"].items()} == {"LV": 1, "MYO": 2, "RV": 3}
    assert [result["channels"][j]["best_class_by_dice"] for j in (1, 2, 3)] == ["LV", "MYO", "RV"]
    assert [result["channels"][j]["best_class_by_information"] for j in (1, 2, 3)] == ["LV", "MYO", "RV"]
    assert all(result["channels"][j]["meaningful"] for j in (1, 2, 3))
    assert result["partition"]["homogeneity"] == pytest.approx(1.0)
    assert result["channels"][1]["largest_piece"] == 1.0
    assert all(entry["average_precision"] == pytest.approx(1.0) for entry in result["classes"].values())


def test_merged_structures_lose_matched_dice_and_purity():
    perfect, merged = report("perfect"), report("merged")
    assert merged["matched_dice"] < perfect["matched_dice"] - 0.2
    assert merged["channels"][1]["purity"] < perfect["channels"][1]["purity"]
    assert merged["partition"]["homogeneity"] < perfect["partition"]["homogeneity"]


def test_split_structures_lose_matched_dice_compactness_and_exclusivity_but_stay_homogeneous():
    perfect, split = report("perfect"), report("split")
    assert 0.6 < split["classes"]["LV"]["matched_dice"] < 0.8
    assert split["classes"]["MYO"]["matched_dice"] == perfect["classes"]["MYO"]["matched_dice"]
    assert split["channels"][1]["largest_piece"] < 0.8
    assert split["classes"]["LV"]["exclusivity"] < perfect["classes"]["LV"]["exclusivity"] - 0.3
    assert split["partition"]["homogeneity"] == pytest.approx(1.0)
    assert split["partition"]["completeness"] < perfect["partition"]["completeness"]


def test_noise_means_nothing():
    result = report("noise")
    assert result["matched_dice"] < 0.25
    assert abs(result["partition"]["ami"]) < 0.02
    assert result["mean_class_entropy"] > 0.97
    assert all(abs(entry["information_above_null"]) < 0.02 for entry in result["channels"])


def test_uniform_activations_have_the_extreme_figures():
    result = report("uniform")
    assert result["mean_purity"] == pytest.approx(0.25)
    assert result["mean_class_entropy"] == pytest.approx(1.0)
    assert result["usage"] == pytest.approx({"perplexity": 6.0, "dead_channels": 0, "position_entropy": 1.0})
    assert result["intensity_homogeneity"] == pytest.approx(0.0, abs=1e-9)
    assert all(entry["moran_index"] is None for entry in result["channels"])


def test_thresholds_and_channels_come_from_the_calibration_data_alone():
    match = match_channels(samples("perfect", range(4)), LABELS)
    swapped = [
        ActivationSample(s.activations[[0, 3, 2, 1, 4, 5]], s.labels, s.subject, "B")
        for s in samples("perfect", range(4, 8))
    ]
    result = describe_channels(swapped, match)
    assert {name: entry["channel"] for name, entry in result["classes"].items()} == match.assignment
    assert result["classes"]["LV"]["matched_dice"] < 0.05
    assert result["channels"][3]["best_class_by_dice"] == "LV"


def test_matched_dice_equals_a_computation_by_hand():
    match = match_channels(samples("split", range(4)), LABELS)
    target = samples("split", range(4, 6))
    channel, expected = match.assignment["LV"], []
    for sample in target:
        chosen = sample.activations[channel] > match.thresholds[channel, 0]
        blocks_of = (sample.labels == 1).reshape(SIZE // 2, 2, SIZE // 2, 2).mean(axis=(1, 3))
        mask = blocks_of > 0.5
        expected.append(2 * (chosen & mask).sum() / (chosen.sum() + mask.sum()))
    assert describe_channels(target, match)["classes"]["LV"]["matched_dice"] == pytest.approx(np.mean(expected))


def test_slices_of_a_subject_are_pooled():
    both = [ActivationSample(s.activations, s.labels, "one", "A") for s in samples("perfect", range(2))]
    assert list(by_subject(both)) == ["A/one"]
    result = describe_channels(both, match_channels(samples("perfect", range(2, 4)), LABELS))
    assert (result["n_subjects"], result["matched_dice_interval_95"], result["n_meaningful"]) == (1, None, None)


def test_homology_tells_channels_that_change_their_tissue_between_domains():
    stable = samples("perfect", range(3), "A") + samples("perfect", range(3, 6), "B")
    changing = samples("perfect", range(3), "A") + [
        ActivationSample(s.activations[[0, 3, 2, 1, 4, 5]], s.labels, s.subject, "B")
        for s in samples("perfect", range(3, 6))
    ]
    match = match_channels(samples("perfect", range(6, 8)), LABELS)
    channel = [describe_channels(data, match)["channels"][1] for data in (stable, changing)]
    assert channel[0]["homology_domains"] > 0.9
    assert channel[1]["homology_domains"] < 0.5
    assert channel[1]["homology_subjects"] < channel[0]["homology_subjects"]


def test_profile_is_the_lift_over_prevalence():
    (sample,) = samples("perfect", range(1))
    profile = class_profile([sample], LABELS)
    masks = lattice_masks(sample, LABELS)
    classes = [~masks.any(axis=0), *masks]
    lift = [(sample.activations[1] * c).sum() / sample.activations[1].sum() / c.mean() for c in classes]
    np.testing.assert_allclose(profile[1], np.array(lift) / np.sum(lift), atol=1e-12)
    np.testing.assert_allclose(profile.sum(axis=1), 1.0)


def test_coherence_of_directions_recovers_the_concentration_formula():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(8, 48, 48)) + 3 * np.eye(8)[0][:, None, None]
    (sample,) = samples("perfect", range(1))
    with_features = ActivationSample(sample.activations, sample.labels, "s", features=features)
    unit = (features / np.linalg.norm(features, axis=0)).reshape(8, -1)
    weight = sample.activations[2].ravel()
    length = np.linalg.norm(unit @ weight) / weight.sum()
    assert resultant_length([with_features], 2) == pytest.approx(length)
    entry = describe_channels([with_features], match_channels([sample], LABELS))["channels"][2]
    assert entry["implied_kappa"] == pytest.approx(length * (8 - length**2) / (1 - length**2))
    assert resultant_length([sample], 2) is None


def test_moran_index_of_known_patterns():
    assert moran_index(np.indices((20, 20))[0]) > 0.9
    assert abs(moran_index(np.random.default_rng(0).normal(size=(60, 60)))) < 0.05
    assert moran_index(np.ones((4, 4))) is None
    assert largest_piece(np.zeros((4, 4), bool)) is None


def test_reports_are_json_without_nan_even_with_absent_classes():
    data = [
        ActivationSample(s.activations, np.where(s.labels == 3, 0, s.labels), s.subject)
        for s in samples("perfect", range(3))
    ]
    result = describe_channels(data, match_channels(samples("perfect", range(4, 6)), LABELS))
    assert result["classes"]["RV"]["matched_dice"] is None
    assert result["classes"]["LV"]["matched_dice"] == 1.0
    json.dumps(result, allow_nan=False)


def test_bootstrap_interval_covers_the_mean_and_is_repeatable():
    values = np.random.default_rng(0).normal(0.7, 0.1, 30)
    low, high = bootstrap_interval(values, seed=1)
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 30**0.5, rel=0.15)
    assert bootstrap_interval(values, seed=1) == [low, high]


@pytest.mark.parametrize(
    ("activations", "labels", "message"),
    [
        pytest.param(np.ones((2, 4, 4)), np.zeros((8, 8), int), "sum to one over the channels, got sums 2", id="sum"),
        pytest.param(np.full((2, 4, 4), 0.5), np.zeros((9, 8), int), "must be a multiple of the lattice", id="size"),
        pytest.param(np.full((2, 4, 4), 0.5), np.zeros((1, 8, 8), int), "Give one slice a sample", id="dims"),
    ],
)
def test_bad_samples_are_refused(activations, labels, message):
    with pytest.raises(ValueError, match=message):
        ActivationSample(activations, labels, "s")


def test_no_samples_and_no_classes_are_refused():
    with pytest.raises(ValueError, match="samples must be at least one"):
        match_channels([], LABELS)
    empty = ActivationSample(np.full((2, 4, 4), 0.5), np.zeros((8, 8), int), "s")
    with pytest.raises(ValueError, match="at least one of the classes"):
        match_channels([empty], LABELS)
