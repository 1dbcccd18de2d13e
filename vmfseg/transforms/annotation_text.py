# SPDX-License-Identifier: Apache-2.0
"""How tables say which classes were annotated, in which slices, and what slices show: texts to numbers and back.

A row of a datalist may say which slices were annotated (``slices``): ``"2-13"``, ``"2-5,7"``, a list of numbers, or an
object ``{"slices": "2-13", "2": "2-10"}`` in which ``slices`` is for all classes and another key for one class. Numbers
count slices from 0 along the slice axis as the file stores it. It may also say which classes were annotated at all
(``annotated``): ``1;2``, by number or name; ``,`` and blanks part them too. Of a row without label it may say what the
slices show (``present``): ``1;2`` in all of them, or an object by class with the slices that show it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vmfseg.utils import did_you_mean

__all__ = ["parse_annotated", "parse_presence", "parse_slices", "presence_text", "slices_text"]


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
    value = _from_json("slices", value)
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
    value = _from_json("present", value)
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


def _numbers(value: Any) -> list[int]:
    parts = re.split(r"[\s,;]+", value.strip()) if isinstance(value, str) else value
    spans = []
    for part in [parts] if isinstance(parts, int) else parts or ():
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(part).strip())  # a cell must not fill the memory
        if match is None and str(part):
            raise ValueError(f"slices must be numbers such as 2-5,7, got {str(part)[:40]!r}.")
        if match is not None:
            spans.append((int(match[1]), int(match[2] or match[1])))
    numbers: list[int] = []
    for first, last in sorted(spans):
        numbers += range(max(first, numbers[-1] + 1) if numbers else first, last + 1)
    return numbers


def _from_json(name: str, value: Any) -> Any:
    """Return what a text that looks like JSON says; anything else as it is."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be valid JSON, got {value[:60]!r}.") from error
