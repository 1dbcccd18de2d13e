# SPDX-License-Identifier: Apache-2.0
"""Subjects of which only some classes were drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vmfseg.representation import ActivationSample, describe_channels, match_channels
from vmfseg.representation.samples import by_subject, fully_annotated, lattice_masks

LABELS = {1: "LV", 2: "RV"}


def sample(seed: int, shift: int = 0) -> ActivationSample:
    rng = np.random.default_rng(seed)
    labels = np.zeros((16, 16), int)
    labels[2:8, 2:8], labels[8:14, 4:10] = 1, 2
    truth = np.roll(labels, shift, axis=1)[::2, ::2]
    activations = np.stack([truth == k for k in range(3)]) * 0.8 + 0.2 * rng.dirichlet(np.ones(3), (8, 8)).T
    return ActivationSample(activations, labels, f"s{seed}")


def undrawn(item: ActivationSample) -> ActivationSample:
    return replace(item, labels=np.where(item.labels == 2, 0, item.labels), annotated=(1,))


def test_a_class_that_was_not_drawn_has_no_mask_even_if_there_are_voxels():
    masks = lattice_masks(replace(sample(0), annotated=(1,)), LABELS)
    assert masks[0].any()
    assert not masks[1].any()


def test_only_subjects_with_every_class_count_as_complete():
    groups = by_subject([sample(0), undrawn(sample(1)), replace(sample(2), annotated=(1, 2))])
    assert sorted(fully_annotated(groups, LABELS)) == ["all/s0", "all/s2"]


def test_an_undrawn_class_neither_helps_nor_hurts():
    match = match_channels([sample(10), sample(11)], LABELS)
    whole = describe_channels([sample(0), sample(1, 2)], match)
    partial = describe_channels([sample(0), sample(1, 2), undrawn(sample(2))], match)
    for name in ("matched_dice", "average_precision"):
        assert partial["classes"]["RV"][name] == pytest.approx(whole["classes"]["RV"][name])
    assert partial["partition"] == pytest.approx(whole["partition"])
    assert partial["mean_purity"] == pytest.approx(whole["mean_purity"])
    assert partial["n_subjects"] == 3
    # counted as background, the missing class would have cost
    wrong = describe_channels([sample(0), sample(1, 2), replace(undrawn(sample(2)), annotated=None)], match)
    assert wrong["mean_purity"] != pytest.approx(whole["mean_purity"])


def test_without_any_complete_subject_it_is_refused():
    match = match_channels([sample(10)], LABELS)
    with pytest.raises(ValueError, match=r"samples must hold a subject with all of \['LV', 'RV'\] annotated, got none"):
        describe_channels([undrawn(sample(0))], match)
