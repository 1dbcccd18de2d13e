# SPDX-License-Identifier: Apache-2.0
r"""In-plane orientation of slices: where their axes point in the patient, and which scans lie otherwise than the rest.

Slice space puts the slice axis last and lets every axis point to the right, anterior or superior
(:func:`vmfseg.transforms.spatial.slice_stack_axcodes`). For oblique scans that is the nearest such axis, so two sites
may still show the organ turned, mirrored or in another plane. With the unit directions :math:`F = [h, w, n]` of the
axes of one scan and :math:`F'` of another, the planes are tilted by :math:`\arccos |n^\top n'|`, and the nearest
orthogonal matrix :math:`Q` to :math:`[h', w']^\top [h, w]` says the rest: a turn, mirrored where :math:`\det Q < 0`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import nibabel as nib
import numpy as np
import numpy.typing as npt

from vmfseg.data.findings import Finding
from vmfseg.data.geometry import Affine
from vmfseg.transforms.spatial import slice_stack_axcodes

__all__ = [
    "MAX_TURN",
    "Pose",
    "class_direction",
    "orientation_findings",
    "pose_change",
    "slice_frame",
    "stack_affine",
    "stack_array",
]

Array = npt.NDArray[np.float32]

#: Turns in degrees that the augmentation of the bundles covers; more is worth a warning.
MAX_TURN = 30.0
_MAX_TILT = 45.0
_MAX_CONTENT_TURN = 60.0  # directions between structures differ between people too
_LONG = 1.25  # length by width from which a structure has a long axis
_AGREE = 0.8  # mean resultant length from which directions of a domain agree


@dataclass(frozen=True)
class Pose:
    """How one scan lies.

    Args:
        domain: scanner, vendor or site.
        subject: whose scan it is.
        frame: from :func:`slice_frame`.
        directions: unit vectors in the plane by two class numbers, from :func:`class_direction`.
    """

    domain: str
    subject: str
    frame: Affine
    directions: Mapping[tuple[int, int], tuple[float, float]]


def slice_frame(affine: Affine, shape: Sequence[int]) -> Affine:
    """Return the directions in the patient (right, anterior, superior) of the three axes of slice space, as columns.

    Example:
        >>> slice_frame(np.diag([-1.0, -1.0, 8.0, 1.0]), (64, 64, 10)).astype(int).tolist()
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    columns = stack_affine(affine, shape)[:3, :3]
    return np.asarray(columns / np.linalg.norm(columns, axis=0), dtype=np.float64)


def stack_affine(affine: Affine, shape: Sequence[int]) -> Affine:
    """Return the affine of a scan after its axes were put into the order of slice space.

    Example:
        >>> stack_affine(np.diag([9.0, 1.25, 2.5, 1.0]), (12, 64, 48))[:3, :3].tolist()
        [[0.0, 0.0, 9.0], [1.25, 0.0, 0.0], [0.0, 2.5, 0.0]]
    """
    change = nib.orientations.inv_ornt_aff(_to_stack(affine, shape), tuple(shape[:3]))
    return np.asarray(affine @ change, dtype=np.float64)


def stack_array(array: Array, affine: Affine) -> Array:
    """Return the voxels ``XYZ`` of a scan in the order of slice space, ``HWD``.

    Example:
        >>> stack_array(np.zeros((12, 64, 48), np.float32), np.diag([9.0, 1.25, 1.25, 1.0])).shape
        (64, 48, 12)
    """
    return np.asarray(nib.orientations.apply_orientation(array, _to_stack(affine, array.shape)), dtype=np.float32)


def pose_change(one: Affine, other: Affine) -> tuple[float, float, bool]:
    """Return how ``other`` lies against ``one``: tilt of the plane and turn within it in degrees, and if mirrored.

    The turn of a mirrored pair is that which is left after the second axis was mirrored.

    Example:
        >>> turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> pose_change(np.eye(3), turned)
        (0.0, 90.0, False)
        >>> pose_change(np.eye(3), np.diag([-1.0, 1.0, 1.0]))
        (0.0, 180.0, True)
    """
    tilt = math.degrees(math.acos(min(1.0, abs(float(one[:, 2] @ other[:, 2])))))
    left, _, right = np.linalg.svd(one[:, :2].T @ other[:, :2])
    nearest = left @ right
    mirrored = bool(np.linalg.det(nearest) < 0)
    turn = math.degrees(math.atan2(nearest[1, 0], nearest[0, 0]))
    return round(tilt, 6), round(abs(turn), 6), mirrored


