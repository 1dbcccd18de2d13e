# SPDX-License-Identifier: Apache-2.0
"""Engine of a Ray cluster: one Ray task a run, retried when its node dies."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.studies.execution import execute, read_result
from vmfseg.studies.study_parts import Resources
from vmfseg.utils import VmfError, atomic_path, did_you_mean, read_json, write_json
from vmfseg.utils.packages import require_package

__all__ = ["RayEngine"]

_OPTIONS = ("address", "shared")
_RETRIES = 5
_KNOCK_SECONDS = 10.0
_MAX_MEMBER = 4 * 2**30


class RayEngine:
    """Execute runs as tasks of Ray Core. See :class:`vmfseg.studies.engine.Engine`.

    A task asks for the CPUs, GPUs and memory of ``resources``. If its node dies, Ray starts it again on another one:
    with a shared disk it goes on from the last checkpoint, otherwise from the beginning. Without a shared disk the node
    works in a folder of its own and the run's folder comes back as an archive; data and own bundles must lie at the
    same path on every node (the package's bundles and the phantom are made there).

    Args:
        resources: of one run.
        jobs: tasks at the same time; 0 for as many as the cluster takes.
        options: ``address`` of a cluster (``auto``, ``ray://HOST:10001``, ``HOST:6379``; without it a local one is
            started), ``shared=no`` if the nodes do not see the folder of the study.

    Raises:
        VmfError: VMF530 if Ray is not installed, VMF379 if the cluster cannot be reached, VMF100 an unknown option.
    """

    def __init__(self, resources: Resources, jobs: int = 0, options: Mapping[str, str] | None = None) -> None:
        options = dict(options or {})
        for name in options:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS).strip() or f"use {' or '.join(_OPTIONS)}"
                raise VmfError("VMF100", subject=f"--engine {name}", rule="Ray has no such option here", fix=hint)
        self._ray = require_package("ray")
        self._own = not self._ray.is_initialized()
        self.jobs, self._shared = jobs, options.get("shared", "yes") != "no"
        if self._own:
            try:
                place = {"address": options["address"]} if "address" in options else {"include_dashboard": False}
                _knock(options.get("address", ""))
                self._ray.init(log_to_driver=False, **place)
            except (OSError, ValueError, RuntimeError) as error:
                raise VmfError(
                    "VMF379",
                    subject=f"--engine address={options.get('address', '')}",
                    rule="the Ray cluster cannot be reached",
                    found=str(error).splitlines()[0] if str(error) else type(error).__name__,
                    fix="check the address (ray status), or leave it out for a local cluster",
                ) from error
        needs = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "memory": int(resources.memory_gb * 1e9)}
        self._task = self._ray.remote(_remote).options(**needs, max_retries=_RETRIES)
        self._cpus = resources.cpus
        self._waiting: list[Path] = []
        self._running: dict[Any, Path] = {}

    def submit(self, folders: Sequence[Path]) -> None:
        """Hand runs to Ray."""
        self._waiting.extend(folders)

    def poll(self) -> dict[Path, dict[str, Any]]:
        """Start tasks as far as ``jobs`` allows and return the results that came in."""
        while self._waiting and (not self.jobs or len(self._running) < self.jobs):
            folder = self._waiting.pop(0)
            files = None if self._shared else _pack(folder, ("run.json", "overrides.json"))
            listed = folder.parents[1] / "datalist.json"
            extra = listed.read_bytes() if files is not None and listed.is_file() else None
            self._running[self._task.remote(str(folder), self._cpus, files, extra)] = folder
        if not self._running:
            return {}
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0.2)
        return {(folder := self._running.pop(task)): self._result(task, folder) for task in ready}

    def busy(self) -> bool:
        """Tell whether a task waits or runs."""
        return bool(self._waiting or self._running)

    def stop(self) -> None:
        """Cancel the tasks that run, and leave the cluster."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        self._waiting.clear()
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()

    def _result(self, task: Any, folder: Path) -> dict[str, Any]:
        try:
            result, archive = self._ray.get(task)
            if archive is not None:
                _unpack(archive, folder)
        except (self._ray.exceptions.RayError, tarfile.TarError, OSError) as error:
            known = read_result(folder)
            if known is not None:
                return known
            lost = VmfError(
                "VMF377",
                subject=folder.name,
                rule="the run was lost with its node",
                found=str(error).splitlines()[0],
                fix="bring the nodes back; then --retry",
            )
            return {"state": "failed", "error": lost.as_dict()}
        return dict(result)


def _knock(address: str) -> None:
    """Make sure that somebody listens at an address: Ray itself tries for many minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _remote(folder: str, cpus: int, files: bytes | None, datalist: bytes | None) -> tuple[dict[str, Any], bytes | None]:
    """Execute a run on a node: in its folder, or in a folder of the node's own that is sent back."""
    if files is None:
        place = Path(folder)
        return read_result(place) or execute(place, cpus), None
    from vmfseg.bundle.compile import bundle_names, write_bundle

    with tempfile.TemporaryDirectory(prefix="vmfseg-run-") as scratch:
        place = Path(scratch) / Path(folder).name
        _unpack(files, place)
        note, values = read_json(place / "run.json"), read_json(place / "overrides.json")
        name = os.path.basename(note["bundle"])
        if not os.path.isdir(note["bundle"]) and name in bundle_names():
            write_bundle(name, scratch)
            note["bundle"] = str(Path(scratch) / name)
        if datalist is not None:
            (Path(scratch) / "datalist.json").write_bytes(datalist)
            values["dataset_dir"] = str(Path(scratch) / "datalist.json")
        write_json(place / "run.json", note)
        write_json(place / "overrides.json", values)
        result = execute(place, cpus)
        kept = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
        own = {"run.json", "overrides.json", ".lock"}
        return result, _pack(place, [name for name in kept if name not in own])


def _pack(folder: Path, names: Sequence[str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name in names:
            archive.add(folder / name, arcname=name, recursive=False)
    return stream.getvalue()


def _unpack(data: bytes, folder: Path) -> None:
    """Write the files of an archive into a folder; names that lead out of it and anything but files are left out."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            inside = Path(os.path.abspath(folder / member.name)).is_relative_to(os.path.abspath(folder))
            stream = archive.extractfile(member) if member.isfile() and inside and member.size < _MAX_MEMBER else None
            if stream is not None:
                with atomic_path(folder / member.name) as temporary:
                    temporary.write_bytes(stream.read())
