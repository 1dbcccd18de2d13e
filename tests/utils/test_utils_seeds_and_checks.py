# SPDX-License-Identifier: Apache-2.0
import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from vmfseg.utils import check_choice, derive_seed, did_you_mean, numpy_rng, seeded, torch_rng
from vmfseg.utils.checks import check_channels, check_divisible, check_finite, check_positive

# seeds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(), (0,), (0, "epoch", 3), ("ü", None, 1.5)])
def test_a_seed_is_the_digest_of_its_parts(parts):
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()
    assert derive_seed(*parts) == int(digest[:16], 16) // 2


def test_seeds_depend_on_every_part_and_on_their_order():
    seeds = {derive_seed(*parts) for parts in [(0, 1), (1, 0), (0,), ("01",), (0, 1, ""), ("0", "1", "2")]}
    assert len(seeds) == 6
    assert max(derive_seed(k) for k in range(1000)) < 2**63


def test_a_seed_is_the_same_in_another_process():
    code = "from vmfseg.utils import derive_seed; print(derive_seed(14, 'subject', 'A0S9V9'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == derive_seed(14, "subject", "A0S9V9")


def test_generators_repeat_and_differ():
    assert numpy_rng(0, "a").random() == numpy_rng(0, "a").random() != numpy_rng(0, "b").random()
    draws = [torch.rand(1, generator=torch_rng(*parts)) for parts in [(0, "a"), (0, "a"), (0, "b")]]
    assert draws[0] == draws[1] != draws[2]


def test_seeded_leaves_the_global_generator_alone_also_after_an_error():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    def draw_and_fail():
        with seeded(1):
            torch.rand(3)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        draw_and_fail()
    assert torch.rand(1) == expected


def test_generators_leave_the_global_ones_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.rand(2, generator=torch_rng(1))
    numpy_rng(1).random()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


# checks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 0.0, float("nan"), float("inf"), "3", None])
def test_positive_refuses(value):
    with pytest.raises(ValueError, match=r"kappa must be positive, got .*\. Take 30\."):
        check_positive("kappa", value, "Take 30.")


@pytest.mark.parametrize("value", [1, 1e-300, 1e300])
def test_positive_accepts(value):
    check_positive("kappa", value)


@pytest.mark.parametrize(
    ("shape", "dims", "wanted"),
    [
        ((2, 3, 4, 4), 2, r"\(B, 5, H, W\)"),
        ((2, 5, 4, 4), 3, r"\(B, 5, H, W, D\)"),
        ((2, 5, 4), None, r"\(B, 5, H, W\)"),
        ((2, 5, 4, 4, 4, 4), None, r"\(B, 5, H, W, D\)"),
        ((5,), None, r"\(B, 5, H, W\)"),
        ((), None, r"\(B, 5, H, W\)"),
    ],
)
def test_channels_refuses(shape, dims, wanted):
    with pytest.raises(ValueError, match=rf"x must have shape {wanted}, got \(.*\)\. Check what produces it\."):
        check_channels("x", torch.zeros(shape), 5, dims)


@pytest.mark.parametrize(("shape", "dims"), [((2, 5, 4, 4), None), ((2, 5, 4, 4, 4), None), ((2, 5, 4, 4), 2)])
def test_channels_accepts(shape, dims):
    check_channels("x", torch.zeros(shape), 5, dims)


@pytest.mark.parametrize(
    ("size", "padded"), [((17, 16), r"\(32, 16\)"), ((0, 16), r"\(16, 16\)"), ((1, 1, 1), r"\(16, 16, 16\)")]
)
def test_divisible_says_to_which_size_to_pad(size, padded):
    with pytest.raises(
        ValueError, match=rf"x size \(.*\) must be divisible by 16 because it is halved; pad to {padded}"
    ):
        check_divisible("x", size, 16, "it is halved")


def test_divisible_accepts():
    check_divisible("x", (16, 32), 16, "")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("count", "noun"), [(1, "value"), (3, "values")])
def test_finite_counts_what_is_wrong(bad, count, noun):
    x = torch.zeros(7)
    x[:count] = bad
    with pytest.raises(ValueError, match=rf"x must be finite, got {count} NaN or infinite {noun} of 7\. Look\."):
        check_finite("x", x, "Look.")
    check_finite("x", torch.zeros(7), "")
    check_finite("x", torch.zeros(7, dtype=torch.int64), "")


def test_choice_names_the_nearest_word_if_there_is_one():
    with pytest.raises(ValueError, match=r"mode must be one of mean, sum, got 'men'\. Did you mean 'mean'\?$"):
        check_choice("mode", "men", iter(["mean", "sum"]))
    with pytest.raises(ValueError, match=r"mode must be one of mean, sum, got 'zzz'\.$"):
        check_choice("mode", "zzz", ["mean", "sum"])
    check_choice("mode", "sum", ["mean", "sum"])


def test_did_you_mean():
    assert did_you_mean("clusterin", ["clustering", "dice"]) == " Did you mean 'clustering'?"
    assert did_you_mean("xyz", ["clustering", "dice"]) == ""
    assert did_you_mean("x", []) == ""
