# SPDX-License-Identifier: Apache-2.0
"""Pictures of phantoms: a row per scanner read back from files, and endless slices, beside real ones if there are any.

``python -m vmfseg.phantom hearts slices.png [--real FOLDER]`` draws the latter.
"""

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

from vmfseg.phantom.endless import PhantomSlices
from vmfseg.phantom.make import PHANTOM_FILE
from vmfseg.phantom.scanner import hat_matrix, normalize
from vmfseg.utils import VmfError, atomic_path, numpy_rng, read_json

__all__ = ["save_montage", "save_slice_montage"]

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
        VmfError: VMF343 if ``root`` holds no phantom, VMF503 if ``png`` exists and ``overwrite`` is false.
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
            "VMF343", subject=str(folder / PHANTOM_FILE), rule="the phantom has no labeled subject", fix="make it anew"
        )
    panes = [(_heart_panes if hearts else _cord_panes)(folder, chosen[key]) for key in sorted(chosen)]
    _draw(panes, Path(png), overwrite)
    return Path(png)


def save_slice_montage(
    kind: str,
    png: str | os.PathLike[str],
    *,
    real: str | os.PathLike[str] | None = None,
    rows: int = 3,
    columns: int = 8,
    seed: int = 0,
    labels: bool = False,
    overwrite: bool = True,
) -> Path:
    """Draw slices of :class:`vmfseg.phantom.PhantomSlices`, and between their rows slices of real scans.

    Pictures that show real scans belong to whoever may see the scans; keep them out of public places.

    Args:
        kind: ``"hearts"`` or ``"cords"``.
        png: the picture to write.
        real: folder of NIfTI scans; files with ``label`` in their name are left out.
        rows: rows of phantom slices.
        columns: slices in a row.
        seed: which slices.
        labels: whether the phantom's labels are laid over its slices.
        overwrite: whether an existing picture may be replaced.

    Raises:
        ValueError: if ``real`` holds no scan.
        VmfError: VMF503 if ``png`` exists and ``overwrite`` is false.
    """
    slices = PhantomSlices(kind, seed=seed, tight=0.0)
    scans = _real_slices(Path(real), rows * columns, slices, seed) if real is not None else []
    panes: list[list[_Pane]] = []
    for row in range(rows):
        numbers = range(row * columns, (row + 1) * columns)
        if scans:
            panes.append([("real", scans[n], {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}) for n in numbers])
        line: list[_Pane] = []
        for n in numbers:
            item = slices[n]
            image, label = (item[key][0].numpy()[::-1, ::-1] for key in ("image", "label"))
            style: dict[str, Any] = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
            line.append((item["domain"], image, {**style, "overlay": label} if labels else style))
        panes.append(line)
    _draw(panes, Path(png), overwrite)
    return Path(png)


def _real_slices(folder: Path, count: int, like: PhantomSlices, seed: int) -> list[NDArray[Any]]:
    """Random slices of the scans in ``folder``, upright, at the phantom's spacing and size."""
    files = sorted(path for path in folder.rglob("*.nii*") if "label" not in path.name)
    if not files:
        raise ValueError(f"real must be a folder with NIfTI scans, got {folder}. Name another folder or leave it out.")
    rng = numpy_rng(seed, "montage")
    found = []
    for path in rng.choice(np.array(files, dtype=object), count):
        array, zooms = _upright(path), nib.load(path).header.get_zooms()
        while array.ndim > 3:
            array = array[..., int(rng.integers(array.shape[-1]))]
        picture = np.asarray(array[:, :, int(rng.integers(array.shape[2]))], dtype=np.float32)
        weights = []
        for n, size in zip(picture.shape, like.size, strict=True):
            places = (np.arange(n) - (n - 1) / 2) * float(min(zooms[:3]))
            target = (np.arange(size) - (size - 1) / 2) * like.pixdim
            inside = (np.abs(target) <= np.abs(places).max())[:, None]
            weights.append(hat_matrix(target, places) * inside)
        found.append(weights[0] @ normalize(picture) @ weights[1].T)
    return found


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
