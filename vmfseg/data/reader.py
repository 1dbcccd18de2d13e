# SPDX-License-Identifier: Apache-2.0
r"""Strict reader of NIfTI, NRRD, MetaImage and DICOM volumes; all voxels come through :func:`read_volume`.

A bad file is refused with its name, the cause and a cure, or accepted by a stated rule that leaves a finding; nothing
is guessed and no second reader is tried when the first one fails.

=========================  =====================================================================================
code                       rule
=========================  =====================================================================================
VMF201 to VMF205           missing, not a regular file, not readable, empty, not a supported format
VMF206 to VMF209           not NIfTI, header cut short, not single-file NIfTI, corrupt header
VMF210 to VMF214           truncated stream, too little data, corrupt stream, too much data, impossible size
VMF215 *(warning)*         gzip content under another name, and the reverse: read by content
VMF216, VMF512             too many voxels, more than the free memory (both before anything is allocated)
VMF218, VMF219, VMF220     dimensions, voxel type (RGB, complex, ...), scaling that is not finite
VMF221, VMF222             voxel size zero, negative, NaN or absurd; unit that is not mm
VMF223, VMF224             form that is zero or NaN; sform, qform and pixdim that contradict each other
VMF225 *(warning)*         no form at all: voxel sizes are believed
VMF226                     shear (a warning where it is noise, up to half a voxel at a corner)
VMF227                     values that float32 would destroy (a warning for other 64-bit integers)
VMF228 *(warning)*         voxels more than 20 times as long as wide
VMF229, VMF236             slices below 4x4 voxels (warning below 16x16); 2-D image read as one slice (warning)
VMF230 to VMF233           NaN, infinite, constant, absurd values
VMF234, VMF235             4-D where 3-D is meant; frame that does not exist
VMF240, VMF241             .nrrd and .mha headers; DICOM folders
VMF250, VMF252             labels that are no integers; labels with a scale factor (warning)
=========================  =====================================================================================
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from monai.data import ImageReader
from monai.utils import ensure_tuple

from vmfseg.data.dicom import read_dicom, read_dicom_header
from vmfseg.data.findings import Finding, warn_findings
from vmfseg.data.itk_io import read_itk, read_itk_header
from vmfseg.data.nifti import read_nifti, read_nifti_header
from vmfseg.data.volume import ReadRules, Stored, Volume, VolumeHeader, check_frame, check_values
from vmfseg.utils import VmfError

__all__ = [
    "SUPPORTED_SUFFIXES",
    "Volume",
    "VolumeHeader",
    "VolumeReader",
    "clear_cache",
    "image_stem",
    "read_header",
    "read_volume",
]

StrPath = str | os.PathLike[str]

#: File names that are read; a folder is read as one DICOM series.
SUPPORTED_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha")

_CACHE_FILES = 4
_CACHE_BYTES = 1 << 30
_cache: OrderedDict[tuple[object, ...], Stored] = OrderedDict()
_cache_lock = threading.Lock()


def image_stem(path: StrPath) -> str:
    """Return the name of an image without its folder and without the ending of a supported file.

    Example:
        >>> image_stem("scans/a.b.nii.gz")
        'a.b'
    """
    name = os.path.basename(os.fspath(path).rstrip("/"))
    return re.sub(r"(\.nii(\.gz)?|\.nrrd|\.mha)$", "", name, flags=re.IGNORECASE)


def read_header(path: StrPath, **rules: Any) -> VolumeHeader:
    """Read shape, geometry and type of a volume and check them; no voxel is read.

    Args:
        path: a .nii, .nii.gz, .nrrd or .mha file, or a folder with one DICOM series.
        rules: see :class:`~vmfseg.data.volume.ReadRules`.

    Raises:
        VmfError: VMF201 to VMF241, see the table above.
    """
    name, kind = _format(path)
    readers = {"nifti": read_nifti_header, "itk": read_itk_header, "dicom": read_dicom_header}
    return readers[kind](name, ReadRules(**rules))


def read_volume(path: StrPath, frame: int | None = None, **rules: Any) -> Volume:
    """Read a volume and check all of it.

    The last few 4-D files stay in memory, so that reading a cine frame by frame opens it once.

    Args:
        path: a .nii, .nii.gz, .nrrd or .mha file, or a folder with one DICOM series.
        frame: zero-based frame of a 4-D file; ``None`` returns all frames. A 3-D file has frame 0 only.
        rules: see :class:`~vmfseg.data.volume.ReadRules`.

    Raises:
        VmfError: see the table above.

    Example:
        >>> import nibabel as nib, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "cine.nii.gz"
        >>> cine = np.random.default_rng(0).integers(0, 99, (32, 24, 3, 5)).astype(np.int16)
        >>> nib.save(nib.Nifti1Image(cine, np.diag([1.25, 1.25, 8.0, 1.0])), file)
        >>> read_volume(file).array.shape, read_volume(file, frame=4).array.shape
        ((32, 24, 3, 5), (32, 24, 3))
        >>> read_volume(file, frame=5)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF235: the frame must exist...
    """
    checked = ReadRules(**rules)
    name, kind = _format(path)
    stored = _load(name, kind, checked)
    header = stored.header
    findings = header.findings
    if frame is not None and not 0 <= frame < header.num_frames:
        raise VmfError(
            "VMF235",
            subject=name,
            found=f"frame {frame} of {header.num_frames} (counted from 0)",
            fix=f"Choose a frame from 0 to {header.num_frames - 1}.",
        )
    values = stored.values
    if frame is not None and values.ndim == 4:
        values = values[..., frame]
        check_frame(header, values, frame, checked)
    array = _scale(values, header, checked)
    if checked.kind == "label":
        findings += _check_label(array, header)
    return Volume(array, header.affine.copy(), header.original_affine.copy(), header.nifti, findings, name)


def clear_cache() -> None:
    """Forget the 4-D files that are kept in memory."""
    with _cache_lock:
        _cache.clear()


@dataclass(frozen=True)
class _Handle:
    path: str


class VolumeReader(ImageReader):  # type: ignore[misc]
    """The strict reader as a MONAI ``ImageReader``, for ``LoadImage(reader=VolumeReader())`` and friends.

    MONAI's ``LoadImage`` tries its other readers when ``read`` raises, and some of those accept what is refused here.
    So ``read`` only takes the path, and ``get_data``, whose errors MONAI does not catch, reads the file.

    Args:
        frame: frame of a 4-D file; ``None`` gives all frames as the last axis, never as channels.
        kind: ``"image"`` or ``"label"``.
        rules: further rules, see :class:`~vmfseg.data.volume.ReadRules`.

    Shape: array ``(X, Y, Z)``, or ``(X, Y, Z, T)``; float32.

    Example:
        >>> from monai.transforms import LoadImage
        >>> LoadImage(reader=VolumeReader())("missing.nii.gz")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF201: the file does not exist
        ...
    """

    def __init__(self, frame: int | None = None, kind: Literal["image", "label"] = "image", **rules: Any) -> None:
        super().__init__()
        self.frame = frame
        self.rules = {"kind": kind, **rules}
        ReadRules(**self.rules)

    def verify_suffix(self, filename: Sequence[StrPath] | StrPath) -> bool:
        """Tell whether every name is one this reader knows (folders count as DICOM series)."""
        names = [os.fspath(name) for name in ensure_tuple(filename)]
        return all(name.lower().endswith(SUPPORTED_SUFFIXES) or os.path.isdir(name) for name in names)

    def read(self, data: Sequence[StrPath] | StrPath, **kwargs: Any) -> _Handle:
        """Take the path; the file is opened by :meth:`get_data`."""
        names = [os.fspath(name) for name in ensure_tuple(data)]
        if len(names) != 1:
            raise ValueError(f"data must be one file, got {len(names)}. Several files are no channels of one image.")
        return _Handle(names[0])

    def get_data(self, img: _Handle) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Read the file and return its voxels and MONAI's metadata.

        Raises:
            VmfError: see :func:`read_volume`.
        """
        volume = read_volume(img.path, self.frame, **self.rules)
        warn_findings(volume.findings)
        return volume.array, volume_meta(volume)


