# SPDX-License-Identifier: Apache-2.0
"""Quantize OpenVINO models to 8 bits by nncf, calibrated on slices of the bundle.

Only convolutions are worth it, and of those only the ones that cost time. All else stays in float32: the vMF layer,
whose squared norms span four decades and would lose every faint feature to steps of a 255th of the largest; the first
layer, which reads the image; the first one of the head, which reads activations; and other small ones. Together these
have a few hundredths of the multiplications. Shifts that rounding brings about are measured layer by
layer, with the layers before in eight bits, and taken out of the biases.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vmfseg.model.probe import ISA_CAP, run_child
from vmfseg.utils import VmfError
from vmfseg.utils.packages import check_package, require_package

__all__ = ["MIN_SHARE", "kept_in_float", "quantize"]

#: Layers with a smaller share of the multiplications stay in float32.
MIN_SHARE = 0.01
_LAYERS = ("Convolution", "ConvolutionBackpropData")
#: What passes eight bits on as they are.
_PASSIVE = ("Parameter", "Constant", "Result", "Add", "Relu", "MaxPool", "Interpolate", "Concat")
_SECONDS = 3600


def quantize(path: Path, slices: torch.Tensor) -> None:
    """Quantize the layers of an OpenVINO model in place.

    It is done in a child process without AMX: to correct biases nncf runs layers in eight bits, which some processors
    do not survive.

    Args:
        path: the ``.xml`` file.
        slices: what the network sees, ``B1HW``, to learn the ranges of its layers from.

    Raises:
        VmfError: VMF530 if nncf is not installed, VMF531 if eight bits do not run on this machine.
    """
    for package in ("openvino", "nncf"):
        check_package(package)
    with tempfile.TemporaryDirectory(prefix="vmfseg-int8-") as folder:
        file, made = Path(folder) / "slices.npy", Path(folder) / "int8.xml"
        np.save(file, slices.numpy())
        command = [sys.executable, "-m", __name__, str(path), str(file), str(made)]
        code, found = run_child(command, ISA_CAP, _SECONDS)
        if code:
            raise VmfError(
                "VMF531",
                subject=str(path),
                rule="the network cannot be brought to int8 on this machine",
                found=found,
                fix="export without --int8",
            )
        for suffix in (".xml", ".bin"):
            shutil.move(made.with_suffix(suffix), path.with_suffix(suffix))


def kept_in_float(model: Any) -> list[str]:
    """Return the names of the convolutions and sums of an OpenVINO model that stay in float32.

    These are convolutions with less than :data:`MIN_SHARE` of the multiplications, convolutions that read the image or
    what is no convolution's result (activations), and sums that are no bias.
    """
    costs, names = {}, []
    for layer in model.get_ordered_ops():
        kind, name, source = layer.get_type_name(), layer.get_friendly_name(), _source(layer)
        if kind == "Add" and source not in _LAYERS:
            names.append(name)
        if kind in _LAYERS:
            if source not in _PASSIVE[1:]:
                names.append(name)
            # every weight meets every position of the coarser of the two images
            coarse = layer.input(0) if kind == "ConvolutionBackpropData" else layer.output(0)
            sides = [side.get_length() for side in list(coarse.get_partial_shape())[2:]]
            costs[name] = math.prod(layer.input(1).get_shape()) * math.prod(sides)
    limit = MIN_SHARE * sum(costs.values())
    return sorted({*names, *(name for name, cost in costs.items() if cost < limit)})


def _source(layer: Any) -> str:
    return str(layer.input_value(0).get_node().get_type_name()) if layer.get_input_size() else ""


def _main(path: str, slices: str, made: str) -> None:
    openvino, nncf = require_package("openvino"), require_package("nncf")
    advanced, estimators = (
        require_package(f"nncf.quantization.{name}") for name in ("advanced_parameters", "range_estimator")
    )
    batches = [batch[None] for batch in np.load(slices, allow_pickle=False)]
    model = openvino.Core().read_model(path)
    others = {layer.get_type_name() for layer in model.get_ordered_ops()} - {*_LAYERS, *_PASSIVE}
    small = nncf.quantize(
        model,
        nncf.Dataset(batches),
        subset_size=len(batches),
        preset=nncf.QuantizationPreset.MIXED,
        fast_bias_correction=False,
        ignored_scope=nncf.IgnoredScope(names=kept_in_float(model), types=sorted(others)),
        # by default ranges are means over the slices, which cuts off what only some of them show: small structures
        advanced_parameters=advanced.AdvancedQuantizationParameters(
            activations_range_estimator_params=estimators.RangeEstimatorParametersSet.MINMAX
        ),
    )
    openvino.save_model(small, made, compress_to_fp16=False)


if __name__ == "__main__":
    _main(*sys.argv[1:])
