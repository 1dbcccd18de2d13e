# SPDX-License-Identifier: Apache-2.0
"""Surfaces of structures as STL, in millimeters in the patient's space."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from vmfseg.data.text_header import LPS_TO_RAS
from vmfseg.model.prediction import Prediction
from vmfseg.utils.packages import require_package

__all__ = ["mesh_names", "stl_bytes", "stl_meshes", "surface"]

_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def mesh_names(labels: Mapping[int, str]) -> tuple[str, ...]:
    """Return the endings of the files that :func:`stl_meshes` may give."""
    return tuple(f"{_safe(name)}.stl" for value, name in sorted(labels.items()) if value)


def stl_meshes(prediction: Prediction, labels: Mapping[int, str]) -> dict[str, bytes]:
    """Return a binary STL file of every structure that was found, by the ending of its name.

    Coordinates are millimeters, left-posterior-superior (LPS): the space of DICOM, in which 3D Slicer and
    other medical viewers take STL files that say nothing else. Of a cine, end-diastole is taken, or the first
    segmented frame where the phases are not known.

    Args:
        prediction: of a scan.
        labels: class names by value.

    Raises:
        VmfError: VMF530 without scikit-image.
    """
    volume = prediction.labels.reshape(prediction.scan.header.shape)
    if volume.ndim == 4:
        volume = volume[..., prediction.quality.get("phases", {}).get("ED", prediction.frames[0])]
    found = {}
    for value, name in sorted(labels.items()):
        mask = volume == value
        if value and mask.any():
            corners, faces = surface(mask, prediction.scan.header.affine)
            found[f"{_safe(name)}.stl"] = stl_bytes(corners, faces, f"vmfseg {name} LPS mm")
    return found


def surface(
    mask: npt.NDArray[np.bool_], affine: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return corners ``(V, 3)`` in mm (LPS) and triangles ``(T, 3)`` of a mask's surface by marching cubes.

    The surface is closed, also where the mask meets the edge of the volume, and its normals point outwards.

    Args:
        mask: ``(X, Y, Z)``.
        affine: of its voxels to millimeters, right-anterior-superior as in NIfTI.
    """
    measure = require_package("skimage.measure")
    box = [np.flatnonzero(mask.any(axis=tuple(a for a in range(3) if a != axis)))[[0, -1]] for axis in range(3)]
    part = mask[tuple(slice(low, high + 1) for low, high in box)]
    corners, faces, _, _ = measure.marching_cubes(np.pad(part, 1).astype(np.float32), 0.5)
    voxels = corners.astype(np.float64) - 1 + [low for low, _ in box]
    to_lps = LPS_TO_RAS @ affine
    points = voxels @ to_lps[:3, :3].T + to_lps[:3, 3]
    triangles = points[faces]
    if np.einsum("ij,ij->", triangles[:, 0], np.cross(triangles[:, 1], triangles[:, 2])) < 0:
        faces = faces[:, ::-1]
    return points, faces.astype(np.int64)


def stl_bytes(corners: npt.NDArray[np.float64], faces: npt.NDArray[np.int64], title: str = "") -> bytes:
    """Return a surface as binary STL."""
    triangles = corners[faces]
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    rows = np.zeros(len(faces), _TRIANGLE)
    rows["corners"] = triangles
    rows["normal"] = np.divide(normals, lengths, out=np.zeros_like(normals), where=lengths > 0)
    head = title.encode("ascii", "replace")[:80].ljust(80)
    return head + np.uint32(len(faces)).tobytes() + rows.tobytes()


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