def volume_meta(volume: Volume) -> dict[str, Any]:
    """Return the metadata MONAI expects beside an array."""
    return {
        "affine": volume.affine,
        "original_affine": volume.original_affine,
        "spatial_shape": np.asarray(volume.array.shape),
        "filename_or_obj": volume.path,
        "original_channel_dim": "no_channel",
        "space": "RAS",
    }


def _format(path: StrPath) -> tuple[str, str]:
    name = os.path.expanduser(os.fspath(path))
    lower = name.lower()
    if os.path.isdir(name):
        return name, "dicom"
    if lower.endswith((".nii", ".nii.gz")):
        return name, "nifti"
    if lower.endswith((".nrrd", ".mha")):
        return name, "itk"
    fixes = {
        (
            ".hdr",
            ".img",
            ".hdr.gz",
            ".img.gz",
        ): "convert the pair to one .nii.gz file with its orientation",
        (".mhd", ".nhdr"): "save header and voxels in one .mha, .nrrd or .nii.gz file",
        (".dcm", ".ima"): "give the folder that holds the series",
    }
    fix = next((text for ends, text in fixes.items() if lower.endswith(ends)), "convert the image to .nii.gz")
    raise VmfError(
        "VMF205",
        subject=name,
        rule=f"images must be {', '.join(SUPPORTED_SUFFIXES)} or a DICOM folder",
        found=os.path.splitext(name)[1] or "no file extension",
        fix=fix,
    )


