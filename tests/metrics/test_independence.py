# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vmfseg.representation.decoding import RepresentationDecoder, information_over_bias
from vmfseg.representation.independence import (
    biased_distance_correlation,
    distance_correlation,
    domain_leakage,
    pool_content,
    style_stand_ins,
)
from vmfseg.representation.samples import ActivationSample


def literal_dcor2(x: np.ndarray, y: np.ndarray) -> float:
    """Székely and Rizzo's estimator, entry by entry."""
    n = len(x)
    centered = []
    for v in (x, y):
        d = np.array([[np.linalg.norm(v[i] - v[j]) for j in range(n)] for i in range(n)])
        u = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                if i != j:
                    u[i, j] = d[i, j] - d[i].sum() / (n - 2) - d[:, j].sum() / (n - 2) + d.sum() / ((n - 1) * (n - 2))
        centered.append(u)
    a, b = centered
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_corrected_correlation_equals_its_definition():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3))
    y = x[:, :1] ** 2 + 0.3 * rng.normal(size=(12, 1))
    assert distance_correlation(x, y, permutations=10)["dcor2"] == pytest.approx(literal_dcor2(x, y), abs=1e-12)


def test_biased_correlation_saturates_for_independent_data_and_the_corrected_one_does_not():
    rng = np.random.default_rng(0)
    wide, narrow, other = rng.normal(size=(50, 20_000)), rng.normal(size=(50, 8)), rng.normal(size=(50, 20_000))
    assert biased_distance_correlation(wide, narrow) == pytest.approx(0.79, abs=0.02)
    assert biased_distance_correlation(wide, other) == pytest.approx(1.0, abs=0.005)
    for second in (narrow, other):
        result = distance_correlation(wide, second, permutations=200)
        assert abs(result["dcor2"]) < 0.05
        assert result["p_value_t"] > 0.01
        assert result["p_value_permutation"] > 0.01


def test_dependence_is_found_and_grows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 4))
    values = [distance_correlation(x, x + noise * rng.normal(size=x.shape), 200)["dcor2"] for noise in (3.0, 1.0, 0.0)]
    assert values[0] < values[1] < values[2] == pytest.approx(1.0)
    result = distance_correlation(x, x + rng.normal(size=x.shape), 200)
    assert result["p_value_permutation"] == pytest.approx(1 / 201)
    assert result["p_value_t"] < 1e-6
    assert result["dcor2"] > result["null_95"]


def test_the_t_test_is_calibrated():
    rng = np.random.default_rng(2)
    p = [distance_correlation(rng.normal(size=(20, 5)), rng.normal(size=(20, 3)), 0)["p_value_t"] for _ in range(200)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.1


def test_constant_data_is_undefined_and_few_samples_are_refused():
    result = distance_correlation(np.ones((6, 2)), np.arange(6.0)[:, None])
    assert result["dcor2"] is None
    json.dumps(result, allow_nan=False)
    with pytest.raises(ValueError, match="at least 4, got 3 and 3"):
        distance_correlation(np.ones((3, 2)), np.ones((3, 2)))


def sample(seed: int, domain: str, tilt: float = 0.0) -> ActivationSample:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(4, 12, 12))
    logits[0] += tilt
    p = np.exp(logits) / np.exp(logits).sum(axis=0)
    features = rng.normal(size=(8, 12, 12))
    return ActivationSample(p, rng.integers(0, 2, (24, 24)), f"s{seed}", domain, rng.random((24, 24)), features)


def test_leakage_sees_a_shift_and_nothing_else():
    aligned = [sample(k, "ABC"[k % 3]) for k in range(45)]
    shifted = [sample(k, "ABC"[k % 3], tilt=0.5 * (k % 3)) for k in range(45)]
    assert abs(domain_leakage(aligned)["balanced_accuracy"] - 1 / 3) < 0.25
    result = domain_leakage(shifted)
    assert result["balanced_accuracy"] > 0.9
    assert (result["chance"], result["n_subjects"], set(result["recall"])) == (pytest.approx(1 / 3), 45, set("ABC"))


