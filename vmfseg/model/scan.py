# SPDX-License-Identifier: Apache-2.0
"""Scans of one or several frames and channels, and maps written on their grid."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from monai.utils import SpaceKeys

from vmfseg.data.findings import warn_findings
from vmfseg.data.load_volume import to_metatensor
from vmfseg.data.reader import Volume, image_stem, read_header, read_volume
from vmfseg.data.text_header import LPS_TO_RAS
from vmfseg.data.volume import ReadRules, Stored, VolumeHeader, check_frame, check_grid, check_shape, check_values
from vmfseg.utils import VmfError, atomic_write
from vmfseg.utils.io import StrPath

__all__ = ["Scan", "label_path", "map_image", "write_label", "write_map"]

_LABEL_INTENT = 1002
_VECTOR_INTENT = 1007


@dataclass(frozen=True)
class Scan:
    """A scan that frames can be taken from: files, read when asked, or an image in memory.

    Attributes:
        header: geometry, checked by the reader's rules.
        shape: as the user sees it; two or more than four dimensions are brought to three or four inside.
        values: voxels of an image in memory, ``None`` for a file.
        rules: what the reader accepts.
        channels: further image channels, scans on the same grid.

    Example:
        >>> image = nib.Nifti1Image(np.arange(1200, dtype=np.int16).reshape(20, 20, 3), np.diag([1.2, 1.2, 8, 1]))
        >>> scan = Scan.open(image)
        >>> scan.num_frames, scan.frame(0).shape
        (1, torch.Size([1, 20, 20, 3]))
    """

    header: VolumeHeader
    shape: tuple[int, ...]
    values: npt.NDArray[Any] | None = None
    rules: ReadRules = field(default_factory=ReadRules)
    channels: tuple[Scan, ...] = ()

    @classmethod
    def open(cls, image: Any, **rules: Any) -> Scan:
        """Open a path, a nibabel image or a ``MetaTensor`` (``(1, X, Y, Z)``, ``(1, X, Y, Z, T)`` or no channel).

        A list of these is one scan of several channels.

        Args:
            image: what to open.
            rules: see :class:`vmfseg.data.volume.ReadRules`.

        Raises:
            ValueError: if it is none of these.
            VmfError: what the reader refuses.
        """
        checked = ReadRules(**rules)
        if isinstance(image, list | tuple):
            first, *others = (cls.open(channel, **rules) for channel in image)
            for other in others:
                _check_same_grid(first, other)
            return replace(first, channels=tuple(others))
        if isinstance(image, str | os.PathLike):
            header = read_header(image, **rules)
            return cls(header, _declared(header), None, checked)
        if isinstance(image, MetaTensor):
            return cls._from_metatensor(image, checked)
        if isinstance(image, nib.spatialimages.SpatialImage):
            name = image.get_filename() or "image in memory"
            nifti = image.header if isinstance(image.header, nib.Nifti1Header) else None
            affine = np.asarray(image.affine, dtype=np.float64)
            return cls._from_array(name, np.asanyarray(image.dataobj), affine, nifti, checked)
        raise ValueError(
            f"image must be a path, a nibabel image or a MetaTensor, got {type(image).__name__}. "
            "Make a MetaTensor of an array and its affine."
        )

    @classmethod
    def _from_metatensor(cls, image: MetaTensor, rules: ReadRules) -> Scan:
        array = image.detach().cpu().as_tensor().numpy()
        if array.ndim > 3:
            if array.shape[0] != 1:
                raise ValueError(f"image must have one channel, got shape {array.shape}. Take one channel first.")
            array = array[0]
        affine = np.asarray(image.affine.cpu(), dtype=np.float64)
        if "space" in image.meta and SpaceKeys(image.meta["space"]) == SpaceKeys.LPS:
            affine = LPS_TO_RAS @ affine
        name = str(image.meta.get("filename_or_obj", "image in memory"))
        return cls._from_array(name, array, affine, None, rules)

    @classmethod
    def _from_array(
        cls, name: str, array: npt.NDArray[Any], affine: npt.NDArray[np.float64], nifti: Any, rules: ReadRules
    ) -> Scan:
        shape, findings = check_shape(name, array.shape)
        if array.dtype.kind not in "biuf":
            raise VmfError(
                "VMF219",
                subject=name,
                rule="voxels must be real numbers",
                found=str(array.dtype),
                fix="pass one scalar image",
            )
        ortho, notes = check_grid(name, affine, shape, rules)
        header = VolumeHeader(name, shape, ortho, affine, array.dtype, nifti=nifti, findings=(*findings, *notes))
        values = array.reshape(shape)
        notes = check_values(Stored(header, values), rules)
        warn_findings((*header.findings, *notes))
        return cls(header, tuple(int(n) for n in array.shape), values, rules)

    @property
    def num_frames(self) -> int:
        """How many frames, 1 for a 3-D scan."""
        return self.header.num_frames

    @property
    def grid_shape(self) -> tuple[int, int, int]:
        """Shape of one frame."""
        x, y, z = self.header.shape[:3]
        return x, y, z

    def frame(self, number: int) -> MetaTensor:
        """Return one frame, ``(C, X, Y, Z)``.

        Raises:
            VmfError: what the reader refuses.
        """
        if self.channels:
            first, *others = (scan.frame(number) for scan in (replace(self, channels=()), *self.channels))
            return MetaTensor(torch.cat([first.as_tensor(), *(c.as_tensor() for c in others)])).copy_meta_from(first)
        if self.values is None:
            rules = {name: getattr(self.rules, name) for name in ("nan_to", "prefer", "allow_shear", "max_voxels")}
            volume = read_volume(self.header.path, number, **rules)
            warn_findings(volume.findings)
            return to_metatensor(volume)
        array = self.values[..., number] if self.values.ndim == 4 else self.values
        check_frame(self.header, array, number if self.values.ndim == 4 else None, self.rules)
        real = np.array(array, dtype=np.float32)
        if self.rules.nan_to is not None:
            real[~np.isfinite(real)] = self.rules.nan_to
        header = self.header
        return to_metatensor(Volume(real, header.affine, header.original_affine, header.nifti, (), header.path))


def map_image(scan: Scan, values: npt.NDArray[Any], *, channels: bool = False) -> Any:
    """Return maps on the grid of a scan as a nibabel image with the scan's own header.

    Shape, forms, codes, voxel sizes, time step and units are those of the input; only the type of the voxels, their
    scaling and the intent are those of the map. A scan that is no NIfTI file gets a new header from its affine.

    Shape: ``(X, Y, Z[, T])``, or ``(X, Y, Z)`` for one frame of a cine; with ``channels`` the maps come last,
    ``(X, Y, Z[, T], K)``.

    Args:
        scan: whose grid it is.
        values: uint8 labels, or float32 maps.
        channels: whether the last axis counts maps.

    Raises:
        ValueError: if the shape is not the scan's.
    """
    grid = values.shape[:-1] if channels else values.shape
    shape = scan.grid_shape if tuple(grid) == scan.grid_shape and scan.num_frames > 1 else scan.shape
    if tuple(grid) not in (shape, scan.header.shape):
        raise ValueError(f"values must lie on the grid {scan.shape} of the scan, got {values.shape}.")
    array = values.reshape((*shape, values.shape[-1]) if channels else shape)
    nifti = scan.header.nifti
    if nifti is None:
        image = nib.Nifti1Image(array, scan.header.original_affine)
        image.header.set_xyzt_units("mm", "sec" if array.ndim > 3 else None)
    else:
        fields = nifti.copy()
        steps = np.array(fields["pixdim"])
        fields.set_data_dtype(array.dtype)
        fields.set_data_shape(array.shape)  # forgets the time step of a header with fewer dimensions
        fields["pixdim"] = steps
        fields["scl_slope"], fields["scl_inter"] = 1.0, 0.0
        fields["cal_min"] = fields["cal_max"] = 0.0
        kind = nib.Nifti2Image if isinstance(fields, nib.Nifti2Header) else nib.Nifti1Image
        # the header's own affine, so that forms and codes stay as they are
        image = kind(array, fields.get_best_affine(), _without_extensions(fields))
    image.header["intent_code"] = _VECTOR_INTENT if channels else _LABEL_INTENT
    return image


def write_map(path: StrPath, image: Any, *, overwrite: bool = False) -> None:
    """Write a nibabel image in one step; equal images give equal bytes.

    Raises:
        VmfError: VMF501 to VMF503 if the file cannot be written.
    """
    content = image.to_bytes()
    if Path(path).name.lower().endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    atomic_write(path, content, overwrite=overwrite)


def _without_extensions(fields: Any) -> Any:
    """Leave out what may follow a header: it describes the image, and may name the patient."""
    fields.extensions[:] = []
    return fields


def _check_same_grid(first: Scan, other: Scan) -> None:
    if first.header.shape != other.header.shape or not np.allclose(first.header.affine, other.header.affine, atol=1e-2):
        raise VmfError(
            "VMF267",
            subject=str(other.header.path),
            found=f"shape {other.header.shape} beside {first.header.shape} of {first.header.path}",
        )


def _declared(header: VolumeHeader) -> tuple[int, ...]:
    if header.nifti is None:
        return header.shape
    dims = [int(n) for n in header.nifti["dim"]]
    return tuple(dims[1 : dims[0] + 1])


def write_label(path: StrPath, label: npt.NDArray[Any], image: StrPath, *, overwrite: bool = True) -> Path:
    """Write a label map as NIfTI with the geometry of ``image``: the same voxels, forms, codes and units.

    The file appears complete or not at all.

    Args:
        path: ``.nii.gz`` or ``.nii``.
        label: class numbers below 256, ``(x, y, z)`` of the image.
        image: the image it belongs to; of a 4-D file the label is one frame.
        overwrite: whether an existing file may be replaced.

    Raises:
        ValueError: if the label has not the image's shape or does not fit into 8 bits.
        VmfError: what the reader refuses; VMF501 to VMF503 if the file cannot be written.

    Example:
        >>> import nibabel as nib, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> nib.save(nib.Nifti1Image(np.zeros((32, 24, 3), np.int16), np.diag([1.2, 1.2, 8, 1])), folder / "a.nii.gz")
        >>> file = write_label(folder / "a_seg.nii.gz", np.ones((32, 24, 3)), folder / "a.nii.gz")
        >>> nib.load(file).get_data_dtype(), nib.load(file).shape
        (dtype('uint8'), (32, 24, 3))
    """
    scan, values = Scan.open(image), np.asarray(label)
    if values.shape != scan.grid_shape:
        raise ValueError(
            f"label must have the shape of the image {scan.grid_shape}, got {values.shape}. "
            "Invert the transforms before writing."
        )
    if values.size and (values.min() < 0 or values.max() > 255 or not np.array_equal(values, np.rint(values))):
        raise ValueError("label must hold class numbers from 0 to 255, got other values. Write the argmax.")
    if scan.num_frames == 1 and len(scan.header.shape) == 4:
        values = values[..., None]
    write_map(path, map_image(scan, values.astype(np.uint8)), overwrite=overwrite)
    return Path(path)


def label_path(
    image: StrPath, output_dir: StrPath, frame: int | None = None, root: StrPath = "", postfix: str = "seg"
) -> Path:
    """Return where the label of an image goes: its name with a postfix, in its subfolder below ``root``.

    Example:
        >>> label_path("/data/A/a.nii.gz", "out", frame=3, root="/data").as_posix()
        'out/A/a_frame03_seg.nii.gz'
    """
    source = Path(image)
    folder = Path(output_dir)
    if root and source.parent.is_relative_to(root):
        folder = folder / source.parent.relative_to(root)
    return folder / f"{image_stem(source)}{'' if frame is None else f'_frame{frame:02d}'}_{postfix}.nii.gz"
