# SPDX-License-Identifier: Apache-2.0
"""Splitting and pairing the images of a batch by their domain, reproducibly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vmfseg.utils.seeds import numpy_rng

__all__ = ["domains_of", "from_another_domain", "meta_split", "take"]


def domains_of(batch: Mapping[str, Any]) -> list[str]:
    """Return the domain of each image of a batch.

    Raises:
        ValueError: the batch does not say which domains its images come from.
    """
    domains = batch.get("domain")
    if domains is None or len(domains) != len(batch["image"]):
        found = "none" if domains is None else f"{len(domains)} for {len(batch['image'])} images"
        raise ValueError(f"batch must have one domain for each image, got {found}. Use rows with the key domain.")
    return [str(domain) for domain in domains]


def meta_split(domains: Sequence[str], *key: object) -> tuple[list[int], list[int]]:
    """Choose one of the domains at random as meta-test domain and return the images of the others, and its images.

    With a single domain there is nothing to test on: the second list is empty.

    Args:
        domains: of each image.
        key: what the choice depends on, for instance run seed and iteration.

    Example:
        >>> train, test = meta_split(["A", "B", "A", "C"], 0, 7)
        >>> sorted(train + test), len({*"ABC"})
        ([0, 1, 2, 3], 3)
    """
    names = sorted(set(domains))
    if len(names) < 2:
        return list(range(len(domains))), []
    chosen = names[int(numpy_rng(*key, "meta-test").integers(len(names)))]
    return [i for i, d in enumerate(domains) if d != chosen], [i for i, d in enumerate(domains) if d == chosen]


def from_another_domain(domains: Sequence[str], count: int, *key: object) -> list[int | None]:
    """For each of the first ``count`` images, choose an image of another domain at random; ``None`` if there is none.

    Example:
        >>> from_another_domain(["A", "B", "A"], 2, 0)[0]
        1
        >>> from_another_domain(["A", "A"], 1, 0)
        [None]
    """
    rng = numpy_rng(*key, "another domain")
    chosen: list[int | None] = []
    for own in domains[:count]:
        others = [i for i, domain in enumerate(domains) if domain != own]
        chosen.append(others[int(rng.integers(len(others)))] if others else None)
    return chosen


def take(batch: Mapping[str, Any], index: Sequence[int]) -> dict[str, Any]:
    """Return the part of a batch with the images ``index``; what covers the first images only, for those among them.

    Entries of which nothing is left, such as the label of unlabelled images, are left out.

    Example:
        >>> batch = {"image": torch.arange(3), "label": torch.arange(2), "domain": ["A", "B", "C"]}
        >>> take(batch, [1, 2])
        {'image': tensor([1, 2]), 'label': tensor([1]), 'domain': ['B', 'C']}
        >>> sorted(take(batch, [2]))
        ['domain', 'image']
    """
    size = len(batch["image"])
    part: dict[str, Any] = {}
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor | list | tuple) or (isinstance(value, torch.Tensor) and not value.ndim):
            part[name] = value
            continue
        if len(value) > size:
            raise ValueError(f"batch[{name!r}] must not be longer than the {size} images, got {len(value)}.")
        kept = [i for i in sorted(index) if i < len(value)]
        if kept:
            part[name] = value[kept] if isinstance(value, torch.Tensor) else [value[i] for i in kept]
    return part
