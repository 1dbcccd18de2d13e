# SPDX-License-Identifier: Apache-2.0
"""Utilities: the error class, atomic writing of files, stateless seeds, checks of arguments."""

from .checks import check_choice, did_you_mean
from .errors import VmfError
from .io import atomic_path, atomic_write, read_json, sha256_file, write_json
from .seeds import derive_seed, numpy_rng, seeded, torch_rng

__all__ = [
    "VmfError",
    "atomic_path",
    "atomic_write",
    "check_choice",
    "derive_seed",
    "did_you_mean",
    "numpy_rng",
    "read_json",
    "seeded",
    "sha256_file",
    "torch_rng",
    "write_json",
]
