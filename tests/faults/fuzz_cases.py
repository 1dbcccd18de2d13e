# SPDX-License-Identifier: Apache-2.0
"""Structure-aware mutations: good files whose fields, members, lines or entries are changed."""

from __future__ import annotations

import functools
import gzip
import json
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
from hypothesis import strategies as st
from test_hostile_headers import MHA, NRRD

#: Fields of NIfTI-1: offset, format, how many.
NIFTI1 = {
    "sizeof_hdr": (0, "i", 1), "dim": (40, "h", 8), "datatype": (70, "h", 1), "bitpix": (72, "h", 1),
    "pixdim": (76, "f", 8), "vox_offset": (108, "f", 1), "scl_slope": (112, "f", 1), "scl_inter": (116, "f", 1),
    "xyzt_units": (123, "B", 1), "qform_code": (252, "h", 1), "sform_code": (254, "h", 1), "quatern": (256, "f", 6),
    "srow": (280, "f", 12), "magic": (344, "B", 4),
}  # fmt: skip
NIFTI2 = {
    "sizeof_hdr": (0, "i", 1), "magic": (4, "B", 8), "datatype": (12, "h", 1), "bitpix": (14, "h", 1),
    "dim": (16, "q", 8), "pixdim": (104, "d", 8), "vox_offset": (168, "q", 1), "scl_slope": (176, "d", 1),
    "scl_inter": (184, "d", 1), "qform_code": (344, "i", 1), "sform_code": (348, "i", 1), "quatern": (352, "d", 6),
    "srow": (400, "d", 12), "xyzt_units": (500, "i", 1),
}  # fmt: skip
WHOLE = [0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 128, 255, 256, 348, 512, 540, 768, 1024, 1280, 32767, 65535, 2**31 - 1]
REAL = [0.0, 1.0, -1.0, 0.5, 1e-3, 2.0, 352.0, 900.0, 1e6, 1e-30, 1e30, 3e38, float("nan"), float("inf"), -0.0]
TEXTS = [
    "", "0", "1", "-1", "3", "4", "-5", "100", "999999999", "nan", "inf", "1e400", "x", "True", "False", "LOCAL",
    "none", "1 1 8", "-1 1 8", "16 12 3", "0 0 0", "16 12 3 1", "999999999 999999999 999999999", "MET_UCHAR",
    "(1,0,0) (0,1,0) (0,0,8)", "(1,0,0) (0,1,0) none", "(0,0,0) (0,1,0) (0,0,8)", "MET_DOUBLE", "uint8", "double",
    "int64", "big", "gzip", "hex", "RAS", "scanner-xyz", '"cm" "cm" "cm"', "list domain domain",
    "domain domain domain time",
]  # fmt: skip
ENTRIES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["$1", "@x", "%y", "../../x.nii", "/etc/passwd", "x" * 5000, "\x1b[2J", "1" * 5001]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def _voxels(dtype: str = "<i2") -> bytes:
    return np.random.default_rng(0).integers(0, 200, (16, 12, 3)).astype(dtype).tobytes(order="F")


