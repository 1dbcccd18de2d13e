# SPDX-License-Identifier: Apache-2.0
"""A trained bundle whose network is a MONAI U-Net: no kernels, any number of image channels."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import tiny_model, write_tiny_bundle

from vmfseg.model.definitions import build
from vmfseg.utils.seeds import seeded


def write_plain_bundle(folder: Path, channels: int = 1) -> Path:
    """Write the bundle below ``folder`` and return its own folder."""
    definition = {
        "_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": channels, "out_channels": 4,
        "channels": [4, 8], "strides": [2],
    }  # fmt: skip
    with seeded(0, "plain"):
        trained = build(definition, "network").eval()
    changes = {"network": definition, "channels": channels}
    root = write_tiny_bundle(folder, trained)
    tiny_model(trained, **changes).save(root / "models", trained.state_dict())
    return root
