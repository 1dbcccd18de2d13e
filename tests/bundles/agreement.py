# SPDX-License-Identifier: Apache-2.0
"""Train a bundle on two batches, then compare ``segment`` with what the evaluation stage scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import monai.bundle
import nibabel as nib
import numpy as np
import pytest
from conftest import BUNDLES

from vmfseg.data import LoadVolumed, MNMsDataset, SCGMDataset
from vmfseg.metrics import SegmentationScores
from vmfseg.model import Predictor, segment_files
from vmfseg.model.inputs import plan_jobs
from vmfseg.utils import read_json


def train(folder: Path, data: Path, name: str = "vmfnet_mnms", **overrides: Any) -> Path:
    """Train two batches, in this process, and keep the label maps that the evaluation stage scored."""
    monai.bundle.run(
        run_id="training",
        config_file=str(BUNDLES / name / "configs" / "train.json"),
        logging_file=False,
        **{
            "bundle_root": str(BUNDLES / name), "dataset_dir": str(data), "output_dir": str(folder),
            "ckpt_dir": str(folder / "models"), "device": "cpu", "max_iterations": 2, "epoch_length": 2,
            "labeled_fraction": 1.0, "calibration_slices": 2, "calibration::stage::max_volumes": 2, "image_size": 64,
            "evaluation::evaluator::val_handlers": [
                {"_target_": "vmfseg.handlers.ScoresHandler", "scores": "@evaluation::scores"},
                {"_target_": "vmfseg.engines.SavePredictionHandler", "output_dir": str(folder / "scored"),
                 "data_root_dir": str(data)}],
            **overrides,
        },
    )  # fmt: skip
    return folder


def target_rows(name: str, data: Path) -> list[dict[str, Any]]:
    """Return the rows of the unseen domain of a bundle."""
    dataset, target = (SCGMDataset(data), "site4") if name.endswith("_scgm") else (MNMsDataset(data), "D")
    return [row for row in dataset.datalist().to_dicts() if row["domain"] == target and row.get("label")]


def check_agreement(folder: Path, data: Path, name: str = "vmfnet_mnms") -> Predictor:
    """Compare ``segment`` and a new scoring with the evaluation stage: every voxel and every figure."""
    predictor = Predictor.from_bundle(folder, "cpu")
    scores = SegmentationScores({int(k): v for k, v in predictor.labels.items()})
    rows = target_rows(name, data)
    images = {row["image"] for row in rows}
    results = list(segment_files(predictor, plan_jobs(images, folder / "segmented")))
    assert {result.status for result in results} == {"written"}
    for row in rows:
        stem = Path(row["image"]).name.removesuffix(".nii.gz")
        frame = row.get("frame")
        place = stem if frame is None else f"{stem}_frame{frame:02d}"
        ours = np.asarray(nib.load(next((folder / "segmented").rglob(f"{stem}_seg.nii.gz"))).dataobj)
        theirs = nib.load(next((folder / "scored").rglob(f"{place}_seg.nii.gz")))
        labels = ours if frame is None else ours[..., frame]
        assert np.array_equal(labels, np.asarray(theirs.dataobj))
        plain = {key: value for key, value in row.items() if value is not None}
        truth = LoadVolumed(num_classes=len(predictor.labels))(plain)["label"][0].numpy()
        scores.update(
            labels, truth, spacing=theirs.header.get_zooms()[:3], subject=row["subject"], domain=row["domain"],
            **{key: row[key] for key in ("phase", "frame") if row.get(key) is not None},
        )  # fmt: skip
    written = read_json(folder / "metrics.json")
    assert scores.compute()["mean_dice"] == pytest.approx(written["mean_dice"], abs=1e-9)
    return predictor
