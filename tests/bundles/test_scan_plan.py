# SPDX-License-Identifier: Apache-2.0
"""Plans: what decides them, what must not, and how much memory they ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vmfseg.bundle.new import Recipe, compiled_files, widths_of
from vmfseg.bundle.scan_plan import Budget, plan_bundle, training_bytes
from vmfseg.data.orientation import Pose
from vmfseg.data.row_schema import Row
from vmfseg.data.scan_facts import ScanFacts
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "GM", 2: "WM"}
CPU = Budget(8 * 2**30)


def scan(domain, spacing, reach=10.0, width=6.0, pixels=128, **changes) -> ScanFacts:
    facts = ScanFacts(
        Row(image=f"{domain}.nii.gz", domain=domain, subject=domain, label="x.nii.gz"),
        (spacing, spacing, 5.0),
        (pixels, pixels, 20),
        "RAS",
        Pose(domain, domain, np.eye(3), {}),
        (0.0, 1.0, 2.0),
        (reach, reach / 2),
        {1: width, 2: 2 * width},
        20,
    )
    return replace(facts, **changes)


SITES = [scan("a", 0.4), scan("b", 0.5), scan("c", 0.8)]


def choices(plan):
    return {choice.name: choice for choice in plan.choices}


def test_spacing_is_the_median_of_the_domains_and_the_window_holds_the_labels():
    plan = plan_bundle([*SITES, *[scan("a", 0.4)] * 9], LABELS, CPU)  # many scans of one domain count once
    assert plan.recipe.spacing == 0.5
    assert list(plan.recipe.labels) == ["GM", "WM"]
    assert plan.recipe.size % 16 == 0
    assert plan.recipe.size * plan.recipe.spacing >= 2 * 10.0 * 1.25
    assert plan.recipe.size <= 96
    assert all(choice.reason for choice in plan.choices)
    assert "median of 3 domains (0.4 to 0.8 mm)" in choices(plan)["spacing"].reason


def test_nothing_of_the_target_domain_decides_anything():
    strange = scan("c", 9.0, reach=90.0, width=0.1, pixels=900)
    plans = [plan_bundle([*SITES[:2], last], LABELS, CPU, target_domain="c") for last in (SITES[2], strange)]
    assert plans[0] == plans[1]
    assert plan_bundle([*SITES[:2], strange], LABELS, CPU).recipe != plans[0].recipe


def test_a_large_organ_gets_coarser_pixels_on_a_cpu_and_fine_ones_on_a_gpu():
    hearts = [scan(name, 1.3, reach=65.0, width=40.0, pixels=200) for name in "ab"]
    slow, fast = (plan_bundle(hearts, LABELS, budget).recipe for budget in (CPU, Budget(16 * 2**30, "cuda")))
    assert (slow.spacing, slow.size) == (1.7, 96)  # 2.5 * 65 mm / 96 pixels
    assert (fast.spacing, fast.size, fast.width) == (1.3, 208, 64)  # the whole field, 260 mm


def test_pixels_never_grow_so_far_that_a_structure_gets_lost():
    plan = plan_bundle([scan(name, 1.0, reach=100.0, width=6.6, pixels=260) for name in "ab"], LABELS, CPU)
    assert plan.recipe.spacing == 1.1  # 6 pixels of GM, though 96 pixels of 2.6 mm would do
    assert plan.recipe.size == 240  # 250 mm
    assert "as far as GM keeps 6 pixels" in choices(plan)["spacing"].reason


def test_a_narrow_structure_gets_finer_pixels():
    plan = plan_bundle([scan("a", 0.3, width=2.4), scan("b", 0.8, width=2.4), scan("c", 0.8, width=2.4)], LABELS, CPU)
    assert plan.recipe.spacing == 0.4
    assert "GM (2.4 mm wide) has 6 pixels" in choices(plan)["spacing"].reason


def test_without_labels_the_smallest_field_decides():
    bare = [replace(scan(n, 1.0, pixels=p, widths={}), reach=None) for n, p in (("a", 90), ("b", 70))]
    plan = plan_bundle(bare, LABELS, CPU, method="unsupervised")
    assert (plan.recipe.spacing, plan.recipe.size) == (1.0, 80)
    assert "no source label has GM, WM" in choices(plan)["labels"].reason


def test_little_memory_makes_batch_and_width_small():
    recipes = [plan_bundle(SITES, LABELS, Budget(int(gib * 2**30), "cuda")).recipe for gib in (40, 1, 0.1)]
    assert [recipe.width for recipe in recipes] == sorted((recipe.width for recipe in recipes), reverse=True)
    assert recipes[0].width == 64
    assert recipes[-1].width == 8
    for recipe, gib in zip(recipes[:2], (40, 1), strict=True):
        assert training_bytes(recipe.width, recipe.size, recipe.batch_size, 3) <= gib * 2**29


def test_the_estimate_is_near_the_peak_that_a_profiler_sees():
    network = VMFNet(out_channels=3, channels=widths_of(8), level=0, hidden_channels=8, log_activations=True)
    image = torch.rand(2, 1, 64, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        parts = network(image, return_parts=True)
        (parts.logits.mean() + parts.reconstruction.mean()).backward()
    now = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    weights = 4 * sum(parameter.numel() for parameter in network.parameters())
    peak += 3 * weights  # the weights themselves and the two moments of Adam
    assert peak <= training_bytes(8, 64, 2, 3) <= 2 * peak


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        pytest.param({"target_domain": "bb"}, "VMF290", "Did you mean 'b'", id="no such domain"),
        pytest.param({"cubes": True}, "VMF242", "nnU-Net", id="cubes"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, code, text):
    scans = [replace(s, spacing=(1.0, 1.0, 1.0), shape=(90, 90, 90)) for s in SITES] if "cubes" in change else SITES
    with pytest.raises(VmfError, match=text) as error:
        plan_bundle(scans, LABELS, CPU, target_domain=change.get("target_domain", ""))
    assert error.value.code == code


def test_width_and_batch_are_compiled_and_noted_only_where_they_are_not_the_usual(tmp_path):
    usual, wide = (Recipe(["a"], 1.0, 64, width=w, batch_size=b).compile("own") for w, b in ((16, 4), (32, 2)))
    assert "batch_size" not in usual["configs/metadata.json"]
    assert '"width": 32' in wide["configs/metadata.json"]
    assert '"channels": [32, 64, 128, 256, 256]' in wide["configs/train.json"]
    assert '"batch_size": 2' in wide["configs/train.json"]
    for files in (usual, wide):
        (tmp_path / "own" / "configs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / "configs" / "metadata.json").write_text(files["configs/metadata.json"])
        assert compiled_files(tmp_path / "own") == files
    with pytest.raises(ValueError, match="width must be a whole number up to 256"):
        Recipe(["a"], 1.0, 64, width=1.5)
