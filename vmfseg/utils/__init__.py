# SPDX-License-Identifier: Apache-2.0
"""What everything else stands on: the one error, the one writer, stateless seeds, argument checks."""

from .checks import check_channels, check_choice, check_divisible, check_finite, check_positive, did_you_mean
from .errors import EXIT_CODES, VmfError, find_vmf_error
from .io import atomic_path, atomic_write, read_json, sha256_bytes, sha256_file, write_json
from .manifest import build_manifest, library_versions
from .seeds import derive_seed, numpy_rng, seeded, torch_rng

__all__ = [
    "EXIT_CODES",
    "VmfError",
    "atomic_path",
    "atomic_write",
    "build_manifest",
    "check_channels",
    "check_choice",
    "check_divisible",
    "check_finite",
    "check_positive",
    "derive_seed",
    "did_you_mean",
    "find_vmf_error",
    "library_versions",
    "numpy_rng",
    "read_json",
    "seeded",
    "sha256_bytes",
    "sha256_file",
    "torch_rng",
    "write_json",
]
