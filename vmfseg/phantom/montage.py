# SPDX-License-Identifier: Apache-2.0
"""One picture of a phantom: a row per scanner, read back from the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vmfseg.phantom.make import PHANTOM_FILE
from vmfseg.utils import VmfError, atomic_path, read_json

__all__ = ["save_montage"]

_LABELS = ListedColormap(["#00000000", "#e45756", "#54a24b", "#4c78a8"])
_Pane = tuple[str, NDArray[Any], dict[str, Any]]


def save_montage(root: str | os.PathLike[str], png: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
    """Draw one subject per scanner of the phantom in ``root`` and write a PNG.

    Hearts: base, middle at ED and ES, apex, the labels, and the true tissues. Cords: the slice, the cord, the raters'
    agreement on gray matter, and the true tissues. The anatomy is turned upright by the affine, whatever the order of
    axes in the file.

    Args:
        root: folder of a phantom.
        png: the picture to write.
        overwrite: whether an existing picture may be replaced.

    Raises:
        VmfError: VMF301 if ``root`` holds no phantom, VMF503 if ``png`` exists and ``overwrite`` is false.
    """
    folder = Path(root)
    summary = read_json(folder / PHANTOM_FILE)
    hearts = summary.get("dataset") == "mnms"
    chosen: dict[Any, dict[str, Any]] = {}
    for row in summary.get("rows", []):
        key = (row["Vendor"], row["Centre"]) if hearts else row["site"]
        if hearts and row["folder"] == "Training/Unlabeled":
            continue
        chosen.setdefault(key, row)
    if not chosen:
        raise VmfError(
            "VMF301", subject=str(folder / PHANTOM_FILE), rule="the phantom has no labeled subject", fix="make it anew"
        )
    panes = [(_heart_panes if hearts else _cord_panes)(folder, chosen[key]) for key in sorted(chosen)]
    _draw(panes, Path(png), overwrite)
    return Path(png)


def _draw(rows: list[list[_Pane]], png: Path, overwrite: bool) -> None:
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(2.6 * columns, 2.9 * len(rows)), facecolor="black", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes, panes in zip(grid, rows, strict=True):
        for axis in axes:
            axis.axis("off")
        for axis, (title, picture, style) in zip(axes, panes, strict=False):
            overlay = style.pop("overlay", None)
            axis.imshow(picture.T, interpolation="nearest", **style)
            if overlay is not None:
                axis.imshow(overlay.T, cmap=_LABELS, vmin=0, vmax=3, alpha=0.55, interpolation="nearest")
            axis.set_title(title, color="white", fontsize=8)
    with atomic_path(png, overwrite=overwrite) as temporary:
        figure.savefig(temporary, dpi=110, format="png", facecolor="black", metadata={"Software": "vmfseg"})


def _gray(picture: NDArray[Any]) -> dict[str, Any]:
    low, high = np.percentile(picture, (0.5, 99.5))
    return {"cmap": "gray", "vmin": float(low), "vmax": float(max(high, low + 1))}


def _upright(path: Path) -> NDArray[Any]:
    """Read a file with columns towards left or back, rows towards feet or back, slices towards apex or head."""
    image = nib.load(path)
    array: NDArray[Any] = np.asanyarray(image.dataobj)
    affine = np.asarray(image.affine)
    oblique = abs(float(affine[2, 2])) < 0.8 * float(np.linalg.norm(affine[:3, 2]))
    wanted = np.array([-1, -1, 0]), np.array([0, 0, -1]), np.array([-1, 1, -0.5])
    if not oblique:
        wanted = np.array([-1, 0, 0]), np.array([0, -1, 0]), np.array([0, 0, 1])
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    score = [float(directions[:, axis] @ wanted[1]) for axis in (0, 1)]
    if abs(score[0]) > abs(score[1]):
        array, directions = np.swapaxes(array, 0, 1), directions[:, [1, 0, 2]]
    for axis in range(3):
        if float(directions[:, axis] @ wanted[axis]) < 0:
            array = np.flip(array, axis)
    return array


def _tissues() -> dict[str, Any]:
    return {"cmap": "nipy_spectral", "vmin": 0, "vmax": 31}


def _heart_panes(folder: Path, row: dict[str, Any]) -> list[_Pane]:
    place = folder / row["folder"] / row["External code"] / f"{row['External code']}_sa"
    image, label = _upright(Path(f"{place}.nii.gz")), _upright(Path(f"{place}_gt.nii.gz"))
    factors = _upright(folder / "factors" / f"{row['External code']}_sa_factors.nii.gz")
    ed, es = row["ED"], row["ES"]
    found = np.flatnonzero((label[..., ed] == 1).any(axis=(0, 1)))
    first, middle, last = int(found[0]), int(found[len(found) // 2]), int(found[-1])
    shown = [("above the base", max(first - 1, 0), ed), ("base, ED", first, ed), ("middle, ED", middle, ed)]
    shown += [("middle, ES", middle, es), ("apex, ED", last, ed)]
    where = np.argwhere(label[:, :, middle, ed] > 0)
    center, half = where.mean(axis=0).round().astype(int), int(0.85 * np.ptp(where, axis=0).max())
    near = tuple(slice(max(0, int(c) - half), int(c) + half) for c in center)
    name = f"{row['VendorName']} ({row['Vendor']}/{row['Centre']}), {row['Pathology']}"
    panes: list[_Pane] = [(name, image[:, :, middle, ed], _gray(image[:, :, middle, ed]))]
    for title, z, frame in shown:
        picture = image[:, :, z, frame][near]
        panes.append((title, picture, _gray(image[:, :, z, frame])))
    picture = image[:, :, middle, ed][near]
    panes.append(("labels", picture, {**_gray(picture), "overlay": label[:, :, middle, ed][near]}))
    panes.append(("true tissues", factors[:, :, middle, ed], _tissues()))
    return panes


def _cord_panes(folder: Path, row: dict[str, Any]) -> list[_Pane]:
    place, name = folder / row["folder"], row["subject"]
    image, factors = _upright(place / f"{name}-image.nii.gz"), _upright(folder / "factors" / f"{name}-factors.nii.gz")
    z = image.shape[2] // 2
    picture = image[:, :, z]
    reach = [max(8, n) for n in np.ptp(np.argwhere(np.isin(factors[:, :, z], (26, 27, 28))), axis=0)]
    center = [n // 2 for n in picture.shape]
    near = tuple(slice(max(0, c - r), c + r) for c, r in zip(center, reach, strict=True))
    panes: list[_Pane] = [
        (f"site {row['site']}, {row['scanner']}", picture, _gray(picture)),
        ("cord", picture[near], _gray(picture)),
    ]
    if row["labeled"]:
        masks = [_upright(place / f"{name}-mask-r{rater}.nii.gz")[:, :, z][near] for rater in (1, 2, 3, 4)]
        votes = sum((mask == 1).astype(np.uint8) for mask in masks)
        panes.append(("raters who see gray matter", np.asarray(votes), {"cmap": "magma", "vmin": 0, "vmax": 4}))
        panes.append(("rater 1", picture[near], {**_gray(picture), "overlay": masks[0]}))
    panes.append(("true tissues", factors[:, :, z][near], _tissues()))
    return panes