@functools.cache
def _nifti(kind: type) -> bytes:
    array = np.frombuffer(_voxels(), "<i2").reshape((16, 12, 3), order="F")
    image = kind(array, np.diag([1.25, 1.25, 8.0, 1.0]))
    image.set_qform(image.affine, 1)
    image.set_sform(image.affine, 1)
    return bytes(image.to_bytes())


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Cut, lengthen or flip some bytes of a content, most often nothing."""
    data = bytearray(content)
    way = draw(st.sampled_from(["", "", "", "cut", "longer", "flip", "zero"]))
    if way == "cut":
        del data[draw(st.integers(0, max(0, len(data) - 1))) :]
    elif way == "longer":
        data += draw(st.binary(min_size=1, max_size=40))
    elif way and data:
        for place in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
            data[place] = data[place] ^ draw(st.integers(1, 255)) if way == "flip" else 0
    return bytes(data)


@st.composite
def nifti_files(draw: Any) -> tuple[Any, ...]:
    """A NIfTI file with other values in some fields."""
    fields, kind = draw(st.sampled_from([(NIFTI1, nib.Nifti1Image), (NIFTI2, nib.Nifti2Image)]))
    data = bytearray(_nifti(kind))
    for name in draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=3)):
        offset, form, count = fields[name]
        size = struct.calcsize(form)
        index = draw(st.integers(0, count - 1))
        if form in "fd":
            value: Any = draw(st.sampled_from(REAL) | st.floats(width=32))
            packed = struct.pack("<" + form, value)
        else:
            whole = draw(st.sampled_from(WHOLE) | st.integers(0, 2 ** (8 * size) - 1))
            packed = ((-whole if draw(st.booleans()) else whole) % 2 ** (8 * size)).to_bytes(size, "little")
        data[offset + index * size : offset + (index + 1) * size] = packed
    return "image", "a.nii", draw(damaged(bytes(data)))


@st.composite
def gzip_files(draw: Any) -> tuple[Any, ...]:
    """A NIfTI file in gzip members that are cut, doubled, wrong, empty, or far longer than declared."""
    content = _nifti(nib.Nifti1Image)
    cut = draw(st.integers(0, len(content)))
    parts = draw(st.sampled_from([[content], [content[:cut], content[cut:]], [b"", content], [content, b""],
                                  [content, content], [content + bytes(4 << 20)], [content[:cut]]]))  # fmt: skip
    members = [bytearray(gzip.compress(part, draw(st.sampled_from([0, 1, 9])), mtime=0)) for part in parts]
    member = members[draw(st.integers(0, len(members) - 1))]
    way = draw(st.sampled_from(["", "", "crc", "size", "flags", "method", "raw"]))
    if way in ("crc", "size"):
        place = len(member) - (8 if way == "crc" else 4)
        member[place : place + 4] = struct.pack("<I", draw(st.integers(0, 2**32 - 1)))
    elif way in ("flags", "method"):
        member[3 if way == "flags" else 2] = draw(st.integers(0, 255))
    elif way == "raw":
        member[10:] = zlib.compress(content)
    return "image", draw(st.sampled_from(["a.nii.gz", "a.nii"])), draw(damaged(b"".join(members)))


@st.composite
def text_headers(draw: Any, which: str) -> tuple[Any, ...]:
    """An NRRD or MetaImage file with fields changed, added, left out or in another order."""
    base = dict(NRRD if which == "nrrd" else MHA)
    base |= {"sizes": "16 12 3"} if which == "nrrd" else {"DimSize": "16 12 3"}
    more = {
        "nrrd": ["space units", "spacings", "old min", "line skip", "byte skip", "data file", "units"],
        "mha": ["HeaderSize", "DistanceUnits", "ElementNumberOfChannels", "CenterOfRotation", "Position",
                "ElementToIntensityFunctionSlope", "CompressedDataSize"],
    }[which]  # fmt: skip
    lines = list(base.items())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(lines) - 1))
        way = draw(st.sampled_from(["value", "value", "value", "drop", "twice", "new", "key"]))
        text = draw(st.sampled_from(TEXTS) | st.text(max_size=12))
        key, value = lines[place]
        if way == "value":
            lines[place] = (key, text)
        elif way == "drop" and len(lines) > 1:
            del lines[place]
        elif way == "twice":
            lines.insert(place, (key, draw(st.sampled_from([value, text]))))
        elif way == "new":
            lines.insert(place, (draw(st.sampled_from(more)), text))
        else:
            lines[place] = (text, value)
    packed = draw(st.sampled_from([_voxels(), zlib.compress(_voxels()), gzip.compress(_voxels(), mtime=0)]))
    head = "".join(f"{key}: {value}\n" if which == "nrrd" else f"{key} = {value}\n" for key, value in lines)
    head = f"NRRD000{draw(st.integers(1, 6))}\n{head}\n" if which == "nrrd" else head
    return "image", f"a.{which}", draw(damaged(head.encode("utf-8", "surrogatepass") + packed))


@functools.cache
def _dicom_files() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(3):
            array = np.random.default_rng(number).integers(0, 99, (1, 12, 16)).astype(np.int16)
            image = itk.image_from_array(array)
            image.SetSpacing([1.25, 1.25, 8.0])
            image.SetOrigin([0.0, 0.0, 8.0 * number])
            tags = image.GetMetaDataDictionary()
            for key, value in {"0008|0060": "MR", "0020|000d": "1.2.3", "0020|000e": "1.2.3.4",
                               "0020|0013": str(number), "0020|0032": f"0\\0\\{8 * number}",
                               "0020|0037": "1\\0\\0\\0\\1\\0"}.items():  # fmt: skip
                tags[key] = value
            io = itk.GDCMImageIO.New()
            io.KeepOriginalUIDOn()
            writer = itk.ImageFileWriter[type(image)].New(Input=image, FileName=str(Path(folder) / "a.dcm"))
            writer.SetImageIO(io)
            writer.Update()
            files.append((Path(folder) / "a.dcm").read_bytes())
    return tuple(files)


@st.composite
def dicom_series(draw: Any) -> tuple[Any, ...]:
    """A series with a file that is damaged, left out or there twice."""
    files = list(_dicom_files())
    place = draw(st.integers(0, 2))
    way = draw(st.sampled_from(["damage", "damage", "damage", "drop", "twice"]))
    if way == "damage":
        data = bytearray(files[place])
        for at in draw(st.lists(st.integers(128, len(data) - 1), min_size=1, max_size=6)):
            data[at] = draw(st.integers(0, 255))
        files[place] = draw(damaged(bytes(data)))
    elif way == "drop":
        del files[place]
    else:
        files.append(files[place])
    return "series", files


DATALIST = {
    "format": "vmfseg-datalist-1", "name": "x", "root": ".", "labels": {"0": "background", "1": "LV"},
    "rows": [{"image": "a.nii", "label": "b.nii", "domain": "A", "subject": "s", "frame": 1, "annotated": [1]}],
}  # fmt: skip
MANIFEST = {
    "format": "vmfseg-model-1", "name": "x", "version": "1", "labels": {"0": "background", "1": "LV"},
    "input": {"shape": [32, 32], "channels": 1}, "network": {"_target_": "vmfseg.networks.VMFNet"},
    "preprocessing": [{"_target_": "vmfseg.transforms.ToSliceStackd", "keys": "image"}],
    "postprocessing": [{"_target_": "AsDiscreted", "keys": "pred", "argmax": True}],
}  # fmt: skip
METRICS = {
    "format": "vmfseg-metrics-1", "protocol": "clean", "mean_dice": 0.5, "labels": {"1": "LV"}, "definitions": {},
    "policy": {}, "overall": {"classes": {}}, "domains": {"A": {"classes": {}}},
}  # fmt: skip


@st.composite
def json_files(draw: Any) -> tuple[Any, ...]:
    """A file of ours with entries replaced, left out or added."""
    which = draw(st.sampled_from(["datalist", "manifest", "metrics"]))
    value = json.loads(json.dumps({"datalist": DATALIST, "manifest": MANIFEST, "metrics": METRICS}[which]))
    for _ in range(draw(st.integers(1, 2))):
        node: Any = value
        while isinstance(node, dict | list) and node:
            key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or draw(st.booleans()):
                break
            node = node[key]
        if isinstance(node, dict | list) and node:
            if isinstance(node, dict) and draw(st.booleans()):
                node.pop(key)
                node[draw(st.sampled_from([key, "x", "_target_"]))] = draw(ENTRIES)
            else:
                node[key] = draw(ENTRIES)
    return "json", which, draw(damaged(json.dumps(value).encode()))


@st.composite
def csv_files(draw: Any) -> tuple[Any, ...]:
    """A table with other cells, separators, quotes and line ends."""
    cells = st.sampled_from(["a.nii", "A", "s1", "", "1", "-1", "1;2", "x" * 300, '"', "../a.nii", "1e400", "\x00"])
    header = draw(st.permutations(["image", "domain", "subject", "label", "frame", "annotated", "slices", "split"]))
    rows = draw(st.lists(st.lists(cells | st.text(max_size=6), max_size=9), max_size=4))
    split, end = draw(st.sampled_from([",", ";", "\t"])), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = end.join(split.join(row) for row in [list(header), *rows])
    return "csv", draw(damaged(text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig"])), "surrogatepass")))


#: Strategy and share of the cases, in hundredths.
KINDS = {
    "nifti": (nifti_files(), 35), "gzip": (gzip_files(), 15), "nrrd": (text_headers("nrrd"), 15),
    "mha": (text_headers("mha"), 15), "json": (json_files(), 12), "csv": (csv_files(), 6), "dicom": (dicom_series(), 2),
}  # fmt: skip
