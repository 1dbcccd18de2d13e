# SPDX-License-Identifier: Apache-2.0
"""Read the file of a study: a grid of methods, targets, label fractions, seeds and overrides, as plain values.

.. code-block:: yaml

    title: Phantom hearts, one vendor left out
    data: mnms                  # which bundles: <method>_mnms
    methods: [unet, vmfnet]     # or names with changes: {slow: {bundle: vmfnet_mnms, set: {learning_rate: 0.0001}}}
    targets: [A, B, C, D]
    fractions: [0.25]
    seeds: [0, 1]
    protocols: [clean]
    grid: {batch_size: [4, 8]}  # further keys of the bundles' train.json, each with its values
    set: {max_iterations: 600}  # keys of all runs; null in a method's own set: not for this method
    baseline: unet              # what the others are compared with

Nothing in the file is executed: expressions (``$``), macros (``%``) and classes that are not on the allow-list are
refused before anything starts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vmfseg.bundle.config import read_config
from vmfseg.metrics.reports import PROTOCOLS
from vmfseg.studies.study_parts import Cell, Method, Resources
from vmfseg.utils import VmfError, did_you_mean
from vmfseg.utils.io import StrPath

__all__ = ["Study"]

_FAMILIES = ("mnms", "scgm")
_KEYS = (
    "baseline", "data", "fractions", "grid", "methods", "note", "paper", "protocols", "published", "resources", "seeds",
    "set", "table", "targets", "title",
)  # fmt: skip
_AXES = {
    "target_domain": "targets",
    "labeled_fraction": "fractions",
    "seed": "seeds",
    "protocol": "protocols",
    "dataset": "table",
    "dataset_dir": "--dataset_dir",
    "output_dir": "-o",
    "ckpt_dir": "-o",
    "resume": "study run, which goes on by itself",
    "fresh": "another -o",
}
_MAX_CELLS = 100_000


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Attributes:
        name: of the file; the output folder belongs to it.
        title: of the tables.
        note: a sentence below it, for instance on the budget.
        data: family of bundles, ``"mnms"`` or ``"scgm"``.
        methods: the rows.
        targets: domains, each left out in turn.
        fractions: of labelled subjects.
        seeds: of the runs.
        protocols: ``"clean"``, ``"paper"`` or both.
        grid: values by config id, combined with all others.
        values: overrides of all runs.
        paper: lay ``configs/paper.json`` of the bundles over their ``train.json``.
        baseline: method that the others are compared with.
        published: data set whose published figures stand beside the cells, or empty.
        table: of own scans: ``labels`` and ``rows`` as :class:`vmfseg.data.FolderDataset` takes them, or empty.
        resources: of a run.
        content: of the file.

    Example:
        >>> study = Study.parse({"data": "mnms", "methods": ["vmfnet"], "targets": ["A"], "seeds": [0, 1]}, "demo")
        >>> [cell.label for cell in study.cells()]
        ['vmfnet, target A, 1 labelled, seed 0', 'vmfnet, target A, 1 labelled, seed 1']
        >>> Study.parse({"data": "mnms", "method": ["vmfnet"]}, "demo")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF370: the study has no such key
          about  demo: method
          fix    Did you mean 'methods'?
    """

    name: str
    title: str
    note: str
    data: str
    methods: tuple[Method, ...]
    targets: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    protocols: tuple[str, ...]
    grid: dict[str, list[Any]]
    values: dict[str, Any]
    paper: bool
    baseline: str
    published: str
    table: dict[str, Any]
    resources: Resources
    content: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: StrPath, methods: Sequence[str] = ()) -> Study:
        """Read a study file, YAML or JSON.

        Args:
            path: the file.
            methods: names of the methods that are wanted; all by default.

        Raises:
            VmfError: VMF370 for what cannot be used, VMF310 and VMF416 for a file that cannot be read.
        """
        study = cls.parse(read_config(Path(path).expanduser()), Path(path).stem)
        for name in methods:
            _choice(study.name, "--method", name, [method.name for method in study.methods])
        chosen = tuple(method for method in study.methods if not methods or method.name in methods)
        base = study.baseline if study.baseline in [method.name for method in chosen] else chosen[0].name
        entries = {method.name: {"bundle": method.bundle, "set": method.values} for method in chosen}
        content = {**study.content, "methods": entries, "baseline": base}
        return replace(study, methods=chosen, baseline=base, content=content)

    @classmethod
    def parse(cls, content: Mapping[str, Any], name: str) -> Study:
        """Check what a study file holds. See :meth:`load`."""
        _known(name, content, _KEYS)
        data = _choice(name, "data", content.get("data"), _FAMILIES)
        values = _settings(name, "set", content.get("set") or {})
        grid = _settings(name, "grid", content.get("grid") or {})
        for key, options in grid.items():
            _check(name, f"grid, {key}", isinstance(options, list) and bool(options), options, "give a list of values")
            _check(name, f"grid, {key}", key not in values, key, "leave it out of set")
        methods = _methods(name, content.get("methods"), data)
        baseline = content.get("baseline") or methods[0].name
        _choice(name, "baseline", baseline, [method.name for method in methods])
        targets = [str(target) for target in _list(name, "targets", content.get("targets"), str | int)]
        fractions = _list(name, "fractions", content.get("fractions", [1.0]), int | float)
        for fraction in fractions:
            _check(name, "fractions", 0 < fraction <= 1, fraction, "write 5 % as 0.05")
        seeds = _list(name, "seeds", content.get("seeds", [0]), int)
        _check(name, "seeds", all(seed >= 0 for seed in seeds), seeds, "whole numbers from 0")
        protocols = _list(name, "protocols", content.get("protocols", ["clean"]), str)
        for protocol in protocols:
            _choice(name, "protocols", protocol, PROTOCOLS)
        published = str(content.get("published") or "")
        if published:
            _choice(name, "published", published, _FAMILIES)
        return cls(
            name=name,
            title=str(content.get("title") or name),
            note=" ".join(str(content.get("note") or "").split()),
            data=data,
            methods=methods,
            targets=tuple(targets),
            fractions=tuple(float(fraction) for fraction in fractions),
            seeds=tuple(seeds),
            protocols=tuple(protocols),
            grid=grid,
            values=values,
            paper=content.get("paper") is True,
            baseline=baseline,
            published=published,
            table=_table(name, content.get("table")),
            resources=_resources(name, content.get("resources")),
            content=dict(content),
        )

    def cells(self) -> list[Cell]:
        """Return the runs in order: seed by seed, so that an unfinished study has whole tables of few seeds.

        Raises:
            VmfError: VMF370 if there are more than 100 000.
        """
        choices = [[(key, value) for value in options] for key, options in self.grid.items()]
        axes = (self.protocols, self.seeds, self.fractions, self.targets, self.methods)
        count = math.prod(len(axis) for axis in [*axes, *choices])
        _check(self.name, "grid", count <= _MAX_CELLS, f"{count} runs", f"at most {_MAX_CELLS}")
        return [
            Cell(method.name, target, fraction, seed, protocol, changes)
            for protocol, seed, fraction, target, method in itertools.product(*axes)
            for changes in itertools.product(*choices)
            if dict(changes).get("unread_domain") != target  # a domain that is not read is not scored
        ]

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        return next(method for method in self.methods if method.name == name)