def _load(name: str, kind: str, rules: ReadRules) -> Stored:
    key: tuple[object, ...] = (name, rules)
    if kind != "dicom" and os.path.isfile(name):
        status = os.stat(name)
        key = (os.path.realpath(name), status.st_mtime_ns, status.st_size, status.st_ino, rules)
        with _cache_lock:
            if key in _cache:
                _cache.move_to_end(key)
                return _cache[key]
    readers = {"nifti": read_nifti, "itk": read_itk, "dicom": read_dicom}
    stored = readers[kind](name, rules)
    notes = check_values(stored, rules)
    stored = replace(stored, header=replace(stored.header, findings=(*stored.header.findings, *notes)))
    if stored.values.ndim == 4 and kind != "dicom":
        with _cache_lock:
            _cache[key] = stored
            while len(_cache) > 1 and (
                len(_cache) > _CACHE_FILES or sum(s.values.nbytes for s in _cache.values()) > _CACHE_BYTES
            ):
                _cache.popitem(last=False)
    return stored


def _scale(values: npt.NDArray[Any], header: VolumeHeader, rules: ReadRules) -> npt.NDArray[np.float32]:
    if rules.nan_to is not None and values.dtype.kind == "f":
        values = np.where(np.isfinite(values), values, (rules.nan_to - header.inter) / header.slope)
    if header.slope != 1.0 or header.inter != 0.0:
        return np.asarray(values.astype(np.float64) * header.slope + header.inter, dtype=np.float32)
    return np.array(values, dtype=np.float32)  # a copy: the stored voxels may serve other frames


def _check_label(array: npt.NDArray[np.float32], header: VolumeHeader) -> tuple[Finding, ...]:
    """Round scaled labels to integers in place and refuse those that are none."""
    whole = np.rint(array)
    off = np.abs(array - whole)
    if float(off.max(initial=0.0)) > 1e-3:
        values = ", ".join(f"{v:g}" for v in np.unique(array[off > 1e-3])[:5])
        scaled = f" (scl_slope {header.slope:g}, scl_inter {header.inter:g})" if header.slope != 1.0 else ""
        raise VmfError(
            "VMF250", subject=header.path, found=f"{int((off > 1e-3).sum())} voxels such as {values}{scaled}"
        )
    array[...] = whole
    if header.slope != 1.0 or header.inter != 0.0:
        text = f"label with scl_slope {header.slope:g} and scl_inter {header.inter:g}; scaled values are used"
        return (Finding("warning", "VMF252", header.path, text, header.path),)
    return ()
