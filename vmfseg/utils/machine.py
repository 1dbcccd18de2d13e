# SPDX-License-Identifier: Apache-2.0
"""Inspect the machine: Python, libraries, devices, memory, disk, and whether the cache folder can be written."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from vmfseg import __version__
from vmfseg.utils.manifest import installed_versions
from vmfseg.utils.memory import available_memory

__all__ = ["inspect_machine", "usable_cores"]

_NEEDED = (
    "torch", "monai", "pytorch-ignite", "numpy", "scipy", "nibabel", "itk", "safetensors", "matplotlib", "typer",
)  # fmt: skip
#: Packages by the extra that installs them.
_EXTRAS = {
    "export": ("onnx", "onnxruntime", "onnxscript", "openvino"),
    "int8": ("nncf",),
    "ray": ("ray",),
    "serve": ("fastapi", "uvicorn", "python-multipart"),
    "slurm": ("submitit",),
    "tutorials": ("nbclient", "ipykernel"),
}
_GIB = 2**30
_LITTLE_MEMORY, _LITTLE_DISK = 4, 2  # GiB
_BFLOAT16 = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); assert float((a @ a)[0, 0]) == 512"


def inspect_machine(cache: str | os.PathLike[str], probe: bool = True) -> dict[str, Any]:
    """Look at this machine. Nothing is changed but a file that is written to the cache folder and removed.

    Args:
        cache: the cache folder.
        probe: try a product of bfloat16 matrices, in a process of its own: some virtual machines die of it.

    Returns:
        ``checks``, a list of ``{name, status, found, fix}`` with status ``ok``, ``note`` or ``bad``, and ``fit``,
        whether none is bad.

    Example:
        >>> report = inspect_machine(tempfile.mkdtemp(), probe=False)
        >>> report["fit"], report["checks"][0]["name"]
        (True, 'vmfseg')
    """
    checks = [_check("vmfseg", "ok", __version__), _python(), *_libraries(), *_devices()]
    if probe:
        checks.append(_bfloat16())
    checks += [_memory(), *_cache(Path(cache)), *_extras()]
    return {"fit": all(check["status"] != "bad" for check in checks), "checks": checks}


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _python() -> dict[str, str]:
    good = sys.version_info >= (3, 10)
    found = f"{platform.python_version()} ({sys.executable})"
    return _check("python", "ok" if good else "bad", found, "" if good else "vmfseg needs 3.10 or newer")


def _libraries() -> list[dict[str, str]]:
    found = []
    for name, version in installed_versions(_NEEDED).items():
        there = version != "absent"
        found.append(_check(name, "ok" if there else "bad", version if there else "missing", f"pip install {name}"))
    return found


def _devices() -> list[dict[str, str]]:
    checks = [
        _check("cpu", "ok", f"{usable_cores()} of {os.cpu_count() or 1} cores, torch uses {torch.get_num_threads()}")
    ]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            checks.append(_check(f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / _GIB:.1f} GiB"))
    else:
        checks.append(_check("cuda", "note", "none", "the CPU does; the paper's scale (--paper) wants a GPU"))
    return checks


def _bfloat16() -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", _BFLOAT16], capture_output=True, timeout=120, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _check("bfloat16", "note", f"not known ({type(error).__name__})", "vmfseg computes in float32")
    if done.returncode == 0:
        return _check("bfloat16", "ok", "works")
    return _check("bfloat16", "note", f"dies here (exit {done.returncode})", "vmfseg computes in float32; keep to it")


def _memory() -> dict[str, str]:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    except (AttributeError, OSError, ValueError):  # not on Windows
        return _check("memory", "note", "not known", "4 GiB are enough for the default scale")
    found = f"{total:.1f} GiB{_free_memory()}"
    return _check("memory", "ok" if total >= _LITTLE_MEMORY else "note", found, "use a smaller batch_size")


def _free_memory() -> str:
    free = available_memory()
    return "" if free is None else f", {free / _GIB:.1f} free"


def _cache(folder: Path) -> list[dict[str, str]]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".vmfseg-") as stream:
            stream.write(b"doctor")
            stream.flush()
            os.fsync(stream.fileno())
        free = shutil.disk_usage(folder).free / _GIB
    except OSError as error:
        fix = "set VMFSEG_CACHE to a folder that you may write"
        return [_check("cache", "bad", f"{folder}: {error.strerror or error}", fix)]
    little = free < _LITTLE_DISK
    return [
        _check("cache", "ok", f"{folder} can be written"),
        _check("disk", "note" if little else "ok", f"{free:.1f} GiB free", "a run takes up to 1 GiB"),
    ]


def _extras() -> list[dict[str, str]]:
    checks = []
    for extra, packages in _EXTRAS.items():
        versions = installed_versions(packages).items()
        found = ", ".join(f"{name} {version}" for name, version in versions if version != "absent")
        missing = [name for name, version in versions if version == "absent"]
        text = "; ".join(part for part in (found, f"without {', '.join(missing)}" if missing else "") if part)
        checks.append(_check(f"[{extra}]", "note" if missing else "ok", text, f"pip install 'vmfseg[{extra}]'"))
    return checks


def _check(name: str, status: str, found: str, fix: str = "") -> dict[str, str]:
    return {"name": name, "status": status, "found": found, "fix": fix if status != "ok" else ""}
