# SPDX-License-Identifier: Apache-2.0
r"""The plan of a study: its runs, each a bundle command with overrides and a folder named by content.

The name of a run's folder ends in the first digits of

.. math:: h = \mathrm{SHA256}(\text{config}, \text{data}, \text{versions}),

where *config* is the bundle's ``train.json`` with all overrides in it, less the keys that say where files lie and how
many processes read them, *data* the checksums of all scans (or the phantom's generator), and *versions* those of the
libraries that decide figures. What changes a result therefore changes the folder, and an old result is never taken for
a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vmfseg.bundle.compile import bundle_names, compile_bundle, write_files
from vmfseg.bundle.config import entries, normalize_key, overlay, read_config
from vmfseg.bundle.keys import check_keys
from vmfseg.bundle.trust import not_plain, require_trusted
from vmfseg.model.weights import find_weights
from vmfseg.studies.source_data import SourceData
from vmfseg.studies.study_file import Study
from vmfseg.studies.study_parts import Cell, Method
from vmfseg.utils import VmfError, did_you_mean, sha256_file, write_json
from vmfseg.utils.io import sha256_bytes
from vmfseg.utils.manifest import library_versions, nnunet_versions

__all__ = ["Plan", "Run"]

_PLACES = ("bundle_root", "cache_dir", "ckpt_dir", "dataset_dir", "fresh", "num_workers", "output_dir", "resume")
_DIGITS = 12
_NNUNET = "vmfseg.methods.nnunet"  # whose results another package decides too


@dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        cell: what it is in the grid.
        bundle: name of a bundle of the package, or the folder of another.
        overrides: values by config id.
        paper: whether ``configs/paper.json`` is laid over.
        decides: what decides its result.
        name: of its folder.
    """

    cell: Cell
    bundle: str
    overrides: dict[str, Any]
    paper: bool
    decides: dict[str, Any]
    name: str


