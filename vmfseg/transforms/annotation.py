# SPDX-License-Identifier: Apache-2.0
"""Presence labels, and which classes were annotated in which slices of a volume.

A row of a datalist may say which slices were annotated (``slices``): ``"2-13"``, ``"2-5,7"``, a list of numbers, or an
object ``{"slices": "2-13", "2": "2-10"}`` in which ``slices`` is for all classes and another key for one class. Numbers
count slices from 0 along the slice axis as the file stores it. It may also say which classes were annotated at all
(``annotated``): ``1;2``, by number or name; ``,`` and blanks part them too. Of a row without label it may say what the
slices show (``present``): ``1;2`` in all of them, or an object by class with the slices that show it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform

from vmfseg.transforms.spatial import slice_axis
from vmfseg.utils import VmfError, did_you_mean

__all__ = [
    "AsClassesd",
    "MaskUnannotatedd",
    "annotated_classes",
    "annotated_slices",
    "mask_labels",
    "parse_annotated",
    "parse_presence",
    "parse_slices",
    "presence_labels",
    "presence_text",
    "present_slices",
    "slice_table",
    "slices_text",
]


def tile_presence(label: torch.Tensor, num_classes: int, tile: int) -> torch.Tensor:
    """Tell for every foreground class and every square tile whether at least one pixel of the tile has it.

    A stronger weak label than the paper's: not only what is in the slice, but roughly where.

    Shape: ``(B, 1, H, W)`` -> ``(B, N - 1, H // tile, W // tile)`` bool.

    Args:
        label: class indices.
        num_classes: N, background included.
        tile: side in pixels.

    Example:
        >>> tile_presence(torch.tensor([[[[0, 0, 2, 0], [0, 0, 0, 0]]]]), num_classes=3, tile=2).tolist()
        [[[[False, False]], [[False, True]]]]
    """
    if not 1 <= tile <= min(label.shape[-2:]):
        raise ValueError(f"tile must be from 1 to the size of the image {tuple(label.shape[-2:])}, got {tile}.")
    plain = label.as_tensor() if isinstance(label, MetaTensor) else label
    masks = torch.cat([plain == n for n in range(1, num_classes)], dim=1)
    return torch.nn.functional.max_pool2d(masks.float(), tile) > 0


def presence_labels(label: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Tell for every foreground class whether at least one pixel has it.

    The weak label of the paper (vMFWeak): *is there LV, myocardium, RV in this slice?* Compute it after cropping and
    augmentation, so that it says what the network can see.

    Shape: ``(1, H, W)`` -> ``(N - 1,)``; batched ``(B, 1, H, W)`` -> ``(B, N - 1)``; bool, background left out.

    Args:
        label: class indices in ``0 ... num_classes - 1``.
        num_classes: N, background included.

    Raises:
        ValueError: if the shape or ``num_classes`` is wrong, or a label is outside the classes.

    Example:
        >>> presence_labels(torch.tensor([[[0, 1], [3, 1]]]), num_classes=4).tolist()
        [True, False, True]
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}. Count the background too.")
    if label.ndim not in (3, 4) or label.shape[-3] != 1:
        raise ValueError(
            f"label must have shape (1, H, W) or (B, 1, H, W), got {tuple(label.shape)}. Use class indices."
        )
    plain = label.as_tensor() if isinstance(label, MetaTensor) else label
    flat = plain.reshape(-1, label.shape[-2] * label.shape[-1])
    found = [set(sample.unique().tolist()) for sample in flat] if plain.is_floating_point() else _values(flat)
    outside = sorted(set().union(*found) - set(range(num_classes)))
    if outside:
        raise ValueError(
            f"label must be in 0 ... {num_classes - 1}, got {outside}. Map the labels or raise num_classes."
        )
    present = torch.tensor([[c in values for c in range(1, num_classes)] for values in found], device=plain.device)
    return present[0] if label.ndim == 3 else present


def annotated_classes(annotated: Iterable[int] | None, num_classes: int) -> torch.Tensor:
    """Turn a row's ``annotated`` list into a mask over the classes; ``None`` means all of them.

    Losses and metrics ignore the classes with ``False``: a structure nobody drew is not background. The background
    (0) is always ``True``.

    Shape: -> ``(N,)`` bool.

    Raises:
        ValueError: if a class is outside ``0 ... num_classes - 1``.

    Example:
        >>> annotated_classes([1, 2], num_classes=4).tolist()
        [True, True, True, False]
    """
    mask = torch.full((num_classes,), annotated is None)
    mask[0] = True
    for value in annotated or ():
        if not 0 <= int(value) < num_classes:
            raise ValueError(f"annotated must hold classes 0 ... {num_classes - 1}, got {value}. Check the datalist.")
        mask[int(value)] = True
    return mask


def _values(flat: torch.Tensor) -> list[set[int]]:
    """Return the integers in each row; counting is many times faster than ``unique`` or one comparison a class."""
    if flat.dtype != torch.uint8 and flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 256:
        return [set(row.unique().tolist()) for row in flat]
    return [set(torch.bincount(row).nonzero()[:, 0].tolist()) for row in flat]


def parse_annotated(value: Any, labels: Mapping[int, str]) -> list[int] | None:
    """Return the numbers of the annotated classes, ``None`` where nothing is said and all are meant.

    Every table of the package reads its column ``annotated`` by this.

    Args:
        value: text with numbers or names of classes between ``;``, ``,`` or blanks, or a list of them.
        labels: class names by number.

    Raises:
        ValueError: for a class that does not exist.

    Example:
        >>> labels = {0: "background", 1: "LV", 2: "MYO", 3: "left atrium"}
        >>> [parse_annotated(value, labels) for value in ("1;2", "LV MYO", "[1, 2]", "left atrium", "")]
        [[1, 2], [1, 2], [1, 2], [3], None]
    """
    known = {str(number): number for number in labels}
    known |= {name.strip().lower(): number for number, name in labels.items()}
    if isinstance(value, str):
        text = value.strip().strip("[]").strip()
        parted = re.split(r"[;,]", text)
        words = parted if len(parted) > 1 or text.lower() in known else text.split()
    else:
        words = [str(word) for word in value or ()]
    words = [word.strip() for word in words if word.strip()]
    for word in words:
        if word.lower() not in known:
            names = ", ".join(f"{number} {name}" for number, name in labels.items() if number)
            hint = did_you_mean(word, [*labels.values(), *map(str, labels)]).strip()
            raise ValueError(f"annotated must list classes ({names}), got {word!r}. {hint or 'Write them as 1;2.'}")
    return [number for number in (known[word.lower()] for word in words) if number] if words else None


def parse_slices(
    value: Any, labels: Mapping[int, str], required: Collection[int] | None = None
) -> dict[int, list[int]]:
    """Return the numbers of the annotated slices for each foreground class.

    Args:
        value: text, list of numbers, or an object by class number, name or ``<name>_slices``; ``slices`` is for all.
        labels: class names by number.
        required: classes that must be covered; default all foreground classes.

    Raises:
        ValueError: if it cannot be read, names an unknown class, or leaves a required class out.

    Example:
        >>> parse_slices('{"slices": "2-4", "myo_slices": [3]}', {0: "background", 1: "LV", 2: "MYO"})
        {1: [2, 3, 4], 2: [3]}
    """
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"slices must be valid JSON, got {value[:60]!r}.") from error
    table = dict(value) if isinstance(value, Mapping) else {"slices": value}
    known = {"slices": 0} | {str(n): n for n in labels if n}
    for number, label in labels.items():
        if number:
            known |= {label.lower(): number, f"{label.lower()}_slices": number}
    found: dict[int, list[int]] = {}
    for key, entry in table.items():
        name = str(key).lower()
        if name not in known:
            hint = did_you_mean(name, known).strip() or f"Known: {', '.join(labels[n] for n in labels if n)}."
            raise ValueError(f"slices must name classes, got {key!r}. {hint}")
        found[known[name]] = _numbers(entry)
    everywhere = found.pop(0, None)
    wanted = [n for n in labels if n] if required is None else [n for n in required if n]
    missing = [labels[n] for n in wanted if n not in found]
    if everywhere is None and missing:
        raise ValueError(f"slices must cover every annotated class, got none for {', '.join(missing)}. Add them.")
    return {n: found.get(n, everywhere or []) for n in labels if n and (n in found or everywhere is not None)}


def parse_presence(value: Any, labels: Mapping[int, str]) -> dict[int, list[int] | None]:
    """Return by class the slices that show it, ``None`` where all of them do; classes that are left out are absent.

    Args:
        value: classes between ``;`` as in :func:`parse_annotated` (``background`` or ``0`` for an image that shows
            nothing), or an object by class with slices as in :func:`parse_slices`.
        labels: class names by number.

    Raises:
        ValueError: for a class that does not exist, slices that cannot be read, or a text that says nothing.

    Example:
        >>> labels = {0: "background", 1: "LV", 2: "MYO"}
        >>> [parse_presence(value, labels) for value in ("LV;MYO", {"LV": "2-4"}, "background")]
        [{1: None, 2: None}, {1: [2, 3, 4]}, {}]
    """
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"present must be valid JSON, got {value[:60]!r}.") from error
    if isinstance(value, Mapping):
        return dict(parse_slices(value, labels, required=()))
    found = parse_annotated(value, labels)
    if found is None:
        raise ValueError(f"present must name classes, got {value!r}. Write background for an image that shows none.")
    return dict.fromkeys(found)


def presence_text(present: Mapping[int, Iterable[int] | None]) -> str:
    """Return presence by class number as short text that :func:`parse_presence` reads.

    Example:
        >>> presence_text({1: None, 2: None}), presence_text({1: [2, 3]}), presence_text({})
        ('1;2', '{"1": "2-3"}', '0')
    """
    listed = {number: values for number, values in present.items() if values is not None}
    return slices_text(listed) if listed else ";".join(map(str, present)) or "0"


def slices_text(slices: Mapping[int, Iterable[int]]) -> str:
    """Return annotated slices by class number as short JSON text.

    Example:
        >>> slices_text({1: [2, 3, 4, 7], 2: []})
        '{"1": "2-4,7", "2": ""}'
    """
    short = {}
    for number, values in sorted(slices.items()):
        runs: list[list[int]] = []
        for value in sorted(set(values)):
            if runs and value == runs[-1][1] + 1:
                runs[-1][1] = value
            else:
                runs.append([value, value])
        short[str(number)] = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return json.dumps(short)


def slice_table(slices: Any, num_classes: int, count: int) -> torch.Tensor:
    """Return which class was annotated in which slice of a file.

    The background counts as annotated where any class was; a class that ``slices`` does not name was annotated nowhere.

    Shape: -> ``(N, S)`` bool.

    Args:
        slices: see the top of this module; classes by number.
        num_classes: N, background included.
        count: S, slices of the file.

    Raises:
        VmfError: VMF280 if a slice or a class does not exist.

    Example:
        >>> slice_table({"1": "0-1", "2": "1"}, num_classes=3, count=3).int().tolist()
        [[1, 1, 0], [1, 1, 0], [0, 1, 0]]
    """
    table = torch.zeros(num_classes, count, dtype=torch.bool)
    try:
        for number, values in parse_slices(slices, {n: str(n) for n in range(num_classes)}, required=()).items():
            if values and max(values) >= count:
                raise ValueError(f"slices must be in 0 ... {count - 1}, got {max(values)}. They count from 0.")
            table[number, values] = True
    except ValueError as error:
        raise VmfError(
            "VMF280",
            subject="slices",
            rule="slices must list slices of the file",
            found=str(error),
            fix="write them as 2-13, counted from 0 along the slice axis of the file",
        ) from error
    table[0] = table[1:].any(dim=0)
    return table


def annotated_slices(
    volume: torch.Tensor, num_classes: int, annotated: Iterable[int] | None = None, slices: Any = None
) -> torch.Tensor:
    """Return which class was annotated in which slice of a volume in slice space.

    Slices of the volume are found in the file by their position in space (the affine of a ``MetaTensor``), so that
    flips, crops and reordering of the slice axis are followed.

    Shape: volume ``(C, H, W, D)`` -> ``(N, D)`` bool.

    Args:
        volume: the volume; a plain tensor is taken in the order of its file.
        num_classes: N, background included.
        annotated: classes that were annotated at all, see :func:`annotated_classes`.
        slices: annotated slices of the file, see the top of this module; ``None`` means all.

    Example:
        >>> annotated_slices(torch.zeros(1, 4, 4, 3), 3, slices="1-2").int().tolist()
        [[0, 1, 1], [0, 1, 1], [0, 1, 1]]
    """
    mask = annotated_classes(annotated, num_classes)[:, None].repeat(1, volume.shape[-1])
    if slices is None or slices == "":
        return mask
    places, count = _file_slices(volume)
    table = slice_table(slices, num_classes, count)
    inside = (places >= 0) & (places < count)
    mask &= table[:, places.clamp(0, count - 1)] & inside
    mask[0] = mask[1:].any(dim=0)
    return mask


def present_slices(volume: torch.Tensor, num_classes: int, present: Any) -> torch.Tensor:
    """Return which foreground class each slice of a volume in slice space shows, by what its row says.

    Shape: volume ``(C, H, W, D)`` -> ``(D, N - 1)`` bool.

    Args:
        volume: as in :func:`annotated_slices`.
        num_classes: N, background included.
        present: of the row, classes by number (:func:`presence_text`).

    Example:
        >>> present_slices(torch.zeros(1, 4, 4, 3), 3, {"1": "1-2"}).int().tolist()
        [[0, 0], [1, 0], [1, 0]]
    """
    table = torch.zeros(num_classes, volume.shape[-1], dtype=torch.bool)
    for number, values in parse_presence(present, {n: str(n) for n in range(num_classes)}).items():
        table[number] = True if values is None else annotated_slices(volume, num_classes, None, values)[number]
    return table[1:].T


def mask_labels(labels: torch.Tensor, annotated: torch.Tensor) -> torch.Tensor:
    """Set labels to background where their class was not annotated.

    Shape: labels ``(..., D)`` of class numbers, annotated ``(N, D)`` bool -> labels.

    Example:
        >>> mask_labels(torch.tensor([[1, 1], [0, 1]]), torch.tensor([[True, True], [True, False]])).tolist()
        [[1, 0], [0, 0]]
    """
    place = torch.arange(labels.shape[-1]).expand(labels.shape)
    return torch.where(annotated[labels.long(), place], labels, torch.zeros_like(labels))


def _numbers(value: Any) -> list[int]:
    parts = re.split(r"[\s,;]+", value.strip()) if isinstance(value, str) else value
    numbers: list[int] = []
    for part in [parts] if isinstance(parts, int) else parts or ():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(part).strip())
        if match is None and str(part):
            raise ValueError(f"slices must be numbers such as 2-5,7, got {str(part)[:40]!r}.")
        if match is not None:
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return sorted(set(numbers))


def _file_slices(volume: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the slice of the file at each slice of the volume, and how many the file has."""
    depth = volume.shape[-1]
    if not _is_located(volume):
        return torch.arange(depth), depth
    meta, affine = volume.meta, volume.affine  # type: ignore[attr-defined]
    stored = np.asarray(meta["original_affine"], dtype=np.float64).reshape(4, 4)
    shape = [int(n) for n in np.asarray(meta["spatial_shape"]).ravel()[:3]]
    axis = slice_axis(stored, shape)
    center = [(n - 1) / 2 for n in volume.shape[1:3]]
    points = np.stack([[*center, d, 1.0] for d in range(depth)], axis=1)
    world = np.asarray(affine.cpu(), dtype=np.float64).reshape(4, 4) @ points
    return torch.from_numpy(np.rint(np.linalg.solve(stored, world)[axis]).astype(np.int64)), shape[axis]


def _is_located(volume: Any) -> bool:
    """Tell whether a volume knows its own grid and that of its file."""
    return isinstance(volume, MetaTensor) and {"original_affine", "spatial_shape"} <= set(volume.meta)


class MaskUnannotatedd(MapTransform):  # type: ignore[misc]
    """Set one-hot volumes to zero where a class was not annotated, so that metrics ignore it there.

    Reads ``annotated`` (classes) and ``slices`` of the row; does nothing where both are absent. Where slices lie is
    told by the affine of the first key, or of ``image``, that has the metadata of its file.

    Shape: ``(N, H, W, D)`` one-hot in slice space -> the same.

    Args:
        keys: prediction and label, all are masked alike.
        allow_missing_keys: don't raise if a key is missing.

    Example:
        >>> row = {"label": torch.ones(3, 2, 2, 4), "annotated": [1], "slices": "1-2"}
        >>> MaskUnannotatedd("label")(row)["label"][:, 0, 0].int().tolist()
        [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """

    def __init__(self, keys: KeysCollection = ("pred", "label"), allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Mask every key."""
        d = dict(data)
        classes, slices = d.get("annotated"), d.get("slices")
        if classes is None and slices in (None, ""):
            return d
        annotated = None if classes is None else [int(c) for c in classes]
        located = [d[key] for key in (*self.keys, "image") if key in d and _is_located(d[key])]
        for key in self.key_iterator(d):
            mask = annotated_slices((located or [d[key]])[0], d[key].shape[0], annotated, slices)
            d[key] = d[key] * mask[:, None, None].to(d[key].device, d[key].dtype)
        return d


class AsClassesd(MapTransform):  # type: ignore[misc]
    """Turn label values into ``uint8`` class indices, and refuse values that a cast would change in silence.

    Args:
        keys: the labels.
        num_classes: N; values from N on are refused. Without it every whole number from 0 to 255 passes.
        allow_missing_keys: don't raise if a key is missing.

    Raises:
        VmfError: VMF153 naming the file and the values.

    Example:
        >>> AsClassesd("label", num_classes=4)({"label": torch.tensor([[[0.0, 3.0]]])})["label"].dtype
        torch.uint8
        >>> AsClassesd("label", num_classes=4)({"label": torch.tensor([[[0.0, 7.0]]])})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF153: labels must be whole numbers from 0 to 3
          about  label
          found  7 (1 voxel)
          fix    give a label_map, correct the file, or raise num_classes
    """

    def __init__(self, keys: KeysCollection, num_classes: int | None = None, allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        if num_classes is not None and not 2 <= num_classes <= 256:
            raise ValueError(f"num_classes must be 2 to 256, got {num_classes}. Count the background too.")
        self.num_classes = num_classes

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Check and cast every key."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self._cast(d[key], str(key))
        return d

    def _cast(self, label: torch.Tensor, key: str) -> torch.Tensor:
        values = label.as_tensor() if isinstance(label, MetaTensor) else label
        last = (self.num_classes or 256) - 1
        classes = values.clamp(0, last).to(torch.uint8)
        wrong = values != classes  # true for NaN as well
        if wrong.any():
            kinds, counts = values[wrong].unique(return_counts=True)
            listed = [
                f"{v:g} ({n} voxel{'' if n == 1 else 's'})"
                for v, n in zip(kinds[:5].tolist(), counts[:5].tolist(), strict=True)
            ]
            raise VmfError(
                "VMF153",
                subject=str(getattr(label, "meta", {}).get("filename_or_obj", key)),
                rule=f"labels must be whole numbers from 0 to {last}",
                found=", ".join(listed) + (f" and {len(kinds) - 5} more values" if len(kinds) > 5 else ""),
                fix="give a label_map, correct the file, or raise num_classes",
            )
        return MetaTensor(classes).copy_meta_from(label) if isinstance(label, MetaTensor) else classes
