# SPDX-License-Identifier: Apache-2.0
"""Data: a strict reader of scans, data sets, splits, datasets of volumes and slices, loaders."""

from .datalist import Datalist
from .experiment import prepare_experiment
from .folder import FolderDataset
from .interleave import InterleavedLoader, MixedLoader
from .load_volume import LoadVolumed
from .mnms import MNMsDataset
from .phantom_loader import PhantomLoader
from .reader import VolumeReader, read_volume
from .scgm import SCGMDataset
from .slice_loader import SliceLoader
from .slices import SliceDataset
from .splits import labeled_fraction, leave_one_domain_out
from .verify import verify_datalist
from .volume_dataset import VolumeDataset

__all__ = [
    "Datalist",
    "FolderDataset",
    "InterleavedLoader",
    "LoadVolumed",
    "MNMsDataset",
    "MixedLoader",
    "PhantomLoader",
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
