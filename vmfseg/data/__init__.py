# SPDX-License-Identifier: Apache-2.0
"""From files on disk to batches in memory: one strict reader, data sets, splits, the phantom, loaders."""

from .cache import CachedStack, VolumeCache
from .datalist import Datalist, Row, add_checksums
from .findings import DataWarning, Finding
from .interleave import InterleavedLoader
from .load import LoadVolumed
from .loader import SliceLoader
from .reader import Volume, VolumeHeader, VolumeReader, read_header, read_volume
from .slices import SliceDataset
from .volume import ReadRules

__all__ = [
    "CachedStack",
    "DataWarning",
    "Datalist",
    "Finding",
    "InterleavedLoader",
    "LoadVolumed",
    "ReadRules",
    "Row",
    "SliceDataset",
    "SliceLoader",
    "Volume",
    "VolumeCache",
    "VolumeHeader",
    "VolumeReader",
    "add_checksums",
    "read_header",
    "read_volume",
]
