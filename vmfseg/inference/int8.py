# SPDX-License-Identifier: Apache-2.0
"""Eight bits for OpenVINO, by nncf's post-training quantization on the bundle's own slices."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from vmfseg.inference.packages import require_package

__all__ = ["quantize"]


def quantize(path: Path, slices: torch.Tensor) -> None:
    """Quantize the layers of an OpenVINO model in place.

    The file is read and written by nncf; the model never runs in this process, which some processors would not
    survive.

    Args:
        path: the ``.xml`` file.
        slices: what the network sees, ``B1HW``, to learn the ranges of its layers from.

    Raises:
        VmfError: VMF530 if nncf is not installed.
    """
    openvino, nncf = require_package("openvino"), require_package("nncf")
    advanced, estimators = (
        require_package(f"nncf.quantization.{name}") for name in ("advanced_parameters", "range_estimator")
    )
    batches = [batch.numpy() for batch in slices.split(1)]
    model = openvino.Core().read_model(str(path))
    small = nncf.quantize(
        model,
        nncf.Dataset(batches),
        subset_size=len(batches),
        preset=nncf.QuantizationPreset.MIXED,
        # by default ranges are means over the slices, which cuts off what only some of them show: small structures
        advanced_parameters=advanced.AdvancedQuantizationParameters(
            activations_range_estimator_params=estimators.RangeEstimatorParametersSet.MINMAX
        ),
    )
    other = path.with_name("quantized.xml")
    openvino.save_model(small, str(other), compress_to_fp16=False)
    del model, small
    for suffix in (".xml", ".bin"):
        shutil.move(other.with_suffix(suffix), path.with_suffix(suffix))
