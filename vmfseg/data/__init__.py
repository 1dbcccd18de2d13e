# SPDX-License-Identifier: Apache-2.0
"""From files on disk to batches in memory: one strict reader, data sets, splits, the phantom, loaders."""

from .datalist import Datalist, Row, add_checksums
from .findings import DataWarning, Finding
from .load import LoadVolumed
from .reader import Volume, VolumeHeader, VolumeReader, read_header, read_volume
from .volume import ReadRules

__all__ = [
    "DataWarning",
    "Datalist",
    "Finding",
    "LoadVolumed",
    "ReadRules",
    "Row",
    "Volume",
    "VolumeHeader",
    "VolumeReader",
    "add_checksums",
    "read_header",
    "read_volume",
]
