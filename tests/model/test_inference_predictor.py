# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Invertd

from vmfseg.data import LoadVolumed
from vmfseg.model import SliceBatchInferer
from vmfseg.model.predictor import Predictor
from vmfseg.transforms import slice_space_transforms
from vmfseg.transforms.organ import largest_part

ORIENTATIONS = [
    np.array([[axis, flip] for axis, flip in zip(order, flips, strict=True)], dtype=float)
    for order in itertools.permutations(range(3))
    for flips in itertools.product((1, -1), repeat=3)
]


@pytest.fixture(scope="module")
def predictor(bundle):
    return Predictor.from_bundle(bundle, device="cpu")


def rotation() -> np.ndarray:
    a, b = np.radians(25), np.radians(-40)
    one = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    other = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    return one @ other


def assert_same_header(output, given):
    ours, theirs = output.header, given.header
    for name in ("dim", "pixdim", "qform_code", "sform_code", "xyzt_units", "srow_x", "srow_y", "srow_z",
                 "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"):  # fmt: skip
        assert np.array_equal(ours[name], theirs[name]), name
    assert output.get_data_dtype() == np.uint8
    assert output.dataobj.slope == 1
    assert output.dataobj.inter == 0


def on_disk(image, folder, name):
    nib.save(image, folder / name)
    return nib.load(folder / name)


def test_labels_are_those_of_the_plain_network_through_monais_own_inverse(predictor, network, save_scan):
    path = save_scan(shape=(40, 33, 4))  # larger than the network's slices along one axis: crop and pad
    chain = slice_space_transforms(2.0, 32, keys="image")
    row = chain(LoadVolumed("image")({"image": str(path)}))
    with torch.no_grad():
        row["pred"] = MetaTensor(SliceBatchInferer(4)(row["image"][None], network)[0].sigmoid())
    native = Invertd("pred", chain, "image", nearest_interp=False)(row)["pred"]
    expected = native.argmax(dim=0).numpy()
    labels = predictor(path).labels
    assert set(np.unique(expected)) == {0, 1, 2, 3}  # the comparison must be about something
    assert (labels != expected).mean() < 1e-3  # folding changes the last bits of near ties


def test_a_step_that_keeps_the_organ_changes_labels_and_no_signal(predictor, network, blobs):
    model = predictor.model
    step = {"_target_": "vmfseg.transforms.KeepOrgand", "keys": "pred"}
    careful = Predictor.from_network(network, replace(model, postprocessing=[*model.postprocessing, step]))
    image = MetaTensor(torch.from_numpy(blobs((40, 40, 5)))[None].float(), affine=np.diag([2.0, 2.0, 9.0, 1.0]))
    plain, kept = (one.predict_frame(image) for one in (predictor, careful))
    expected = largest_part(plain.labels)
    assert (expected != plain.labels).any()  # the comparison must be about something
    np.testing.assert_array_equal(kept.labels, expected)
    assert kept.signals["connected"] == plain.signals["connected"]
    assert kept.volumes != plain.volumes


@pytest.mark.parametrize("oblique", [False, True], ids=["straight", "oblique"])
def test_48_orientations_give_the_same_labels_and_keep_their_headers(predictor, blobs, tmp_path, oblique):
    directions = rotation() if oblique else np.eye(3)
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = directions * [2.0, 2.0, 9.0], [-20.0, 31.0, 7.5]
    image = nib.Nifti1Image(blobs((30, 26, 3)), affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(affine, 1)
    image.set_sform(affine, 1)
    reference = predictor(image).get_fdata()
    assert len(np.unique(reference)) > 2
    for number, orientation in enumerate(ORIENTATIONS):
        turned = image.as_reoriented(orientation)
        turned.set_qform(turned.affine, 1)
        turned.set_sform(turned.affine, 2)
        given = on_disk(turned, tmp_path, f"{number}.nii")
        output = on_disk(predictor(given), tmp_path, f"{number}_seg.nii.gz")
        assert_same_header(output, given)
        expected = nib.orientations.apply_orientation(reference, orientation)
        assert np.array_equal(output.get_fdata(), expected), orientation


def test_resampled_scans_agree_in_every_orientation(predictor, blobs):
    image = nib.Nifti1Image(blobs((40, 36, 3)), np.diag([1.3, 1.3, 9.0, 1.0]))
    reference = predictor(image).get_fdata()
    for orientation in ORIENTATIONS[::7]:
        output = predictor(image.as_reoriented(orientation)).get_fdata()
        assert np.array_equal(output, nib.orientations.apply_orientation(reference, orientation))


def test_cine_keeps_its_time_axis_and_its_frames_equal_the_3d_runs(predictor, blobs, tmp_path):
    cine = nib.Nifti1Image(blobs((30, 26, 3, 4)), np.diag([1.3, 1.3, 8.0, 1.0]))
    cine.header.set_zooms((1.3, 1.3, 8.0, 0.031))
    cine.header.set_xyzt_units("mm", "sec")
    given = on_disk(cine, tmp_path, "cine.nii.gz")
    output = on_disk(predictor(given), tmp_path, "out.nii.gz")
    assert_same_header(output, given)
    assert output.header["pixdim"][4] == np.float32(0.031)
    for k in range(4):
        alone = predictor(nib.Nifti1Image(np.asanyarray(cine.dataobj)[..., k], cine.affine))
        assert np.array_equal(output.get_fdata()[..., k], alone.get_fdata())


def test_chosen_frames_only(predictor, save_scan):
    path = save_scan(shape=(30, 26, 2, 5))
    everything = predictor(path).labels
    some = predictor.predict(path, "3,1")
    assert some.frames == (1, 3)
    assert np.array_equal(some.labels[..., [1, 3]], everything[..., [1, 3]])
    assert not some.labels[..., [0, 2, 4]].any()
    cavity = [(everything[..., k] == 1).sum() for k in range(5)]
    median = [np.median([cavity[k - 1], cavity[k], cavity[(k + 1) % 5]]) for k in range(5)]
    phases = predictor.predict(path, "ED,ES", probabilities=True)
    assert phases.quality["phases"]["ED"] == max(range(5), key=lambda k: (median[k], cavity[k]))
    assert phases.quality["phases"]["ES"] == min(range(5), key=lambda k: (median[k], cavity[k]))
    assert phases.probabilities.shape == (30, 26, 2, 5, 4)
    chosen = list(phases.frames)
    assert np.array_equal(phases.probabilities[..., chosen, :].argmax(axis=-1), everything[..., chosen])


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ("7", "VMF235"),
        ("first", "VMF170"),
        ("", "VMF170"),
        ("1,,2", "VMF170"),
        ("-1", "VMF170"),
        ("\u00b2", "VMF170"),
        pytest.param("9" * 5001, "VMF170", id="5001 digits"),
    ],
)
def test_frames_that_make_no_sense_are_refused(predictor, save_scan, frames, code):
    with pytest.raises(ValueError, match=code):
        predictor.predict(save_scan(shape=(30, 26, 2, 5)), frames)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_labels_do_not_depend_on_the_batch_size(bundle, predictor, save_scan, batch_size):
    path = save_scan(shape=(30, 26, 7))
    other = Predictor.from_bundle(bundle, device="cpu", batch_size=batch_size)
    assert np.array_equal(other(path).labels, predictor(path).labels)
    assert other(path).quality["frames"][0]["signals"] == pytest.approx(predictor(path).quality["frames"][0]["signals"])


