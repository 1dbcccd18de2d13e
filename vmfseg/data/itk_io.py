# SPDX-License-Identifier: Apache-2.0
"""NRRD and MetaImage reader: strict headers, voxels counted.

What ITK does with missing data depends on the format (an error, a line on the terminal, or zeros), and its parsers of
headers can be crashed; so both are read here. ITK reads DICOM alone.
"""

from __future__ import annotations

import math

import numpy as np

from vmfseg.data.findings import Finding
from vmfseg.data.mha_header import parse_mha
from vmfseg.data.nrrd_header import parse_nrrd
from vmfseg.data.payload import MAX_DEFLATE_RATIO, check_file, inflate_exactly, read_exactly
from vmfseg.data.volume import ReadRules, Stored, VolumeHeader, check_grid, check_shape
from vmfseg.utils import VmfError
from vmfseg.utils.memory import check_memory

__all__ = ["read_itk", "read_itk_header"]


def read_itk_header(path: str, rules: ReadRules) -> VolumeHeader:
    """Read and check the header of a .nrrd or .mha file; no voxel is touched.

    Raises:
        VmfError: VMF201 to VMF241, see the table of the reader.
    """
    return _inspect(path, rules)[0]


def read_itk(path: str, rules: ReadRules) -> Stored:
    """Read a .nrrd or .mha file, header and all voxels.

    Raises:
        VmfError: VMF201 to VMF241, see the table of the reader.
    """
    header, start, encoding = _inspect(path, rules)
    voxels = math.prod(header.shape)
    size = voxels * header.dtype.itemsize
    held = (check_file(path) - start) * (1 if encoding == "raw" else MAX_DEFLATE_RATIO)
    if size > held:
        raise VmfError(
            "VMF211" if encoding == "raw" else "VMF214",
            subject=path,
            rule="the file holds fewer voxels than its header declares (truncated)",
            found=f"at most {held} of {size} bytes",
            fix="copy or download the file again",
        )
    check_memory(path, voxels, voxels * (header.dtype.itemsize + 8), rules.max_voxels)
    if encoding == "zlib":
        buffer = inflate_exactly(path, start=start, size=size)
    else:
        buffer = read_exactly(path, offset=0, size=size, compressed=encoding == "gzip", start=start)
    return Stored(header, np.frombuffer(buffer, dtype=header.dtype).reshape(header.shape, order="F"))


def _inspect(path: str, rules: ReadRules) -> tuple[VolumeHeader, int, str]:
    check_file(path)
    declared = (parse_nrrd if path.lower().endswith(".nrrd") else parse_mha)(path)
    shape, findings = check_shape(path, declared.sizes)
    ortho, notes = check_grid(path, declared.affine, shape, rules, "geometry")
    findings += notes
    if declared.place:
        text = f"no {declared.place} in the header; voxel sizes are believed, axes are taken as L, P, S"
        findings.append(Finding("warning", "VMF225", path, text, path))
    header = VolumeHeader(
        path, shape, ortho, declared.affine, declared.dtype, declared.slope, declared.inter, findings=tuple(findings)
    )
    return header, declared.start, declared.encoding
