# SPDX-License-Identifier: Apache-2.0
"""From files on disk to batches in memory: one strict reader, data sets, splits, the phantom, loaders."""

from .cache import CachedStack, VolumeCache
from .datalist import Datalist, Row, add_checksums
from .discover import open_datalist
from .experiment import Experiment, cache_folder, prepare_experiment
from .findings import DataWarning, Finding
from .folder import FolderDataset
from .interleave import InterleavedLoader
from .load import LoadVolumed
from .loader import SliceLoader
from .mnms import MNMsDataset
from .reader import Volume, VolumeHeader, VolumeReader, read_header, read_volume
from .scgm import FuseRatersd, SCGMDataset
from .slices import SliceDataset
from .splits import Split, labeled_fraction, leave_one_domain_out, weakly_labeled
from .verify import verify_datalist
from .volume import ReadRules

__all__ = [
    "CachedStack",
    "DataWarning",
    "Datalist",
    "Experiment",
    "Finding",
    "FolderDataset",
    "FuseRatersd",
    "InterleavedLoader",
    "LoadVolumed",
    "MNMsDataset",
    "ReadRules",
    "Row",
    "SCGMDataset",
    "SliceDataset",
    "SliceLoader",
    "Split",
    "Volume",
    "VolumeCache",
    "VolumeHeader",
    "VolumeReader",
    "add_checksums",
    "cache_folder",
    "labeled_fraction",
    "leave_one_domain_out",
    "open_datalist",
    "prepare_experiment",
    "read_header",
    "read_volume",
    "verify_datalist",
    "weakly_labeled",
]