def test_metatensors_go_in_and_come_out(predictor, save_scan):
    path = save_scan()
    loaded = LoadVolumed("image")({"image": str(path)})["image"]
    out = predictor(loaded)
    assert isinstance(out, MetaTensor)
    assert out.dtype == torch.uint8
    assert out.shape == loaded.shape
    assert torch.equal(out.affine, loaded.affine)
    assert np.array_equal(out[0].numpy(), predictor(path).labels)
    flipped = MetaTensor(
        loaded.as_tensor(), affine=np.diag([-1.0, -1, 1, 1]) @ loaded.affine.numpy(), meta={"space": "LPS"}
    )
    assert torch.equal(predictor(flipped).as_tensor(), out.as_tensor())


def test_probabilities_and_activations_lie_on_the_grid(predictor, save_scan):
    path = save_scan(shape=(44, 26, 3))
    prediction = predictor.predict(path, probabilities=True, activations=True)
    assert prediction.probabilities.shape == (44, 26, 3, 4)
    assert prediction.activations.shape == (44, 26, 3, 6)
    np.testing.assert_allclose(prediction.probabilities.sum(axis=-1), 1, atol=1e-5)
    assert np.array_equal(prediction.probabilities.argmax(axis=-1), prediction.labels)
    inside = prediction.activations[10:30, 5:20]
    np.testing.assert_allclose(inside.sum(axis=-1), 1, atol=1e-4)


def test_other_shapes_of_input_keep_their_shape(predictor, blobs, tmp_path):
    flat = nib.Nifti1Image(blobs((30, 26)), np.diag([2.0, 2, 1, 1]))
    with pytest.warns(UserWarning, match="VMF236"):
        assert predictor(on_disk(flat, tmp_path, "flat.nii")).shape == (30, 26)
    vector = nib.Nifti1Image(blobs((30, 26, 3))[..., None, None], np.diag([2.0, 2, 8, 1]))
    assert predictor(on_disk(vector, tmp_path, "vector.nii")).shape == (30, 26, 3, 1, 1)
    second = nib.Nifti2Image(blobs((30, 26, 3)), np.diag([2.0, 2, 8, 1]))
    assert isinstance(predictor(second), nib.Nifti2Image)


def test_quality_says_what_there_is(predictor, save_scan):
    path = save_scan()
    quality = predictor(path).quality
    assert quality["light"] == "unknown"
    assert quality["predicted_dice"] is None
    assert quality["bundle"] == "vmfnet_mnms"
    frame = quality["frames"][0]
    labels = predictor(path).labels
    assert frame["volumes_ml"]["LV"] == pytest.approx((labels == 1).sum() * 1.3 * 1.3 * 8 / 1000, abs=1e-3)
    assert sum(frame["kernel_shares"]) == pytest.approx(1, abs=1e-4)
    assert 0 <= frame["signals"]["entropy"] <= 1


def test_no_image_and_no_device_are_named(predictor, bundle):
    with pytest.raises(ValueError, match="image must be a path, a nibabel image or a MetaTensor, got ndarray"):
        predictor(np.zeros((4, 4, 4)))
    with pytest.raises(ValueError, match="VMF201"):
        predictor("missing.nii.gz")
    with pytest.raises(ValueError, match="device must be one that is there, got cuda"):
        Predictor.from_bundle(bundle, device="cuda:7")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        Predictor.from_bundle(bundle, batch_size=0)


def test_memory_stays_bounded_by_the_batch(bundle, blobs):
    calls = []
    small = Predictor.from_bundle(bundle, device="cpu", batch_size=3)
    run = small.backend

    def watch(batch):
        calls.append(len(batch))
        return run(batch)

    watch.name = "watched"
    small.backend = watch
    small(nib.Nifti1Image(blobs((30, 26, 20)), np.diag([2.0, 2, 8, 1])))
    assert max(calls) <= 3
    assert sum(calls) == 20
