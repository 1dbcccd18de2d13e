# SPDX-License-Identifier: Apache-2.0
"""A DICOM series on disk, written by pydicom element by element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

MR = "1.2.840.10008.5.1.4.1.1.4"


def write_series(
    folder: Path,
    voxels: np.ndarray,
    rows_direction: np.ndarray,
    columns_direction: np.ndarray,
    origin: tuple[float, float, float] = (-40.0, 25.0, 10.0),
    spacing: tuple[float, float] = (1.5, 1.25),
    step: float = 8.0,
    leave_out: tuple[int, ...] = (),
) -> Path:
    """Write ``voxels`` ``(rows, columns, slices[, frames])`` and return the folder.

    Args:
        folder: to make.
        voxels: uint16.
        rows_direction: along a row (ImageOrientationPatient, first three), LPS.
        columns_direction: down a column.
        origin: of the first pixel, LPS.
        spacing: between rows and between columns.
        step: between slices.
        leave_out: slices that are not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    normal = np.cross(rows_direction, columns_direction)
    frames = voxels if voxels.ndim == 4 else voxels[..., None]
    study, series, frame_of_reference = (generate_uid(entropy_srcs=[str(folder), what]) for what in "abc")
    number = 0
    for k in range(frames.shape[2]):
        for t in range(frames.shape[3]):
            number += 1
            if k in leave_out:
                continue
            meta = FileMetaDataset()
            meta.MediaStorageSOPClassUID = MR
            meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[series, str(number)])
            meta.TransferSyntaxUID = ExplicitVRLittleEndian
            # names in an order that is not that of the slices
            path = folder / f"IM{(7 * number) % 101:03d}_{number}.dcm"
            image = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
            image.SOPClassUID, image.SOPInstanceUID = MR, meta.MediaStorageSOPInstanceUID
            image.StudyInstanceUID, image.SeriesInstanceUID = study, series
            image.FrameOfReferenceUID, image.PositionReferenceIndicator = frame_of_reference, ""
            image.PatientID, image.PatientName = "p1", "Phantom^A"
            image.PatientBirthDate, image.PatientSex, image.AccessionNumber = "", "", ""
            image.StudyDate, image.StudyTime, image.StudyID = "20200101", "120000", "1"
            image.ReferringPhysicianName = ""
            image.Modality, image.SeriesNumber, image.InstanceNumber = "MR", 7, number
            image.TriggerTime = str(40 * t)
            image.ImageOrientationPatient = [float(f"{x:.8f}") for x in (*rows_direction, *columns_direction)]
            image.ImagePositionPatient = [float(f"{x:.6f}") for x in np.asarray(origin) + k * step * normal]
            image.PixelSpacing, image.SliceThickness = list(spacing), step
            image.Rows, image.Columns = frames.shape[:2]
            image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
            image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, 16, 15, 0
            image.PixelData = np.ascontiguousarray(frames[:, :, k, t].astype("<u2")).tobytes()
            pydicom.dcmwrite(path, image, enforce_file_format=True)
    return folder
