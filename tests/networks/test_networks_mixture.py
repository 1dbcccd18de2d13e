# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy.special import softmax

from vmfseg.networks import VMFMixture

TWO = torch.cat([torch.tensor([[1.0, 0.0, 0.0]]).repeat(30, 1), torch.tensor([[0.0, 2.0, 0.0]]).repeat(10, 1)])


def test_two_directions_are_found_with_their_shares():
    mixture = VMFMixture(num_kernels=2).fit(TWO)
    order = mixture.weights.argsort(descending=True)
    torch.testing.assert_close(mixture.weights[order], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(mixture.means[order], torch.eye(3)[:2])


def test_predictions_are_the_responsibilities():
    x = torch.randn(50, 4)
    mixture = VMFMixture(num_kernels=3, kappa=9.0).fit(x)
    unit = x.double().numpy() / np.linalg.norm(x.double().numpy(), axis=1, keepdims=True)
    expected = softmax(9.0 * unit @ mixture.means.double().numpy().T + np.log(mixture.weights.double().numpy()), axis=1)
    np.testing.assert_allclose(mixture.predict_proba(x), expected, atol=1e-5)
    np.testing.assert_array_equal(mixture.predict(x), expected.argmax(axis=1))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_batch_size_changes_memory_not_the_result(batch_size):
    x = torch.randn(60, 4)
    expected = VMFMixture(num_kernels=3).fit(x)
    actual = VMFMixture(num_kernels=3, batch_size=batch_size).fit(x)
    torch.testing.assert_close(actual.means, expected.means)
    assert actual.log_likelihood(x) == pytest.approx(expected.log_likelihood(x), abs=1e-10)


def test_fewer_distinct_directions_than_kernels_still_fit():
    mixture = VMFMixture(num_kernels=5).fit(TWO)
    assert torch.isfinite(mixture.means).all()
    torch.testing.assert_close(mixture.means.norm(dim=1), torch.ones(5))
    assert mixture.weights.sum().item() == pytest.approx(1.0)
    assert np.diff(mixture.log_likelihoods).min(initial=0) > -1e-9


def test_as_many_kernels_as_vectors():
    x = torch.eye(6)
    mixture = VMFMixture(num_kernels=6).fit(x)
    assert sorted(mixture.predict(x).tolist()) == list(range(6))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_only_directions_matter(scale):
    x = torch.randn(80, 5)
    expected = VMFMixture(num_kernels=3).fit(x)
    torch.testing.assert_close(VMFMixture(num_kernels=3).fit(x * scale).means, expected.means, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_types_of_vectors(dtype):
    mixture = VMFMixture(num_kernels=2).fit(torch.randn(40, 4).to(dtype))
    assert mixture.means.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_more_starts_are_never_worse_after_convergence():
    x = torch.randn(300, 6)
    options = {"num_kernels": 8, "kappa": 20.0, "max_iterations": 500, "tolerance": 1e-10}
    scores = [VMFMixture(**options, seed=seed, num_starts=1).fit(x).log_likelihoods[-1] for seed in range(8)]
    assert VMFMixture(**options, num_starts=8).fit(x).log_likelihoods[-1] > np.median(scores)


def test_seeding_spreads_over_directions():
    # k-means++ by cosine distance never takes a second copy of a direction while another one is left
    x = torch.eye(4).repeat_interleave(25, dim=0)
    for seed in range(10):
        mixture = VMFMixture(num_kernels=4, seed=seed, num_starts=1, max_iterations=1).fit(x)
        assert mixture.means.argmax(dim=1).unique().numel() == 4


def test_the_input_and_the_global_generator_stay_as_they_were():
    x = torch.randn(50, 4)
    before, state = x.clone(), torch.get_rng_state()
    VMFMixture(num_kernels=3).fit(x).sample(10)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_go_back_to_their_component():
    x = torch.eye(3).repeat(20, 1)
    mixture = VMFMixture(num_kernels=3, kappa=200.0).fit(x)
    vectors, component = mixture.sample(500)
    assert vectors.shape == (500, 3)
    assert torch.equal(mixture.predict(vectors), component)
    np.testing.assert_allclose(component.bincount() / 500, 1 / 3, atol=0.08)
    again, _ = mixture.sample(500)
    other, _ = mixture.sample(500, seed=1)
    assert torch.equal(again, vectors)
    assert not torch.equal(other, vectors)


def test_a_fit_on_samples_finds_the_mixture_again():
    first = VMFMixture(num_kernels=3, kappa=50.0).fit(torch.eye(6)[:3].repeat(30, 1))
    second = VMFMixture(num_kernels=3, kappa=50.0).fit(first.sample(3000)[0])
    assert (first.means @ second.means.t()).amax(dim=1).min() > 0.99


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kappa": 0.0}, r"kappa must be positive, got 0\.0\. Larger values give tighter clusters"),
        ({"num_kernels": 0}, r"num_kernels must be at least 1, got 0\. The default"),
        ({"max_iterations": 0}, r"max_iterations must be at least 1, got 0"),
        ({"batch_size": 0}, r"batch_size must be at least 1, got 0"),
        ({"seeding_vectors": 0}, r"seeding_vectors must be at least 1, got 0"),
        ({"num_starts": 0}, r"num_starts must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VMFMixture(**kwargs)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(11, 4), r"num_kernels must not exceed the number of vectors, got 12 kernels for 11 vectors\. Use"),
        (torch.randn(20), r"x must have shape \(n, F\) with F of at least 2, got \(20,\)\. Flatten"),
        (torch.randn(2, 4, 5, 5), r"x must have shape \(n, F\) .* got \(2, 4, 5, 5\)"),
        (torch.randn(20, 1), r"x must have shape \(n, F\) with F of at least 2, got \(20, 1\)"),
        (torch.full((20, 4), torch.nan), r"x must be finite, got 80 NaN or infinite values of 80\. Check the images"),
        (torch.full((20, 4), torch.inf), r"x must be finite, got 80 NaN or infinite values of 80"),
        (torch.eye(4)[[0] * 19 + [1]] * torch.tensor([[0.0]] * 3 + [[1.0]] * 17), r"norm zero, got 3 of 20\. Leave"),
    ],
    ids=["too-few", "vector", "maps", "one-channel", "nan", "inf", "zeros"],
)
def test_bad_vectors_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        VMFMixture().fit(x)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "log_likelihood"])
def test_use_before_fit_and_vectors_of_another_width_are_refused(method):
    mixture = VMFMixture(num_kernels=2)
    with pytest.raises(ValueError, match=r"VMFMixture must be fitted before use\. Call fit\(x\) first"):
        getattr(mixture, method)(TWO)
    with pytest.raises(ValueError, match=r"VMFMixture must be fitted before use"):
        mixture.sample(3)
    mixture.fit(TWO)
    with pytest.raises(ValueError, match=r"x must have shape \(n, 3\) as in fit, got \(5, 4\)\. Use the same encoder"):
        getattr(mixture, method)(torch.randn(5, 4))