class Plan:
    """The runs of a study on its data, checked before anything starts.

    Args:
        study: the grid.
        data: what :func:`vmfseg.studies.source_data.find_data` found.
        trust: use bundles that are not the package's.

    Raises:
        VmfError: VMF371 a method without a bundle, VMF110 a key that a bundle's config does not have, VMF419 a value
            that is not plain, VMF410 and VMF411 a bundle that is not the package's.
    """

    def __init__(self, study: Study, data: SourceData, trust: bool = False) -> None:
        self.study, self.data, self.trust = study, data, trust
        self.versions = library_versions()
        self.configs = {method.name: self._config(method) for method in study.methods}
        self._texts = {
            name: {key: json.dumps(value, sort_keys=True) for key, value in config.items() if key not in _PLACES}
            for name, config in self.configs.items()
        }

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, in the order in which they start; cells that amount to the same run have it in common."""
        return [self._run(cell) for cell in self.study.cells()]

    def prepare(self, run: Run, out: Path) -> Path:
        """Write what a run needs into its folder and return it; what is there already stays."""
        folder = out / "runs" / run.name
        note = {
            "format": "vmfseg-run-1",
            "cell": run.cell.as_dict(),
            "bundle": str(self._bundle_folder(run.bundle, out)),
            "paper": run.paper,
            "trust": self.trust,
            "decides": run.decides,
        }
        where = out / "datalist.json" if self.data.datalist is not None else self.data.root
        places = {"dataset": self.data.dataset, "dataset_dir": str(where)}
        write_json(folder / "overrides.json", {**run.overrides, **places})
        write_json(folder / "run.json", note)
        return folder

    def write_shared(self, out: Path) -> None:
        """Write what all runs have in common: the package's bundles, and the list of scans of the study file."""
        for bundle in {method.bundle for method in self.study.methods}:
            if bundle in bundle_names():
                write_files(compile_bundle(bundle), out / "bundles" / bundle)
        if self.data.datalist is not None:
            self.data.datalist.save(out / "datalist.json")

    def _bundle_folder(self, bundle: str, out: Path) -> Path:
        return out / "bundles" / bundle if bundle in bundle_names() else Path(bundle).expanduser().absolute()

    def _values(self, method: Method) -> dict[str, Any]:
        """Return the overrides of a method: those of all, less those that it sets to null, and its own."""
        values = {**self.study.values, **method.values}
        return {key: value for key, value in values.items() if value is not None}

    def _config(self, method: Method) -> dict[str, Any]:
        """Return the config of a method with its changes, checked with the keys of the grid."""
        files = ["train.json", *(["paper.json"] if self.study.paper else [])]
        layers = [self._layer(method, file) for file in files]
        config = overlay(*layers)
        values = self._values(method)
        tried = {**values, **{key: options[0] for key, options in self.study.grid.items()}}
        place = f"{self.study.name}: methods, {method.name}"
        known = {name for name, _ in entries(config)}
        for where, found in not_plain({**tried, **self.study.grid}, known):
            raise VmfError(
                "VMF419",
                subject=f"{place}: {where}",
                rule="a study may hold plain values and classes of the allow-list only",
                found=found,
                fix="write the value itself",
            )
        axes = dict.fromkeys(("target_domain", "labeled_fraction", "seed", "protocol", "dataset"), "")
        try:
            check_keys(config, {**tried, **axes})
        except VmfError as error:
            raise VmfError(**{**error.as_dict(), "subject": f"{place}: {error.subject}"}) from error
        return overlay(config, _sections_first(values))

    def _layer(self, method: Method, file: str) -> dict[str, Any]:
        if method.bundle in bundle_names():
            return dict(json.loads(compile_bundle(method.bundle)[f"configs/{file}"]))
        folder = Path(method.bundle).expanduser()
        if not (folder / "configs" / file).is_file():
            raise VmfError(
                "VMF371",
                subject=f"{self.study.name}: methods, {method.name}",
                rule="every method needs a bundle",
                found=f"neither a bundle of the package nor a folder with configs/{file}: {method.bundle}",
                fix=did_you_mean(method.bundle, bundle_names()).strip() or f"known are {', '.join(bundle_names())}",
            )
        require_trusted(folder, self.trust)
        return read_config(folder / "configs" / file, f"{method.bundle}/configs/{file}")

    def _changed(self, method: str, changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the config of a method with changes, and as text each section that decides; only changed ones cost."""
        config, texts = self.configs[method], self._texts[method]
        names = {normalize_key(key).split("::")[0] for key in changes}
        changed = overlay({name: config[name] for name in names if name in config}, changes)
        new = {name: json.dumps(changed[name], sort_keys=True) for name in names - {*_PLACES}}
        return {**config, **changed}, {**texts, **new}

    def _run(self, cell: Cell) -> Run:
        method = self.study.method(cell.method)
        axes = {
            "target_domain": cell.target,
            "labeled_fraction": cell.fraction,
            "seed": cell.seed,
            "protocol": cell.protocol,
        }
        changes = _sections_first({**dict(cell.changes), **axes})
        config, texts = self._changed(cell.method, {**changes, "dataset": self.data.dataset})
        versions = self.versions
        if any(_NNUNET in text for text in texts.values()):
            versions = {**versions, **nnunet_versions()}
        decides: dict[str, Any] = {"data": self.data.fingerprint, "versions": versions}
        weights = find_weights(config["init"]) if config.get("init") else None
        if weights is not None:
            decides["init"] = sha256_file(weights)
        parts = [json.dumps(decides, sort_keys=True), *(f"{key}: {texts[key]}" for key in sorted(texts))]
        digest = sha256_bytes("\n".join(parts).encode())
        decides["config"] = {key: config[key] for key in texts}
        values = _sections_first({**self._values(method), **changes})
        return Run(cell, method.bundle, values, self.study.paper, decides, f"{cell.method}-{digest[:_DIGITS]}")


def _sections_first(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides in the order in which they can be laid over each other: sections before what is in them."""
    return dict(sorted(values.items(), key=lambda item: normalize_key(item[0]).count("::")))
