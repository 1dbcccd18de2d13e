# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions in an ONNX graph, written into it when it is loaded.

The file of an export keeps plain convolutions, which every runtime knows and can choose its own way for. ONNX Runtime's
own on a CPU is the direct one, so here the convolutions of many channels become the tiles, transforms and products of
:mod:`vmfseg.networks.winograd`, as nodes that it has: gather, transpose, matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vmfseg.model.fast_convolution import MIN_CHANNELS, MIN_TILES
from vmfseg.networks.winograd import SPAN, TILE, filter_transform, tile_transforms
from vmfseg.utils.packages import require_package

__all__ = ["read_with_winograd"]

_TO_SPECTRUM, _TO_PIXELS = "winograd/to_spectrum", "winograd/to_pixels"


def read_with_winograd(path: Path) -> bytes:
    """Return the content of an ONNX file with the convolutions replaced that gain by it.

    Args:
        path: an export; its images must have a fixed size.
    """
    onnx = require_package("onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {value.name: _shape(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    nodes, used = [], False
    for node in graph.node:
        kernel = weights.get(node.input[1]) if node.op_type == "Conv" else None
        shape = shapes.get(node.input[0], ()) if kernel is not None else ()
        if kernel is None or not _fits(onnx, node, weights, shape):
            nodes.append(node)
            continue
        if not used:
            to_spectrum, to_pixels, _ = tile_transforms()
            graph.initializer.append(onnx.numpy_helper.from_array(to_spectrum.numpy(), _TO_SPECTRUM))
            graph.initializer.append(onnx.numpy_helper.from_array(to_pixels.numpy(), _TO_PIXELS))
            used = True
        bias = weights.get(node.input[2]) if len(node.input) > 2 else None
        writer = _Writer(onnx, node, shape[2:], onnx.numpy_helper.to_array(kernel))
        nodes.extend(writer.nodes(None if bias is None else onnx.numpy_helper.to_array(bias)))
        graph.initializer.extend(writer.constants)
    if not used:
        return path.read_bytes()
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    content: bytes = model.SerializeToString()
    return content


class _Writer:
    """The nodes and constants that stand for one convolution."""

    def __init__(self, onnx: Any, node: Any, size: tuple[int, ...], kernel: npt.NDArray[np.float32]) -> None:
        self.onnx, self.node, self.size, self.kernel = onnx, node, size, kernel
        self.constants: list[Any] = []
        self.prefix = f"winograd/{node.output[0]}"

    def nodes(self, bias: npt.NDArray[np.float32] | None) -> Iterator[Any]:
        """Yield the nodes in order; the last one has the convolution's own output."""
        (outs, ins), (height, width) = self.kernel.shape[:2], self.size
        down, across = -(-height // TILE), -(-width // TILE)
        spare = [0, 1, 1, 0, 0, TILE * down - height + 1, TILE * across - width + 1, 0]
        flat = self._whole("flat", SPAN * SPAN, -1)
        filters = self._constant("filters", filter_transform(torch.tensor(self.kernel)).numpy())
        shift = self._constant("bias", np.zeros(outs, np.float32) if bias is None else bias)
        steps: list[tuple[str, list[str], dict[str, Any]]] = [  # "" stands for what the step before gave
            ("Transpose", [self.node.input[0]], {"perm": [0, 2, 3, 1]}),
            ("Pad", ["", self._whole("pads", *spare)], {}),
            ("Gather", ["", self._windows("rows", down)], {"axis": 1}),
            ("Gather", ["", self._windows("columns", across)], {"axis": 2}),
            ("Reshape", ["", self._whole("tiles", -1, down, SPAN, across, SPAN, ins)], {}),
            ("Transpose", [""], {"perm": [2, 4, 0, 1, 3, 5]}),
            ("Reshape", ["", flat], {}),
            ("MatMul", [_TO_SPECTRUM, ""], {}),
            ("Reshape", ["", self._whole("spectra", SPAN * SPAN, -1, ins)], {}),
            ("MatMul", ["", filters], {}),
            ("Reshape", ["", flat], {}),
            ("MatMul", [_TO_PIXELS, ""], {}),
            ("Reshape", ["", self._whole("pixels", TILE, TILE, -1, down, across, outs)], {}),
            ("Transpose", [""], {"perm": [2, 3, 0, 4, 1, 5]}),
            ("Reshape", ["", self._whole("image", -1, TILE * down, TILE * across, outs)], {}),
            (
                "Slice",
                ["", *(self._whole(*ends) for ends in (("from", 0, 0), ("to", height, width), ("axes", 1, 2)))],
                {},
            ),
            ("Add", ["", shift], {}),
            ("Transpose", [""], {"perm": [0, 3, 1, 2]}),
        ]
        result = ""
        for number, (operation, inputs, attributes) in enumerate(steps):
            arguments = [name or result for name in inputs]
            result = self.node.output[0] if number == len(steps) - 1 else f"{self.prefix}/{number}"
            name = f"{self.prefix}/{number}"
            yield self.onnx.helper.make_node(operation, arguments, [result], name=name, **attributes)

    def _constant(self, name: str, value: npt.NDArray[Any]) -> str:
        full = f"{self.prefix}/{name}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), full))
        return full

    def _whole(self, name: str, *values: int) -> str:
        return self._constant(name, np.array(values, np.int64))

    def _windows(self, name: str, count: int) -> str:
        return self._whole(name, *(TILE * tile + k for tile in range(count) for k in range(SPAN)))


def _fits(onnx: Any, node: Any, weights: dict[str, Any], shape: tuple[int, ...]) -> bool:
    kernel = weights[node.input[1]].dims
    known = all(name in weights and weights[name].data_type == onnx.TensorProto.FLOAT for name in node.input[1:])
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    plain = {"pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1, "auto_pad": b"NOTSET"}
    defaults = {**plain, "pads": [0] * 4}
    sides = shape[2:]
    return (
        known
        and list(kernel[2:]) == [3, 3]
        and all(given.get(name, defaults[name]) == value for name, value in plain.items())
        and min(kernel[:2]) >= MIN_CHANNELS
        and len(sides) == 2
        and all(sides)
        and -(-sides[0] // TILE) * -(-sides[1] // TILE) >= MIN_TILES
    )


def _shape(value: Any) -> tuple[int, ...]:
    """Return the sides of a tensor, 0 where they are not fixed."""
    return tuple(int(side.dim_value) for side in value.type.tensor_type.shape.dim)
