# SPDX-License-Identifier: Apache-2.0
"""A process with little memory that reads what the fuzzer made: its death, a hang or a traceback is a finding."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import tempfile
import traceback
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
import pydicom

from vmfseg.data import Datalist, FolderDataset, read_volume
from vmfseg.data.reader import clear_cache
from vmfseg.model import Model
from vmfseg.utils import VmfError
from vmfseg.utils.error_codes import ERROR_CODES
from vmfseg.visualize.run_files import open_run

SPARE_BYTES = 256 << 20  # beyond what the process has when it starts
SPARE_MEMORY = 8 << 20  # of a reader, beside twice what it declares
SECONDS = 60.0


class Reader:
    """Runs cases in a process of its own, which is started again when a case ends it."""

    def __init__(self) -> None:
        self._process: Any = None

    def read(self, case: tuple[Any, ...]) -> str:
        """Return the code of the refusal, or ``"read"``.

        Raises:
            AssertionError: the process died, hung, or raised anything but a refusal.
        """
        if self._process is None:
            self._pipe, theirs = multiprocessing.Pipe()
            self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send(case)
        if not self._pipe.poll(SECONDS):
            self.close()
            raise AssertionError(f"no answer after {SECONDS:g} s")
        try:
            kind, text = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            code, self._process = self._process.exitcode, None
            raise AssertionError(f"the process died, exit code {code}") from None
        assert kind == "good", text
        return str(text)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join(10)
            self._process = None


def _serve(pipe: Any) -> None:
    for name in ("GDCMSeriesFileNames", "GDCMImageIO", "ImageFileReader", "PyBuffer"):
        getattr(itk, name)  # loaded now: their libraries take memory too, and no file is to blame for that
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        with tempfile.TemporaryDirectory() as folder:
            pipe.send(_outcome(Path(folder), *case))


def _outcome(folder: Path, kind: str, *arguments: Any) -> tuple[str, str]:
    clear_cache()
    try:
        {"image": _image, "series": _series, "json": _json, "csv": _csv}[kind](folder, *arguments)
    except VmfError as error:
        text = error.render()
        fine = error.code in ERROR_CODES and error.exit_code in (3, 4, 5, 6) and error.fix and error.subject
        fine = fine and len(text.splitlines()) <= 5 and text.isprintable() is not None
        return ("good", _cause(error)) if fine else ("bad", f"a poor message:\n{text}")
    except BaseException:
        return "bad", traceback.format_exc()
    return "good", "read"


def _cause(error: VmfError) -> str:
    """Return the code; with what was found in it where one code stands for all that a series can lack."""
    return error.code if error.code != "VMF241" else f"{error.code} {' '.join(error.found.split()[:4])}"


def _image(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.write_bytes(content)
    tracemalloc.start()
    try:
        volume = read_volume(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    _check_volume(volume)
    declared = volume.array.size * (8 if volume.header is None else volume.header.get_data_dtype().itemsize)
    allowed = 2 * (declared + volume.array.nbytes) + SPARE_MEMORY
    assert peak <= allowed, f"{peak} bytes for {declared} declared"
    if volume.header is not None and (content[:2] == b"\x1f\x8b") == name.endswith(".gz"):
        oracle = nib.load(path)
        array = np.asarray(oracle.dataobj, dtype=np.float64).reshape(volume.array.shape)
        span = float(np.ptp(array))
        assert float(np.abs(array - volume.array).max()) <= 2e-3 * span, "other voxels than nibabel reads"
        placed = any(int(oracle.header[f"{form}_code"]) > 0 for form in ("sform", "qform"))
        if not placed:  # nibabel guesses mirrored axes and a center; the standard's first method has neither
            assert "VMF225" in {finding.code for finding in volume.findings}, "a guess that is not said"
        expected = oracle.affine if placed else np.diag([*oracle.header["pixdim"][1:4], 1.0])
        np.testing.assert_allclose(volume.original_affine, expected, atol=1e-4)


def _check_volume(volume: Any) -> None:
    assert np.isfinite(volume.array).all(), "values that are not finite"
    assert np.isfinite(volume.affine).all(), "a grid that is not finite"
    assert abs(np.linalg.det(volume.affine[:3, :3])) > 0, "a grid without volume"
    assert volume.array.ndim in (3, 4)
    assert math.prod(volume.array.shape) > 0
    assert float(np.ptp(volume.array)) > 0, "a constant image"


def _series(folder: Path, files: list[bytes]) -> None:
    for number, content in enumerate(files):
        (folder / f"{number}.dcm").write_bytes(content)
    volume = read_volume(folder)
    _check_volume(volume)
    try:
        slices = [pydicom.dcmread(path) for path in sorted(folder.iterdir())]
        pixels = [
            one.pixel_array.T * float(one.get("RescaleSlope", 1)) + float(one.get("RescaleIntercept", 0))
            for one in slices
        ]
    except Exception:  # it refuses more than the reader does: no oracle then
        return
    for depth in range(volume.array.shape[2]):
        agrees = [np.allclose(volume.array[:, :, depth], one, rtol=1e-5) for one in pixels]
        assert any(agrees), "other voxels than pydicom reads"


def _json(folder: Path, which: str, content: bytes) -> None:
    if which == "datalist":
        (folder / "datalist.json").write_bytes(content)
        Datalist.load(folder / "datalist.json", check_files=False)
    elif which == "manifest":
        (folder / "manifest.json").write_bytes(content)
        Model.read(folder / "model.pt").build_preprocessing()
    else:
        (folder / "metrics.json").write_bytes(content)
        (folder / "metrics.csv").write_text("subject\n")
        open_run(folder)


def _csv(folder: Path, content: bytes) -> None:
    (folder / "table.csv").write_bytes(content)
    (folder / "a.nii").touch()
    FolderDataset(folder, "table.csv", labels={1: "LV"}, checksums=False).datalist()
