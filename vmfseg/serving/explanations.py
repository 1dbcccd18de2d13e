# SPDX-License-Identifier: Apache-2.0
r"""Kernel maps of segmented scans, and the tissue of each kernel.

The tissue of kernel :math:`j` is read off the prediction itself: with activations :math:`a_{jp}` and the predicted
class :math:`\hat y_p`, the share :math:`s_{jn} = \sum_{p: \hat y_p = n} a_{jp} / \sum_p a_{jp}` of its activation
lies in class :math:`n`, and it stands for the class with the largest share, or for nothing if it explains less than a
thousandth of the scan. No label is needed, and none is used: this says what the network uses a kernel for, not whether
that is right.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.model.scan import Scan
from vmfseg.utils import VmfError

__all__ = ["Explanation", "Explanations", "kernel_shares"]

#: What a kernel stands for that explains next to nothing of a scan.
UNUSED = "unused"
_USED = 1e-3
_MAX_RESULTS, _MAX_BYTES = 8, 1 << 29


def kernel_shares(labels: npt.NDArray[Any], activations: npt.NDArray[Any], classes: int) -> npt.NDArray[np.float64]:
    """Return :math:`s_{jn}`, ``JN``: where the activation of each kernel lies.

    Args:
        labels: predicted classes, any shape.
        activations: that shape and ``J``.
        classes: ``N``.

    Example:
        >>> labels = np.array([0, 0, 1])
        >>> kernel_shares(labels, np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.5]]), 2).tolist()
        [[1.0, 0.0], [0.25, 0.75]]
    """
    table = np.stack(
        [activations[labels == value].sum(axis=0, dtype=np.float64) for value in range(classes)], axis=1
    )  # fmt: skip
    return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1e-12))


@dataclass(frozen=True)
class Explanation:
    """One segmented frame, with the maps of all kernels where the network has any.

    Attributes:
        id: by which the maps are fetched.
        scan: the frame that was segmented, as a volume of its own.
        labels: ``XYZ``.
        activations: ``XYZJ``, float16; ``J`` is 0 for a network without kernels.
        facts: what the client is told at once.
    """

    id: str
    scan: Scan
    labels: npt.NDArray[np.uint8]
    activations: npt.NDArray[np.float16]
    facts: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes that it occupies."""
        held = 0 if self.scan.values is None else self.scan.values.nbytes
        return self.activations.nbytes + self.labels.nbytes + held

    def named(self, name: str) -> tuple[npt.NDArray[Any], str]:
        """Return a map and its type: ``image``, ``mask``, or ``kernel-J``.

        Raises:
            VmfError: VMF185 no such map.
        """
        if name == "mask":
            return self.labels, "uint8"
        if name == "image":
            return self.scan.frame(0)[0].numpy(), "float32"
        word, _, number = name.partition("-")
        if word == "kernel" and number.isascii() and number.isdigit() and len(number) < 6:
            return self.kernel(int(number)), "uint8"
        fix = "ask for image, mask or kernel-0"
        raise VmfError("VMF185", subject="map", rule="there is no such map", found=name[:40], fix=fix)

    def kernel(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the map of a kernel, 255 where it explains all.

        Raises:
            VmfError: VMF185 no such kernel.
        """
        count = self.activations.shape[-1]
        if not 0 <= number < count:
            found = str(number)
            fix = f"Choose a kernel from 0 to {count - 1}." if count else "The model has no kernels."
            raise VmfError("VMF185", subject="kernel", rule="there is no such kernel", found=found, fix=fix)
        return np.asarray(np.rint(self.activations[..., number].astype(np.float32) * 255), dtype=np.uint8)

    def voxel(self, place: tuple[float, float, float]) -> dict[str, Any]:
        """Return which kernels explain the voxel at a place (mm, RAS), the strongest first.

        Raises:
            VmfError: VMF185 a place outside of the scan.
        """
        index = np.rint(np.linalg.solve(self.scan.header.affine, (*place, 1.0))[:3])
        position = (int(index[0]), int(index[1]), int(index[2]))
        if not all(0 <= x < n for x, n in zip(position, self.labels.shape, strict=True)):
            rule, fix = "the place must lie in the scan", f"its shape is {self.labels.shape}"
            raise VmfError("VMF185", subject="voxel", rule=rule, found=str(position), fix=fix)
        weights = self.activations[position].astype(np.float64)
        order = np.argsort(-weights, kind="stable")
        value = int(self.labels[position])
        return {
            "voxel": list(position),
            "class": value,
            "name": self.facts["classes"][value]["name"],
            "kernels": [
                {"kernel": int(j), "weight": round(float(weights[j]), 4), "tissue": self.facts["kernels"][j]["tissue"]}
                for j in order
            ],
        }


class Explanations:
    """The last few explanations; older ones are forgotten, so that the memory stays bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Explanation] = OrderedDict()

    def add(
        self,
        scan: Scan,
        labels: npt.NDArray[np.uint8],
        activations: npt.NDArray[np.float32] | None,
        facts: dict[str, Any],
    ) -> Explanation:
        """Keep a result; ``facts`` must have ``classes``, and get ``id``, ``shape`` and ``kernels``."""
        if activations is None:
            activations = np.zeros((*labels.shape, 0), np.float32)
        shares = kernel_shares(labels, activations, len(facts["classes"]))
        total = activations.mean(axis=(0, 1, 2), dtype=np.float64)
        names = [entry["name"] for entry in facts["classes"]]
        kernels = [
            {
                "kernel": j,
                "share": round(float(total[j]), 4),
                "tissue": names[int(row.argmax())] if total[j] >= _USED else UNUSED,
                "certainty": round(float(row.max()), 4),
                "by_class": {name: round(float(value), 4) for name, value in zip(names, row, strict=True)},
            }
            for j, row in enumerate(shares)
        ]
        key = secrets.token_hex(16)
        told = {**facts, "id": key, "shape": list(labels.shape), "kernels": kernels}
        kept = Explanation(key, scan, labels, activations.astype(np.float16), told)
        with self._lock:
            self._kept[key] = kept
            while len(self._kept) > 1 and (
                len(self._kept) > _MAX_RESULTS or sum(entry.size for entry in self._kept.values()) > _MAX_BYTES
            ):
                self._kept.popitem(last=False)
        return kept

    def get(self, key: str) -> Explanation:
        """Look up an explanation.

        Raises:
            VmfError: VMF182.
        """
        with self._lock:
            if key not in self._kept:
                raise VmfError("VMF199", subject="result")
            self._kept.move_to_end(key)
            return self._kept[key]