def _methods(name: str, value: Any, data: str) -> tuple[Method, ...]:
    entries = dict.fromkeys(map(str, value)) if isinstance(value, list) else value
    _check(name, "methods", isinstance(entries, Mapping) and bool(entries), value, "name at least one method")
    found = []
    for method, entry in entries.items():
        entry = entry or {}
        place = f"methods, {method}"
        _check(name, place, isinstance(entry, Mapping), entry, "a method has the keys bundle and set")
        _known(f"{name}: {place}", entry, ("bundle", "set"))
        bundle = str(entry.get("bundle") or f"{method}_{data}")
        found.append(Method(str(method), bundle, _settings(name, f"{place}, set", entry.get("set") or {})))
    return tuple(found)


def _settings(name: str, place: str, value: Any) -> dict[str, Any]:
    _check(name, place, isinstance(value, Mapping), value, "give values by key of train.json")
    for key in value:
        _check(name, place, key not in _AXES, key, f"use {_AXES.get(key)} instead")
    return dict(value)


def _table(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    good = (
        isinstance(value, Mapping) and isinstance(value.get("rows"), list) and isinstance(value.get("labels"), Mapping)
    )
    _check(name, "table", good, value, "give labels (class names by number) and rows (image, label, domain, subject)")
    _known(f"{name}: table", value, ("labels", "rows"))
    return dict(value)


def _resources(name: str, value: Any) -> Resources:
    value = value or {}
    _check(name, "resources", isinstance(value, Mapping), value, "give cpus, gpus, memory_gb, hours")
    _known(f"{name}: resources", value, tuple(asdict(Resources())))
    for key, number in value.items():
        good = isinstance(number, int | float) and not isinstance(number, bool) and number >= 0
        _check(name, f"resources, {key}", good and (number > 0 or key == "gpus"), number, "give a positive number")
    return Resources(**{**value, "cpus": math.ceil(value.get("cpus", 1))})


def _list(name: str, key: str, value: Any, kind: Any) -> list[Any]:
    good = isinstance(value, list) and bool(value) and all(isinstance(v, kind) and v is not True for v in value)
    _check(name, key, good, value, "give a list of at least one value")
    _check(name, key, len(set(value)) == len(value), value, "name each one once")
    return list(value)


def _choice(name: str, key: str, value: Any, options: Sequence[str]) -> str:
    if value not in options:
        fix = did_you_mean(str(value), options).strip() or f"use one of {', '.join(options)}"
        raise _refusal(f"{name}: {key}", "the value is none of the choices", str(value), fix)
    return str(value)


def _known(place: str, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in content:
        if key not in keys:
            fix = did_you_mean(key, keys).strip() or f"known are {', '.join(keys)}"
            raise _refusal(f"{place}: {key}", "the study has no such key", "", fix)


def _check(name: str, place: str, good: bool, found: Any, fix: str) -> None:
    if not good:
        raise _refusal(f"{name}: {place}", "the value cannot be used", str(found), fix)


def _refusal(subject: str, rule: str, found: str, fix: str) -> VmfError:
    return VmfError("VMF370", subject=subject, rule=rule, found=found, fix=fix)