def class_direction(label: Array, spacing: Sequence[float]) -> dict[tuple[int, int], tuple[float, float]]:
    r"""Return the unit vectors in the plane between the centers of each two classes of a label in slice space.

    They show how the organ lies where the header says nothing true. Classes that are nearly concentric (centers nearer
    than a quarter of the size of the smaller) have no direction. Where no pair has one, as in the spinal cord, the long
    axis of a structure that is not round stands under ``(class, class)``: an axis at the angle :math:`a` has no head
    and no tail, so it is the vector :math:`(\cos 2a, \sin 2a)`.

    Args:
        label: class numbers ``HWD``.
        spacing: in-plane spacing in mm, two numbers.

    Example:
        >>> flat = np.zeros((9, 9, 1), dtype=np.float32)
        >>> flat[2:7, 4] = 1
        >>> class_direction(flat, (1.0, 1.0)), class_direction(flat.swapaxes(0, 1), (1.0, 1.0))
        ({(1, 1): (1.0, 0.0)}, {(1, 1): (-1.0, 0.0)})
    """
    values = [int(value) for value in np.unique(label) if value]
    centers, radii = {}, {}
    for value in values:
        where = np.argwhere(label == value)
        slices = len(np.unique(where[:, 2]))
        centers[value] = where[:, :2].mean(axis=0) * np.asarray(spacing)
        radii[value] = math.sqrt(len(where) / slices * float(np.prod(spacing)) / math.pi)
    found = {}
    for position, one in enumerate(values):
        for other in values[position + 1 :]:
            step = centers[other] - centers[one]
            length = float(np.linalg.norm(step))
            if length > 0.5 * min(radii[one], radii[other]):
                found[one, other] = (float(step[0] / length), float(step[1] / length))
    return found or {(value, value): axis for value in values if (axis := _long_axis(label == value, spacing))}


def _long_axis(mask: npt.NDArray[np.bool_], spacing: Sequence[float]) -> tuple[float, float] | None:
    """Return the long axis of the slices of a structure as a vector of twice its angle; ``None`` for a round one."""
    planes = [np.argwhere(mask[..., k]) * np.asarray(spacing) for k in np.flatnonzero(mask.any(axis=(0, 1)))]
    steps = np.concatenate([plane - plane.mean(axis=0) for plane in planes])
    (xx, xy), (_, yy) = steps.T @ steps / len(steps) + np.diag(np.square(spacing)) / 12  # a pixel has a width itself
    difference, middle = math.hypot(xx - yy, 2 * xy), xx + yy
    if middle + difference < _LONG**2 * (middle - difference):
        return None
    return round(float(xx - yy) / difference, 6), round(float(2 * xy) / difference, 6)


def orientation_findings(poses: Sequence[Pose], labels: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a warning for each domain whose scans lie otherwise than most: by their headers, else by their labels.

    VMF243: another plane, mirrored, or turned by more than :data:`MAX_TURN`, against the scan that lies most like all.
    VMF244: the headers agree, but the structures lie in another direction from each other.

    Args:
        poses: of all scans.
        labels: class names by number.
    """
    if not poses:
        return
    flat = np.stack([pose.frame.ravel() for pose in poses])
    usual = poses[int(np.argmax(flat @ flat.sum(axis=0)))]
    odd: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pose in poses:
        tilt, turn, mirrored = pose_change(usual.frame, pose.frame)
        if tilt > _MAX_TILT:
            odd[pose.domain]["in another plane than"].append(pose.subject)
        elif mirrored:
            odd[pose.domain]["mirrored against"].append(pose.subject)
        elif turn > MAX_TURN:
            odd[pose.domain][f"turned by about {round(turn / 5) * 5} degrees against"].append(pose.subject)
    counts: dict[str, int] = defaultdict(int)
    for pose in poses:
        counts[pose.domain] += 1
    for domain in sorted(odd):
        for how, subjects in sorted(odd[domain].items()):
            some = ", ".join(subjects[:3]) + (", ..." if len(subjects) > 3 else "")
            text = (
                f"by the headers, the slices of {len(subjects)} of {counts[domain]} scans ({some}) lie {how} those of "
                f"{usual.domain} ({usual.subject}): look at the contact sheet of vmfseg plan"
            )
            yield Finding("warning", "VMF243", domain, text)
    yield from _content_findings([pose for pose in poses if pose.domain not in odd], labels)


def _content_findings(poses: Sequence[Pose], labels: Mapping[int, str]) -> Iterator[Finding]:
    vectors: dict[tuple[int, int], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for pose in poses:
        for pair, direction in pose.directions.items():
            vectors[pair][pose.domain].append(direction)
    told: set[str] = set()
    for (one, other), domains in sorted(vectors.items()):
        means = {domain: np.mean(found, axis=0) for domain, found in domains.items()}
        clear = {domain: mean for domain, mean in means.items() if np.linalg.norm(mean) >= _AGREE}
        if len(clear) < 2:
            continue
        total = np.sum([mean / np.linalg.norm(mean) for mean in clear.values()], axis=0)
        usual = max(sorted(clear), key=lambda domain: float(clear[domain] @ total))
        for domain, mean in sorted(clear.items()):
            turn = _angle(clear[usual], mean) / (2 if one == other else 1)
            if turn > _MAX_CONTENT_TURN and domain not in told:
                told.add(domain)
                what = f"{labels[other]} lies in another direction from {labels[one]} than in"
                if one == other:
                    what = f"the long axis of {labels[one]} is turned against"
                text = (
                    f"{what} {usual}, by {turn:.0f} degrees, though the headers agree: "
                    "are these scans turned or mirrored, or their headers wrong?"
                )
                yield Finding("warning", "VMF244", domain, text)


def _angle(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    cosine = float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def _to_stack(affine: Affine, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    codes = nib.orientations.axcodes2ornt(tuple(slice_stack_axcodes(affine, tuple(shape[:3]))))
    return np.asarray(nib.orientations.ornt_transform(nib.orientations.io_orientation(affine), codes))
