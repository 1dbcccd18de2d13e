# SPDX-License-Identifier: Apache-2.0
"""Parts of a study: a method, one run of the grid, and what a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Cell", "Method", "Resources"]


@dataclass(frozen=True)
class Method:
    """A row of the tables: a bundle and the keys by which it differs from it.

    Attributes:
        name: in the tables.
        bundle: name of a bundle of the package, or a folder.
        values: overrides by config id.
    """

    name: str
    bundle: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """What one run needs; engines bound and ask by it.

    Attributes:
        cpus: cores, and threads of torch.
        gpus: of them.
        memory_gb: main memory.
        hours: time limit on a cluster; a run that meets it goes on in another job.
    """

    cpus: int = 1
    gpus: float = 0
    memory_gb: float = 3.0
    hours: float = 24.0


@dataclass(frozen=True)
class Cell:
    """One run of the grid: a method on a target with a fraction of the labels, a seed and further changes."""

    method: str
    target: str
    fraction: float
    seed: int
    protocol: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The cell in words, for lines of progress."""
        more = "".join(f", {key} {value}" for key, value in self.changes)
        return f"{self.method}, target {self.target}, {self.fraction:.4g} labelled, seed {self.seed}{more}" + (
            "" if self.protocol == "clean" else f", protocol {self.protocol}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "changes": dict(self.changes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cell:
        """Build a cell from :meth:`as_dict`."""
        return cls(**{**values, "changes": tuple(dict(values["changes"]).items())})
