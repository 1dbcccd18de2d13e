# SPDX-License-Identifier: Apache-2.0
"""PredictionEvaluator, SavePredictionHandler and SliceBatchInferer."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.data import Dataset
from monai.engines.utils import IterationEvents

from vmfseg.data import LoadVolumed
from vmfseg.engines import PredictionEvaluator, SavePredictionHandler
from vmfseg.model import Model, Predictor, SliceBatchInferer
from vmfseg.utils import VmfError


def _predictor() -> Predictor:
    """Return a predictor whose labels are known: 1 where the image is above one half."""
    network = torch.nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1))
        network.bias.copy_(torch.tensor([0.5, -0.5]))
    model = Model(
        {"_target_": "torch.nn.Conv2d", "in_channels": 1, "out_channels": 2, "kernel_size": 1},
        [{"_target_": "vmfseg.transforms.ToSliceStackd", "keys": "image"}],
        [{"_target_": "Activationsd", "keys": "pred", "sigmoid": True},
         {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}],
        {0: "background", 1: "LV"}, 1, (12, 10),
    )  # fmt: skip
    return Predictor.from_network(network, model, batch_size=2)


@pytest.fixture
def scans(tmp_path):
    """Return rows of a volume and of two frames of a cine, and their values."""
    rng = np.random.default_rng(0)
    volume, cine = rng.random((12, 10, 3), np.float32), rng.random((12, 10, 3, 2), np.float32)
    affine = np.diag([-1.5, 2.0, 8.0, 1.0])
    (tmp_path / "data" / "A").mkdir(parents=True)
    for name, array in (("A/a.nii.gz", volume), ("b.nii.gz", cine)):
        nib.save(nib.Nifti1Image(array, affine), tmp_path / "data" / name)
    rows = [{"image": str(tmp_path / "data" / "A" / "a.nii.gz")}]
    rows += [{"image": str(tmp_path / "data" / "b.nii.gz"), "frame": frame} for frame in (0, 1)]
    return rows, [volume, cine[..., 0], cine[..., 1]]


def test_every_volume_is_segmented_on_its_own_grid_and_written(scans, tmp_path):
    rows, values = scans
    saver = SavePredictionHandler(tmp_path / "out", tmp_path / "data")
    evaluator = PredictionEvaluator(Dataset(rows, LoadVolumed("image")), _predictor(), val_handlers=[saver])
    seen, events = [], []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(dict(engine.state.output)))
    for event in (IterationEvents.FORWARD_COMPLETED, IterationEvents.MODEL_COMPLETED):
        evaluator.add_event_handler(event, lambda _engine, name: events.append(name), event.name)
    evaluator.run()
    assert events == ["FORWARD_COMPLETED", "MODEL_COMPLETED"] * 3
    names = ["A/a_seg.nii.gz", "b_frame00_seg.nii.gz", "b_frame01_seg.nii.gz"]
    assert saver.written == [tmp_path / "out" / name for name in names]
    assert saver.describe() == f"3 label maps in {tmp_path / 'out'}"
    for output, array, path in zip(seen, values, saver.written, strict=True):
        assert output["pred"].shape == (1, 12, 10, 3)
        np.testing.assert_array_equal(output["pred"][0].numpy(), array > 0.5)
        voxel_ml = 1.5 * 2.0 * 8.0 / 1000
        assert output["frame"].volumes["LV"] == pytest.approx((array > 0.5).sum() * voxel_ml)
        label = nib.load(path)
        np.testing.assert_array_equal(np.asarray(label.dataobj), array > 0.5)
        np.testing.assert_array_equal(label.affine, np.diag([-1.5, 2.0, 8.0, 1.0]))
        assert label.get_data_dtype() == np.uint8


def test_files_that_are_there_are_replaced_only_if_they_may_be(scans, tmp_path):
    rows, _ = scans
    for overwrite in (True, True, False):
        saver = SavePredictionHandler(tmp_path / "out", overwrite=overwrite)
        evaluator = PredictionEvaluator(Dataset(rows[:1], LoadVolumed("image")), _predictor(), val_handlers=[saver])
        if overwrite:
            evaluator.run()
        else:
            with pytest.raises(VmfError, match="a_seg"):
                evaluator.run()


def test_a_predictor_may_come_later_but_must_come(scans):
    rows, _ = scans
    evaluator = PredictionEvaluator(Dataset(rows[:1], LoadVolumed("image")))
    with pytest.raises(ValueError, match="predictor must be set before the engine runs, got None"):
        evaluator.run()
    evaluator = PredictionEvaluator(Dataset(rows[:1], LoadVolumed("image")))
    evaluator.predictor = _predictor()
    evaluator.run()
    assert evaluator.state.iteration == 1


# --- SliceBatchInferer


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 100])
def test_the_result_does_not_depend_on_the_batch_size(vmf_net, batch_size):
    net = vmf_net().eval()
    volume = torch.rand(2, 1, 16, 16, 5, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        got = SliceBatchInferer(batch_size)(volume, net)
        for b in range(2):
            for d in range(5):  # slice d of volume b alone is slice d of the result
                alone = net(volume[b : b + 1, ..., d])[0]
                torch.testing.assert_close(got[b, ..., d], alone, rtol=1e-4, atol=1e-5)
    assert got.shape == (2, 4, 16, 16, 5)


def test_parts_of_a_volume_keep_the_order_of_slices(vmf_net):
    net = vmf_net(presence="masks", presence_channels=2).eval()
    volume = torch.rand(1, 1, 64, 64, 3, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        parts = SliceBatchInferer(2)(volume, net, return_parts=True)
        single = net(volume[..., 1], return_parts=True)
    shapes = {name: tuple(value.shape) for name, value in parts._asdict().items() if value is not None}
    assert shapes["activations"] == (1, 4, 32, 32, 3)
    assert shapes["presence"] == (1, 3, 3)
    assert shapes["kernels"] == single.kernels.shape
    for name in ("logits", "features", "activations", "reconstruction", "presence"):
        torch.testing.assert_close(getattr(parts, name)[..., 1], getattr(single, name), rtol=1e-4, atol=1e-5)


def test_a_batch_of_slices_is_left_alone(vmf_net):
    net, x = vmf_net().eval(), torch.rand(3, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(SliceBatchInferer(2)(x, net), net(x))


def test_bad_arguments_are_named(vmf_net):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        SliceBatchInferer(0)
    with pytest.raises(ValueError, match=r"inputs must have shape BCHWD or BCHW, got \(16, 16\)"):
        SliceBatchInferer()(torch.zeros(16, 16), vmf_net())
