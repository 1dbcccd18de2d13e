# SPDX-License-Identifier: Apache-2.0
"""NiiVue viewer for notebooks: a scan with its labels and the map of one kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb

from vmfseg.utils.packages import require_package
from vmfseg.visualize.figure_style import class_color

__all__ = ["show_volume"]


def show_volume(
    image: Any,
    labels: Any = None,
    activations: npt.NDArray[Any] | Mapping[int, npt.NDArray[Any]] | None = None,
    *,
    names: Mapping[int, str] | None = None,
    kernel: int = 0,
    height: int = 400,
) -> Any:
    """Return a viewer for a notebook: the scan, its labels in the house colors, the map of one kernel.

    The widget is shown where it is the last value of a cell. Its ``volumes`` can be changed afterwards, for instance
    ``viewer.volumes[1].opacity = 0.2``.

    Shape: scan ``(X, Y, Z)``; labels the same; activations ``(X, Y, Z, J)``, or one map by number of the kernel.

    Args:
        image: a path, or a nibabel image.
        labels: a path, a nibabel image, or an array on the grid of the image; for instance ``prediction.labels``.
        activations: for instance ``prediction.activations``.
        names: class names by value, for the legend.
        kernel: whose map is shown.
        height: of the widget in pixels.

    Raises:
        ValueError: an array that does not lie on the grid, or a kernel that does not exist.
        VmfError: VMF530 if ipyniivue is not installed.

    Example:
        In a notebook::

            prediction = predictor.predict("scan.nii.gz", activations=True)
            show_volume("scan.nii.gz", prediction.labels, prediction.activations, names=predictor.labels)
    """
    package = require_package("ipyniivue")
    scan: Any = nib.load(image) if isinstance(image, str | os.PathLike) else image
    if not isinstance(scan, nib.spatialimages.SpatialImage):
        raise ValueError(f"image must be a path or a nibabel image, got {type(image).__name__}.")
    shape = tuple(scan.shape[:3])
    layers = [package.Volume(name="image.nii", data=_content(np.asarray(scan.dataobj), scan), colormap="gray")]
    if labels is not None:
        values = _array(labels)
        _check_grid("labels", values.shape, shape)
        layer = package.Volume(name="labels.nii", data=_content(values.astype(np.uint8), scan), opacity=0.5)
        layer.set_colormap_label(_colors(values, names or {}))
        layers.append(layer)
    if activations is not None:
        chosen = _kernel(activations, kernel)
        _check_grid("activations", chosen.shape, shape)
        content = _content(chosen.astype(np.float32), scan)
        look = {"opacity": 0.6, "colormap": "warm", "cal_min": 0.1, "cal_max": 1.0}
        layers.append(package.Volume(name=f"kernel_{kernel}.nii", data=content, **look))
    viewer = package.NiiVue(height=height, back_color=(0.0, 0.0, 0.0, 1.0), is_radiological_convention=True)
    viewer.load_volumes(layers)
    return viewer


def _array(labels: Any) -> npt.NDArray[Any]:
    if isinstance(labels, str | os.PathLike):
        labels = nib.load(labels)
    return np.asarray(labels.dataobj if isinstance(labels, nib.spatialimages.SpatialImage) else labels)


def _kernel(activations: npt.NDArray[Any] | Mapping[int, npt.NDArray[Any]], kernel: int) -> npt.NDArray[Any]:
    if isinstance(activations, Mapping):
        if kernel not in activations:
            raise ValueError(f"kernel must be one of {sorted(activations)}, got {kernel}.")
        return np.asarray(activations[kernel])
    maps = np.asarray(activations)
    if maps.ndim < 4 or not 0 <= kernel < maps.shape[-1]:
        raise ValueError(f"kernel must be an index of the last axis of {maps.shape}, got {kernel}.")
    return np.asarray(maps[..., kernel])


def _check_grid(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if tuple(found[:3]) != shape:
        raise ValueError(
            f"{name} must lie on the grid {shape} of the image, got {found}. Take them from one prediction."
        )


def _content(array: npt.NDArray[Any], scan: Any) -> bytes:
    content: bytes = nib.Nifti1Image(array, scan.affine).to_bytes()
    return content


def _colors(values: npt.NDArray[Any], names: Mapping[int, str]) -> dict[str, list[Any]]:
    classes = sorted({int(value) for value in np.unique(values)} | {0} | set(names))
    colors = [to_rgb(class_color(value)) if value else (0.0, 0.0, 0.0) for value in classes]
    channels = {name: [round(255 * color[k]) for color in colors] for k, name in enumerate("RGB")}
    return {
        **channels,
        "A": [255 if value else 0 for value in classes],
        "I": classes,
        "labels": [names.get(value, str(value)) for value in classes],
    }
