# SPDX-License-Identifier: Apache-2.0
import json

import nibabel as nib
import numpy as np
import pytest
import torch

from vmfseg.data import LoadVolumed
from vmfseg.model import Predictor
from vmfseg.transforms import slice_space_transforms
from vmfseg.visualize import view_volume
from vmfseg.visualize.slice_views import as_samples, tissue_file, worst_slice


def test_views_are_what_the_network_says_of_each_slice(finished):
    row = finished.experiment.target[1]
    views = view_volume(finished.predictor, row)
    loaded = slice_space_transforms(6.0, 32)(LoadVolumed()(row))
    assert len(views) == loaded["image"].shape[-1]
    for k, view in enumerate(views):
        with torch.no_grad():
            parts = finished.network(loaded["image"].as_tensor()[None, :, :, :, k], return_parts=True)
        np.testing.assert_allclose(view.activations, parts.activations[0], atol=1e-5)
        np.testing.assert_allclose(view.reconstruction, parts.reconstruction[0, 0], atol=1e-5)
        np.testing.assert_array_equal(view.pred, parts.logits[0].argmax(dim=0))
        np.testing.assert_array_equal(view.truth, loaded["label"][0, :, :, k])
        assert (view.subject, view.domain, view.phase, view.index) == (row["subject"], "D", row["phase"], k)


def test_tissues_belong_to_the_labels(finished):
    row = finished.experiment.target[0]
    views = view_volume(finished.predictor, row)
    truth = np.stack([view.truth for view in views])
    tissues = np.stack([view.tissues for view in views])
    assert (tissues[truth == 2] == 4).mean() > 0.9  # the label MYO is LV myocardium
    assert np.isin(tissues[truth == 1], (3, 5, 6)).mean() > 0.9  # LV counts blood, papillaries, trabeculae
    factors = np.asarray(nib.load(tissue_file(row["image"])).dataobj)[..., row["frame"]]
    assert set(np.unique(tissues)) <= {0, *np.unique(factors).tolist()}


def test_views_become_samples_with_classes_or_tissues(finished):
    views = view_volume(finished.predictor, finished.experiment.target[0])
    classes, tissues = as_samples(views), as_samples(views, tissues=True)
    assert len(classes) == len(tissues) == len(views)
    assert max(int(sample.labels.max()) for sample in classes) == 3
    assert max(int(sample.labels.max()) for sample in tissues) > 3


def test_a_row_without_label_gives_views_without_truth(finished):
    row = {key: value for key, value in finished.experiment.target[0].items() if key != "label"}
    views = view_volume(finished.predictor, row, tissues=False)
    assert all(view.truth is None and view.tissues is None and view.wrong == 0 for view in views)
    assert as_samples(views) == []


def test_a_network_without_kernels_gives_images_labels_and_truth(finished, plain):
    predictor = Predictor.from_bundle(plain, "cpu")
    views = view_volume(predictor, finished.experiment.target[0])
    slices = predictor.grid.place(LoadVolumed()(finished.experiment.target[0])["image"]).slices
    with torch.no_grad():
        expected = predictor.network(slices).argmax(dim=1).numpy()
    np.testing.assert_array_equal(np.stack([view.pred for view in views]), expected)
    assert all(view.activations is None and view.features is None and view.reconstruction is None for view in views)
    assert views[0].truth is not None
    assert as_samples(views) == []


def test_a_step_for_labels_alone_counts_for_the_truth(finished, copied):
    path = copied / "models" / "manifest.json"
    manifest = json.loads(path.read_text())
    swap = {"_target_": "vmfseg.transforms.AsClassesd", "keys": "label", "num_classes": 3}
    row = finished.experiment.target[0]
    path.write_text(json.dumps({**manifest, "preprocessing": [*manifest["preprocessing"], swap]}))
    with pytest.raises(RuntimeError, match="AsClassesd"):  # class 3 is refused: the step was there
        view_volume(Predictor.from_bundle(copied, "cpu"), row, tissues=False)


def test_worst_slice_has_most_wrong_pixels(make_view):
    good, bad = make_view(3), make_view(3)
    good = make_view(3, pred=good.truth, index=0)
    assert worst_slice([good, bad]) is bad
    empty, full = make_view(2, truth=None, pred=np.zeros((16, 16))), make_view(2, truth=None)
    assert worst_slice([empty, full]) is full


@pytest.mark.parametrize("name", ["a_sa.nii.gz", "site1-sc01-image.nii.gz"], ids=["heart", "cord"])
def test_tissue_files_are_looked_for_at_the_root(tmp_path, name):
    image = tmp_path / "root" / "Testing" / "a" / name
    assert tissue_file(str(image)) is None
    factors = tmp_path / "root" / "factors"
    factors.mkdir(parents=True)
    there = factors / name.replace("_sa.", "_sa_factors.").replace("-image.", "-factors.")
    there.write_bytes(b"")
    assert tissue_file(str(image)) == there
    assert tissue_file(str(image.with_name("other.nii.gz"))) is None
