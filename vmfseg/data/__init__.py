# SPDX-License-Identifier: Apache-2.0
"""Data: a strict reader of scans, data sets, splits, datasets of volumes and slices, loaders."""

from .datalist import Datalist, Row
from .experiment import Experiment, prepare_experiment
from .folder import FolderDataset
from .interleave import InterleavedLoader
from .load_volume import LoadVolumed
from .mnms import MNMsDataset
from .reader import VolumeReader, read_volume
from .scgm import SCGMDataset
from .slice_loader import SliceLoader
from .slices import SliceDataset
from .splits import labeled_fraction, leave_one_domain_out
from .verify import verify_datalist
from .volume_dataset import VolumeDataset

__all__ = [
    "Datalist",
    "Experiment",
    "FolderDataset",
    "InterleavedLoader",
    "LoadVolumed",
    "MNMsDataset",
    "Row",
    "SCGMDataset",
    "SliceDataset",
    "SliceLoader",
    "VolumeDataset",
    "VolumeReader",
    "labeled_fraction",
    "leave_one_domain_out",
    "prepare_experiment",
    "read_volume",
    "verify_datalist",
]
