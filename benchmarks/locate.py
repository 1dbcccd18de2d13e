# SPDX-License-Identifier: Apache-2.0
"""Organs off the centre: choose how they are found on source phantoms, judge it once on scans that chose nothing.

    python benchmarks/locate.py choose [-o benchmarks/results/locate_choice.md]
    python benchmarks/locate.py judge [--folder ../shared/data/real_mini] [-o benchmarks/results/locate.md]

``choose``: phantom cords of sites 2 and 3 and phantom hearts of vendors A and B, as they are and 25 mm off the middle
of the plane, because 50 mm are cut off one side. Compared are the window in the middle, plain tiling (MONAI's sliding
window over the plane, averaged), tiling of which the largest connected part is kept, and the search for the window with
several weights of the middle; the last column is the window in the place of the truth. ``judge``: the search as it is
in the package, on phantom cords of site 4 and phantom hearts of vendor D, and on real cords. Their files show 64 mm, so
they are moved by 25 mm in two ways: rolled round (what leaves at one side enters at the other), and with 50 mm of
background added at one side. All by the shipped models. Figures are the mean Dice over structures of a whole volume.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer
from real_scans import cord_cases
from scipy import ndimage

from vmfseg.model import Predictor
from vmfseg.model import locate as search
from vmfseg.model.grid import FieldOfView, Shift, undo
from vmfseg.phantom import make_phantom

Array = npt.NDArray[Any]
OFF = 25.0  # mm
#: Axis of the file and millimeters.
MOVES = ((0, 0.0), (0, OFF))
#: Weights of the middle: the standard deviation of a Gaussian in windows.
PULLS = (0.5, 1.0, np.inf)


def phantom_cords(folder: Path, sites: tuple[str, ...]) -> Iterator[tuple[str, str, Any, Array]]:
    """Yield model, name, image and label of the first subject of each site."""
    make_phantom(folder / "scgm", "scgm", subjects=8, workers=1)
    for site in sites:
        file = next(iter(sorted((folder / "scgm").rglob(f"train/{site}-*-image.nii.gz"))))
        label = nib.load(str(file).replace("-image", "-mask-r1"))
        yield "cords", file.name.removesuffix("-image.nii.gz"), nib.load(file), np.asarray(label.dataobj)


def phantom_hearts(folder: Path, vendors: str) -> Iterator[tuple[str, str, Any, Array]]:
    """Yield model, name, image and label at end-diastole of the first subject of each vendor."""
    make_phantom(folder / "mnms", "mnms", subjects=4, frames=2, workers=1)
    with next((folder / "mnms").glob("*.csv")).open(encoding="utf-8", newline="") as stream:
        codes = {row["Vendor"]: row["External code"] for row in csv.DictReader(stream)}
    for code, vendor in ((codes[vendor], vendor) for vendor in vendors):
        file = next((folder / "mnms").rglob(f"{code}_sa.nii.gz"))
        image, label = nib.load(file), nib.load(str(file).replace("_sa", "_sa_gt"))
        frame = int(np.asarray(label.dataobj).sum(axis=(0, 1, 2)).argmax())
        yield "hearts", f"{vendor} {code}", image.slicer[..., frame], np.asarray(label.dataobj)[..., frame]


def moved(voxels: Array, axis: int, pixels: int, how: str) -> Array:
    """Return voxels whose middle is elsewhere: with twice the pixels cut off or added at one side, or rolled round."""
    if pixels == 0:
        return voxels
    if how == "rolled":
        return np.roll(voxels, pixels, axis)
    if how == "padded":
        return np.pad(
            voxels, [(0, 0)] * axis + [(2 * pixels, 0) if pixels > 0 else (0, -2 * pixels)] + [(0, 0)] * (2 - axis)
        )
    return np.take(voxels, np.arange(voxels.shape[axis])[2 * pixels :] if pixels > 0 else
                   np.arange(voxels.shape[axis])[: 2 * pixels], axis)  # fmt: skip


def mean_dice(found: Array, truth: Array, predictor: Predictor) -> float:
    """Return the mean over the structures."""
    pairs = [(found == value, truth == value) for value in predictor.labels if value]
    return float(np.mean([2 * (a & b).sum() / max(1, a.sum() + b.sum()) for a, b in pairs]))


class Case:
    """One scan, moved: its views, and the Dice of a window anywhere in it.

    Args:
        predictor: of a model.
        image: a nibabel image.
        label: on its grid.
        move: axis and millimeters.
        how: see :func:`moved`.
    """

    def __init__(self, predictor: Predictor, image: Any, label: Array, move: tuple[int, float], how: str) -> None:
        pixels = round(move[1] / float(image.header.get_zooms()[move[0]]))
        voxels, self.label = (moved(part, move[0], pixels, how) for part in (np.asarray(image.dataobj), label))
        self.predictor = predictor
        self.image = MetaTensor(torch.from_numpy(np.ascontiguousarray(voxels, np.float32))[None], affine=image.affine)
        view = predictor.grid.field_of_view(self.image)
        assert view is not None
        self.view: FieldOfView = view
        self._known: dict[Shift, float] = {}

    def dice(self, shift: Shift) -> float:
        """Return the Dice with the window at a shift."""
        if shift not in self._known:
            placed = self.predictor.grid.place(self.image, shift)
            for batch in placed.slices.split(8):
                placed.add(self.predictor.backend(batch).logits, keep=False)
            found = placed.stored(placed.result(keep=False)[0][None])[0].numpy()
            self._known[shift] = mean_dice(found, self.label, self.predictor)
        return self._known[shift]

    def true_place(self) -> Shift:
        """Return the shift of the window to the middle of the truth."""
        native = self.predictor.grid.reorder({"image": MetaTensor(torch.from_numpy(self.label.astype(np.float32))[None],
                                                                  affine=self.image.affine)})["image"][0]  # fmt: skip
        where = np.argwhere(np.asarray(native) > 0)[:, :2]
        middle = (where.min(0) + where.max(0) + 1) / 2 / np.array(native.shape[:2])
        size = np.array(self.view.plane.shape[1:3])
        row, column = (
            np.clip(np.round(middle * size - size / 2), np.negative(self.view.reach), self.view.reach)
        ).astype(int)
        return int(row), int(column)

    def tiled(self) -> tuple[torch.Tensor, float, float]:
        """Return probabilities of plain tiling in the plane, their Dice, and that of the largest connected part."""
        run = lambda window: (  # noqa: E731
            torch.cat([self.predictor.backend(b).logits for b in self.view.as_network_input(window[0]).split(8)])
            .softmax(dim=1).permute(1, 2, 3, 0)[None]
        )  # fmt: skip
        plane = self.view.plane.as_tensor()[None]
        chances = SlidingWindowInferer((*self.view.window, -1), overlap=0.25, mode="gaussian")(plane, run)[0]
        native = undo(self.view._before, chances.contiguous(), self.view.plane)
        labels = undo(self.predictor.grid.reorder, native, self.predictor.grid.reorder({"image": self.image})["image"])
        found = labels.argmax(dim=0).numpy()
        parts, _ = ndimage.label(found, np.ones((3, 3, 3)))
        sizes = np.bincount(parts.ravel())
        sizes[0] = 0
        largest = np.where(parts == sizes.argmax(), found, 0)
        return chances, *(mean_dice(one, self.label, self.predictor) for one in (found, largest))


def choose(folder: Path, _: Path) -> Iterator[str]:
    """Yield a table of all candidates on source phantoms."""
    yield (
        "| scan | off, mm | middle | tiling | largest part | "
        + " | ".join(f"search, {p:g}" for p in PULLS)
        + " | truth |"
    )
    yield "|" + "---|" * (6 + len(PULLS))
    rows = []
    for model, name, image, label in [*phantom_cords(folder, ("site2", "site3")), *phantom_hearts(folder, "AB")]:
        predictor = Predictor.from_bundle(model, "cpu")
        for move in MOVES:
            case = Case(predictor, image, label, move, "cut")
            chances, plain, largest = case.tiled()
            depth = case.view.depth
            foreground = (1 - chances[0]).permute(2, 0, 1).numpy()[search.searched_slices(depth)]
            shifts = [search.window_shift(search.find_organ(foreground, case.view.window, p), case.view) for p in PULLS]
            row = [case.dice((0, 0)), plain, largest, *map(case.dice, shifts), case.dice(case.true_place())]
            rows.append((move[1] != 0, row))
            yield f"| {model} {name} | {move[1]:g} (axis {move[0]}) | " + " | ".join(f"{d:.3f}" for d in row) + " |"
    for off in (False, True):
        means = np.mean([row for moved_away, row in rows if moved_away == off], axis=0)
        yield f"| mean | {'25' if off else '0'} | " + " | ".join(f"{d:.3f}" for d in means) + " |"


def judge(folder: Path, real: Path) -> Iterator[str]:
    """Yield a table of the package as it is on scans that chose nothing."""
    yield "| scan | off, mm | window in the middle | as the package does | window at the truth | moved by, mm | share |"
    yield "|---|---|---|---|---|---|---|"
    scans = [(*scan, MOVES, "cut") for scan in phantom_cords(folder, ("site4",))]
    scans += [(*scan, MOVES, "cut") for scan in phantom_hearts(folder, "D")]
    for found in cord_cases(real) if (real / "spinal").is_dir() else ():
        image, label = nib.load(found["image"]), np.asarray(nib.load(found["label"]).dataobj)
        scans += [("cords", f"real {found['subject']}", image, label, MOVES, "rolled")]
        scans += [("cords", f"real {found['subject']}", image, label, MOVES[1:2], "padded")]
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for model, name, image, label, moves, how in scans:
        predictor = Predictor.from_bundle(model, "cpu")
        for move in moves:
            case = Case(predictor, image, label, move, how)
            if name.startswith("real"):  # a slice without a label was not drawn
                drawn = label.any(axis=(0, 1))
                case.image, case.label = case.image[..., drawn], case.label[..., drawn]
            sight = predictor.locate(case.image)
            row = [case.dice((0, 0)), case.dice(sight.shift), case.dice(case.true_place())]
            what = f"{move[1]:g}, {how}" if move[1] else "0"
            rows.setdefault((f"{model} {name.split()[0] if name.startswith('real') else 'phantom'}", what), []).append(
                row
            )
            steps = " ".join(f"{step:.0f}" for step in sight.moved_mm)
            cells = " | ".join(f"{dice:.3f}" for dice in row)
            yield f"| {model} {name} | {what} | {cells} | {steps} | {sight.looked_at:.2f} |"
    for (who, what), part in rows.items():
        yield (
            f"| mean of {len(part)}, {who} | {what} | "
            + " | ".join(f"{d:.3f}" for d in np.mean(part, axis=0))
            + " | | |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "judge"))
    parser.add_argument("--phantoms", type=Path, default=Path("runs/locate_phantoms"), help="where phantoms are made")
    default = os.environ.get("VMFSEG_REAL_DATA", "../shared/data/real_mini")
    parser.add_argument("--folder", type=Path, default=Path(default), help="real scans, for judge")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    lines = []
    for line in {"choose": choose, "judge": judge}[options.what](options.phantoms, options.folder):
        print(line, flush=True)
        lines.append(line)
    if options.output:
        head = (__doc__ or "").strip().splitlines()[0]
        options.output.write_text(
            f"# {head}\n\n`python benchmarks/locate.py {options.what}`\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
