# SPDX-License-Identifier: Apache-2.0
r"""Runner of a chain of stages, each done once and resumable.

Stage :math:`i` has a fingerprint, the resolved settings of the objects it was built from, and the hash
:math:`h_i = \mathrm{SHA256}(h_{i-1}, \text{name}_i, \text{fingerprint}_i)`. Its folder carries the hash, so results of
other configurations are never touched; ``done.json`` is written last, with the checksum of every output. A stage whose
folder is complete is skipped; an interrupted one starts again, or goes on from its last checkpoint with ``resume``.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from vmfseg.model.definitions import settings_of
from vmfseg.model.weights import find_weights
from vmfseg.utils import VmfError, read_json, sha256_file, write_json
from vmfseg.utils.io import StrPath, sha256_bytes
from vmfseg.utils.locks import locked_folder

__all__ = ["Stage", "StageRunner", "say"]

_LOG = logging.getLogger(__name__)


class Stage(Protocol):
    """One step of a run.

    Attributes:
        name: of the stage and of its folder.
        fingerprint: JSON values that decide the result beside the settings of the config.
    """

    name: str
    fingerprint: Mapping[str, Any]

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Do the work, leave the outputs in ``folder`` and return their names; take up checkpoints if ``resume``."""
        ...

    def load(self, folder: Path) -> None:
        """Take up the outputs of an earlier run."""
        ...


class StageRunner:
    """Run stages in order, skip the finished ones.

    Args:
        stages: in order.
        output_dir: folder of the run; the stages' folders lie in ``stages`` below it.
        fingerprint: what decides the result of all stages (data, split, seed, versions of the format).
        resume: continue an interrupted stage from its last checkpoint.
        fresh: do everything again, although it is there.
        rank: of this process; only the first one writes.
        init: weights that the network started from; other weights are another run.

    Raises:
        VmfError: VMF390 if ``resume`` meets an interrupted run of other settings, VMF504 if another run works in the
            same folder.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        output_dir: StrPath,
        fingerprint: Mapping[str, Any] | None = None,
        resume: bool = False,
        fresh: bool = False,
        rank: int = 0,
        init: StrPath = "",
    ) -> None:
        names = [stage.name for stage in stages]
        if len(set(names)) != len(names):
            raise ValueError(f"stages must have different names, got {', '.join(names)}.")
        self.stages, self.output_dir = list(stages), Path(output_dir)
        self.fingerprint, self.resume, self.fresh, self.rank = dict(fingerprint or {}), resume, fresh, rank
        weights = find_weights(init) if init else None
        if weights is not None:
            self.fingerprint["init"] = sha256_file(weights)

    def folders(self) -> list[tuple[Stage, Path, str]]:
        """Return each stage with its folder and its hash."""
        digest = _digest(self.fingerprint)
        found = []
        for stage in self.stages:
            decides = [settings_of(stage), stage.fingerprint]
            digest = sha256_bytes(digest.encode(), stage.name.encode(), _digest(decides).encode())
            found.append((stage, self.output_dir / "stages" / f"{stage.name}-{digest[:12]}", digest))
        return found

    def run(self) -> list[Path]:
        """Run what is not done yet and return the folders of all stages."""
        for stage in self.stages:
            getattr(stage, "check", lambda: None)()
        with self._lock():
            if self.rank == 0:
                _remove_halves(self.output_dir)
            folders = self.folders()
            for index, (stage, folder, digest) in enumerate(folders, start=1):
                title = f"stage {index}/{len(folders)} {stage.name}"
                done = not self.fresh and _complete(folder, digest)
                going_on = self.resume and not self.fresh and folder.is_dir()
                if self.resume and not self.fresh and not done and not folder.is_dir():
                    _refuse_other(stage.name, folder)
                _meet()
                if done:
                    say(f"{title}: done already, taken from {folder}", self.rank)
                    stage.load(folder)
                    continue
                if folder.is_dir() and not going_on and self.rank == 0:
                    shutil.rmtree(folder)  # an unfinished or damaged folder of this very configuration, ours alone
                if going_on and self.rank == 0:
                    _remove_halves(folder)
                say(f"{title}{': resumed' if going_on else ''}", self.rank)
                outputs = stage.run(folder, going_on)
                if self.rank == 0:
                    hashes = {name: sha256_file(folder / name) for name in outputs}
                    write_json(folder / "done.json", {"hash": digest, "outputs": hashes})
        return [folder for _, folder, _ in folders]

    @contextmanager
    def _lock(self) -> Iterator[None]:
        if self.rank:
            yield
            return
        with locked_folder(self.output_dir):
            yield


def say(text: str, rank: int = 0) -> None:
    """Tell the user one line; other processes than the first stay silent."""
    if rank == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _meet() -> None:
    """Wait for the other processes: all have decided, and what the first one wrote in earlier stages is there."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _remove_halves(folder: Path) -> None:
    """Remove half-written files of a process that was killed; the lock says that no other one writes."""
    for leftover in folder.glob(".vmfseg-*"):
        if leftover.is_file():
            leftover.unlink()


def _refuse_other(name: str, folder: Path) -> None:
    """Refuse to start anew where a run was to be resumed: the interrupted one of this stage had other settings."""
    others = [path for path in folder.parent.glob(f"{name}-*") if path.is_dir() and not (path / "done.json").exists()]
    if others:
        raise VmfError(
            "VMF390",
            subject=str(folder.parent.parent),
            found=f"stage {name} was interrupted with other settings ({others[0].name} instead of {folder.name})",
        )


def _digest(value: Any) -> str:
    return sha256_bytes(json.dumps(value, sort_keys=True, default=str).encode())


def _complete(folder: Path, digest: str) -> bool:
    note = folder / "done.json"
    if not note.is_file():
        return False
    try:
        done = read_json(note)
        known, outputs = done["hash"], dict(done["outputs"])
    except (VmfError, KeyError, TypeError, ValueError):
        _LOG.warning("%s is damaged; the stage is done again", note)
        return False
    if known != digest:
        return False
    for name, expected in outputs.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != expected:
            _LOG.warning("%s is missing or damaged; the stage is done again", path)
            return False
    return True
