# SPDX-License-Identifier: Apache-2.0
"""Epochs of a stream depend on their number alone."""

from __future__ import annotations

import pytest
import torch
from monai.transforms import Lambda

from vmfseg.data import SliceDataset, SliceLoader
from vmfseg.data.stream import SliceStream


def loader(**kwargs):
    fake = Lambda(lambda row: {**row, "image": torch.zeros(1, 8, 8, 5)})
    rows = [{"image": name, "subject": name} for name in "abc"]
    return SliceLoader(SliceDataset(rows, fake), batch_size=3, seed=1, **kwargs)


def samples(batches):
    return [batch["sample"] for batch in batches]


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_epochs_are_pieces_of_the_loaders_passes(steps):
    stream, whole = SliceStream(loader(), steps), loader()
    expected = [batch for _ in range(4) for batch in samples(whole)]
    found = [batch for _ in range(2) for batch in samples(stream)]
    assert found == expected[: 2 * steps]
    assert len(stream) == steps


def test_an_epoch_is_the_same_after_a_resume():
    stream, resumed = SliceStream(loader(), 2), SliceStream(loader(), 2)
    epochs = [samples(stream) for _ in range(4)]
    resumed.set_epoch(3)
    assert samples(resumed) == epochs[3]


def test_an_epoch_has_a_batch():
    with pytest.raises(ValueError, match="steps_per_epoch must be at least 1, got 0"):
        SliceStream(loader(), 0)
