# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by the tests of the metrics."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def heart() -> np.ndarray:
    """The synthetic heart of the reference's measurements: 288 x 288, labels 1 LV, 2 MYO, 3 RV."""
    x, y = np.meshgrid(np.arange(288), np.arange(288), indexing="ij")
    squared = (x - 144) ** 2 + (y - 144) ** 2
    image = np.zeros((288, 288), np.uint8)
    image[((x - 144) ** 2 + (y - 180) ** 2) <= 24**2] = 3
    image[squared <= 29**2] = 2
    image[squared <= 19**2] = 1
    return image


@pytest.fixture(scope="session")
def labels() -> dict[int, str]:
    return {1: "LV", 2: "MYO", 3: "RV"}
