# SPDX-License-Identifier: Apache-2.0
import json
import pickle

import pytest
import torch

from vmfseg.utils import VmfError
from vmfseg.visualize import load_run_model


def rewrite(bundle, **changes):
    path = bundle / "configs" / "train.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_network_and_the_data_are_those_of_the_run(finished):
    model = load_run_model(finished.bundle, dataset_dir=finished.data)
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.network(x), finished.network(x))
    assert not model.network.training
    assert model.experiment.fingerprint == finished.experiment.fingerprint
    assert model.same_data
    assert (model.pixdim, model.image_size) == (6.0, 32)


def test_the_phantom_of_the_run_is_found_without_a_folder(finished, copied, monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    arguments = {"frames": 2, "size": 48, "subjects": 8, "workers": 1}
    (cache / "phantom-mnms-frames2-seed0-size48-subjects8-workers1").symlink_to(finished.data)
    monkeypatch.setenv("VMFSEG_CACHE", str(cache))
    rewrite(copied, source={**finished.config["source"], "phantom": arguments})
    model = load_run_model(copied)
    assert model.experiment.is_phantom
    assert model.same_data


def test_values_of_the_command_line_come_from_the_manifest(finished, copied):
    rewrite(copied, num_kernels=9, pixdim=1.0)
    settings = {"num_kernels": 5, "pixdim": 6.0}
    (copied / "models" / "manifest.json").write_text(json.dumps({**finished.manifest, "settings": settings}))
    model = load_run_model(copied, dataset_dir=finished.data)
    assert model.network.kernels.num_kernels == 5
    assert model.pixdim == 6.0


def test_other_data_is_noticed(finished, copied):
    rewrite(copied, target_domain="C")
    assert not load_run_model(copied, dataset_dir=finished.data).same_data


class Evil:
    def __reduce__(self):
        return (open, ("evil.txt", "w"))


def poison(bundle):
    with open(bundle / "models" / "model.pt", "wb") as stream:
        pickle.dump({"a": Evil()}, stream)


def drop_tensor(bundle):
    state = torch.load(bundle / "models" / "model.pt", weights_only=True)
    state.popitem()
    torch.save(state, bundle / "models" / "model.pt")


NETWORK = "vmfseg.networks.VMFNet"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        pytest.param(lambda b: (b / "configs" / "train.json").unlink(), "VMF301", "cannot be read", id="no config"),
        pytest.param(lambda b: (b / "configs" / "train.json").write_text("[]"), "VMF322", "no object", id="list"),
        pytest.param(lambda b: (b / "models" / "model.pt").unlink(), "VMF301", "there is no model", id="no model"),
        pytest.param(lambda b: rewrite(b, num_kernels=7), "VMF323", "weights must fit", id="other network"),
        pytest.param(drop_tensor, "VMF323", "weights must fit", id="tensor lost"),
        pytest.param(poison, "VMF401", "tensors only", id="pickle"),
        pytest.param(lambda b: rewrite(b, kappa="$1 + 1"), "VMF322", "expression", id="expression"),
        pytest.param(lambda b: rewrite(b, kappa="@kappa"), "VMF322", "refers to nothing", id="loop"),
        pytest.param(lambda b: rewrite(b, network_def={"_target_": "os.system"}), "VMF322", "os.system", id="target"),
        pytest.param(lambda b: rewrite(b, network_def=None), "VMF322", "nothing instead of", id="no network"),
        pytest.param(
            lambda b: rewrite(b, network_def={"_target_": NETWORK, "colour": 1}), "VMF322", "colour", id="argument"
        ),
        pytest.param(lambda b: rewrite(b, source=None), "VMF322", "no such section", id="no source"),
        pytest.param(lambda b: rewrite(b, pixdim=None), "VMF322", "pixdim", id="pixdim"),
        pytest.param(
            lambda b: (b / "models" / "manifest.json").write_text('{"phantom": false}'), "VMF324", "is needed", id="own"
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rebuilt_is_refused_and_nothing_is_executed(
    finished, copied, tmp_path, monkeypatch, change, code, message
):
    monkeypatch.chdir(tmp_path)
    change(copied)
    with pytest.raises(VmfError, match=message) as caught:
        load_run_model(copied, dataset_dir=None if code == "VMF324" else finished.data)
    assert caught.value.code == code
    assert not (tmp_path / "evil.txt").exists()