@pytest.mark.parametrize("domains", ["AAAA", "AAAB"], ids=["one-domain", "one-subject"])
def test_leakage_needs_domains_with_subjects(domains):
    with pytest.raises(ValueError, match="two or more domains with two or more subjects"):
        domain_leakage([sample(k, domain) for k, domain in enumerate(domains)])


def test_style_stand_ins_equal_computations_by_hand():
    data = [sample(k, "A") for k in range(6)]
    kernels = np.linalg.qr(np.random.default_rng(9).normal(size=(8, 4)))[0].T
    styles = style_stand_ins(data, kernels, components=3)
    assert {name: value.shape for name, value in styles.items()} == {
        "residuals": (6, 3),
        "norms": (6, 8),
        "appearance": (6, 8),
    }
    first = data[0]
    weight = first.activations[2].ravel() / first.activations[2].sum()
    intensity = first.image.reshape(12, 2, 12, 2).mean(axis=(1, 3)).ravel()
    mean = np.average(intensity, weights=weight)
    assert styles["appearance"][0, 2] == pytest.approx(mean)
    assert styles["appearance"][0, 6] == pytest.approx(np.sqrt(np.average((intensity - mean) ** 2, weights=weight)))
    length = np.linalg.norm(first.features, axis=0).ravel()
    assert styles["norms"][0, 2] == pytest.approx(np.average(length, weights=weight))
    assert style_stand_ins([ActivationSample(first.activations, first.labels, "s")]) == {}


def test_residuals_keep_the_distances_between_samples():
    data = [sample(k, "A") for k in range(6)]
    kernels = np.eye(8)[:4]
    full = style_stand_ins(data, kernels, components=6)["residuals"]
    unit = [(s.features / np.linalg.norm(s.features, axis=0)).reshape(8, -1) for s in data]
    share = [s.activations.reshape(4, -1) / s.activations.reshape(4, -1).sum(axis=1, keepdims=True) for s in data]
    raw = np.stack([(p @ u.T - kernels).ravel() for p, u in zip(share, unit, strict=True)])
    assert np.linalg.norm(full[0] - full[3]) == pytest.approx(np.linalg.norm(raw[0] - raw[3]))


def test_content_is_pooled_where_the_grid_divides():
    data = [sample(0, "A")]
    pooled = pool_content(data, (6, 5))
    assert pooled.shape == (1, 4 * 6 * 12)
    expected = data[0].activations.reshape(4, 6, 2, 12).mean(axis=2)
    np.testing.assert_allclose(pooled[0], expected.ravel())


def test_information_over_bias_tells_information_from_none():
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(40, 1, 8, 8, generator=rng)
    images = torch.nn.functional.interpolate(coarse, scale_factor=2, mode="bilinear")
    held_out = torch.arange(40) >= 30
    options = {"epochs": 25, "learning_rate": 5e-3, "channels": 8, "seeds": (0,)}
    informed = information_over_bias(images, coarse, held_out, **options)
    blind = information_over_bias(images, torch.rand(40, 1, 8, 8, generator=rng), held_out, **options)
    assert informed["iob"] > 3
    assert 0.7 < blind["iob"] < 1.3
    assert information_over_bias(images, coarse, held_out, **options) == informed
    expected = sum(p.numel() for p in RepresentationDecoder((1, 8, 8), (1, 16, 16), 8).parameters())
    assert informed["n_parameters"] == expected


def test_vectors_can_be_decoded_and_bad_splits_are_refused():
    images, styles = torch.rand(6, 1, 16, 16), torch.rand(6, 5)
    result = information_over_bias(images, styles, torch.arange(6) > 3, epochs=1, channels=4, seeds=(0, 1))
    assert len(result["values"]) == 2
    with pytest.raises(ValueError, match="held_out must split the 6 images"):
        information_over_bias(images, styles, torch.ones(6))
