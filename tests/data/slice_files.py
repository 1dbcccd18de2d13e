# SPDX-License-Identifier: Apache-2.0
"""Small NIfTI files and rows for the tests of slices and loaders."""

import nibabel as nib
import numpy as np
from monai.transforms import Compose

from vmfseg.data import LoadVolumed
from vmfseg.transforms import slice_space_transforms

SHAPE = (24, 22, 5)


def chain(roi=32, pixdim=None, **kwargs):
    return Compose([LoadVolumed(), slice_space_transforms(pixdim, roi, **kwargs)])


def make_label(rng, shape=SHAPE):
    """Slice 0 is empty, class 3 is only in slice 2, so that presence means something."""
    label = np.zeros(shape, np.uint8)
    label[6:16, 5:15, 1:] = 1
    label[9:13, 8:12, 1:] = 2
    label[2:5, 2:5, 2] = 3
    row, column = rng.integers(6, 15, 2)
    label[row, column, 4] = 2
    return label


def write_subjects(folder, count=3, domains="AB", labeled=True, frames=None, shape=SHAPE):
    """Write one image (and label) a subject and return the rows; ``frames`` makes them 4-D and gives a row a frame."""
    rows = []
    for k in range(count):
        rng = np.random.default_rng([7, k])
        name, domain = f"s{k}", domains[k % len(domains)]
        size = shape if frames is None else (*shape, frames)
        image = rng.integers(0, 500, size).astype(np.int16)
        affine = np.diag([1.25, 1.25, 8.0, 1.0])
        nib.save(nib.Nifti1Image(image, affine), folder / f"{name}.nii.gz")
        row = {"image": str(folder / f"{name}.nii.gz"), "domain": domain, "subject": name, "annotated": None}
        if labeled:
            label = make_label(rng, shape)
            label = label if frames is None else np.repeat(label[..., None], frames, axis=3)
            nib.save(nib.Nifti1Image(label, affine), folder / f"{name}_gt.nii.gz")
            row["label"] = str(folder / f"{name}_gt.nii.gz")
        rows += [row] if frames is None else [{**row, "frame": t} for t in range(frames)]
    return rows
