# SPDX-License-Identifier: Apache-2.0
"""Label maps of a DICOM series as DICOM SEG, for archives and viewers of hospitals."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg import __version__
from vmfseg.data.dicom import series_files
from vmfseg.model.prediction import Prediction
from vmfseg.utils import VmfError
from vmfseg.utils.io import sha256_bytes
from vmfseg.utils.packages import require_package

__all__ = ["SEG_NAMES", "dicom_segs", "require_dicom"]

#: Endings of the files: of a single volume, and of the phases of a cine.
SEG_NAMES = ("seg.dcm", "ED_seg.dcm", "ES_seg.dcm")
#: SNOMED CT codes of class names, as pydicom's dictionary calls them; other classes are anatomical structures.
_CODES = {
    "LV": "LeftVentricle",
    "MYO": "LeftVentricleMyocardium",
    "RV": "RightVentricle",
    "GM": "SpinalCordGrayMatter",
    "WM": "SpinalCordWhiteMatter",
}
_SERIES_NUMBER = 9800


def require_dicom(images: list[Path]) -> None:
    """Refuse DICOM SEG for what is no DICOM series, and say which package is missing, before anything is segmented.

    Raises:
        VmfError: VMF177, VMF530.
    """
    require_package("highdicom")
    for image in images:
        if not image.is_dir():
            raise VmfError("VMF177", subject=str(image), found=f"a {''.join(image.suffixes[-2:]) or 'plain'} file")


def dicom_segs(prediction: Prediction, labels: Mapping[int, str]) -> dict[str, bytes]:
    """Return DICOM SEG objects of a prediction, by the ending of their file's name.

    Each has a binary segment for every class and a frame for every slice of the series, empty or not, at the slice's
    own position and orientation, and refers to the slices by their UIDs; patient and study are those of the series. Of
    a cine there is one object for end-diastole and one for end-systole, or one for the first segmented frame where the
    phases are not known. The UIDs follow from the slices and the labels.

    Args:
        prediction: of a folder with a DICOM series.
        labels: class names by value.

    Raises:
        VmfError: VMF530 without highdicom, VMF241 for a series that is not complete.
    """
    highdicom, pydicom = require_package("highdicom"), require_package("pydicom")
    stacks = series_files(prediction.scan.header.path)
    volume = prediction.labels.reshape(prediction.scan.header.shape)
    phases = {p: n for p, n in prediction.quality.get("phases", {}).items() if n in prediction.frames}
    wanted = {f"{phase}_seg.dcm": number for phase, number in phases.items()} or {"seg.dcm": prediction.frames[0]}
    found = {}
    for position, (ending, number) in enumerate(sorted(wanted.items())):
        images = [pydicom.dcmread(stack[number], stop_before_pixels=True) for stack in stacks]
        frame = volume[..., number] if volume.ndim == 4 else volume
        pixels = np.ascontiguousarray(frame.transpose(2, 1, 0))  # slices, rows, columns
        sources = [str(image.SOPInstanceUID) for image in images]
        identity = [__version__, sha256_bytes(pixels.tobytes()), *sources]
        uids = [pydicom.uid.generate_uid(entropy_srcs=[what, *identity]) for what in ("series", "object")]
        phase = ending.removesuffix("seg.dcm").rstrip("_")
        seg = highdicom.seg.Segmentation(
            source_images=images,
            pixel_array=pixels,
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=_descriptions(highdicom, pydicom, prediction, labels),
            series_instance_uid=uids[0],
            series_number=_SERIES_NUMBER + position,
            sop_instance_uid=uids[1],
            instance_number=1,
            manufacturer="vmfseg",
            manufacturer_model_name=str(prediction.quality.get("bundle") or "vmfseg")[:64],
            software_versions=__version__,
            device_serial_number="none",
            omit_empty_frames=False,
            series_description=f"vmfseg {prediction.quality.get('bundle', '')} {phase}".strip()[:64],
        )
        stream = io.BytesIO()
        seg.save_as(stream, enforce_file_format=True)
        found[ending] = stream.getvalue()
    return found


def _descriptions(highdicom: Any, pydicom: Any, prediction: Prediction, labels: Mapping[int, str]) -> list[Any]:
    codes = pydicom.sr.codedict.codes
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="vmfseg",
        version=str(prediction.quality.get("bundle_version") or __version__),
        family=codes.DCM.ArtificialIntelligence,
    )
    return [
        highdicom.seg.SegmentDescription(
            segment_number=value,
            segment_label=name[:64],
            segmented_property_category=codes.SCT.AnatomicalStructure,
            segmented_property_type=getattr(codes.SCT, _CODES.get(name.upper(), "AnatomicalStructure")),
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for value, name in sorted(labels.items())
        if value
    ]
