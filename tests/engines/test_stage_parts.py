# SPDX-License-Identifier: Apache-2.0
"""The stages one by one: what each writes, takes up again, and leaves alone."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import Lambda
from safetensors.torch import load_file

from vmfseg.data import InterleavedLoader, SliceDataset, SliceLoader
from vmfseg.engines import KernelStage, PretrainingStage, SemiSupervisedTrainer, TrainingStage
from vmfseg.engines.stages.assignment import choose_assignment, kernel_table
from vmfseg.engines.stages.kernel_stage import sample_features
from vmfseg.engines.stages.pretraining_stage import image_to_image
from vmfseg.engines.stages.training_stage import publish_model
from vmfseg.handlers import ModelSelection
from vmfseg.losses import VMFLoss
from vmfseg.model import Model
from vmfseg.model.definitions import record_definitions
from vmfseg.transforms import PatchMask
from vmfseg.utils import VmfError

record_definitions()  # as the import of vmfseg.bundle does


def _volume(row):
    generator = torch.Generator().manual_seed(int(row["subject"]))
    label = torch.zeros(1, 16, 16, 3)
    for n in range(1, row.get("classes", 3) + 1):
        label[:, 3 * n : 3 * n + 3, 4:12] = n
    image = label / 4 + 0.1 * torch.rand(1, 16, 16, 3, generator=generator)
    return {**row, "image": image, **({"label": label} if "label" in row else {})}


def _rows(count=3, labeled=True, **more):
    label = {"label": "l"} if labeled else {}
    return [{"image": f"{i}", **label, "domain": "A", "subject": str(i), **more} for i in range(count)]


def _loader(labeled=True, batch_size=2, **more):
    return SliceLoader(SliceDataset(_rows(labeled=labeled, **more), Lambda(_volume)), batch_size=batch_size, seed=1)


def _made(**definition):
    """Build an object as a config does, so that its definition is known."""
    return ConfigParser({"made": definition}).get_parsed_content("made")


def _net(seed=0, **kwargs):
    tiny = {"channels": [4, 8, 8], "num_kernels": 4, "hidden_channels": 4, "seed": seed}
    return _made(_target_="vmfseg.networks.VMFNet", **tiny, **kwargs)


def _about():
    """Return what a model is made of beside its network: preprocessing, postprocessing, labels."""
    before = _made(_target_="Compose", transforms=[{"_target_": "vmfseg.transforms.ToSliceStackd", "keys": "image"}])
    after = _made(_target_="Compose", transforms=[{"_target_": "AsDiscreted", "keys": "pred", "argmax": True}])
    return before, after, {"0": "background", "1": "LV", "2": "MYO", "3": "RV"}


# --- pre-training


def test_pretraining_trains_the_encoder_of_all_networks_and_nothing_else(tmp_path, snapshot, same):
    nets = [_net(0), _net(1)]
    before = [snapshot(net) for net in nets]
    outputs = PretrainingStage(nets, _loader(False), iterations=6, learning_rate=1e-3).run(tmp_path, resume=False)
    assert outputs == ["encoder.pt"]
    for old, net in zip(before, nets, strict=True):
        changed = same(old, snapshot(net))
        assert changed
        assert all(name.startswith("encoder.") for name in changed)
    assert same(snapshot(nets[0].encoder), snapshot(nets[1].encoder)) == []
    taken = [_net(2), _net(3)]
    PretrainingStage(taken, None, iterations=6).load(tmp_path)
    assert same(snapshot(nets[0].encoder), snapshot(taken[1].encoder)) == []


def test_pretraining_predicts_hidden_patches_and_motion(tmp_path, snapshot, same):
    rows = [{**row, "image": "one cine", "frame": k} for k, row in enumerate(_rows(labeled=False))]
    dataset = SliceDataset(rows, Lambda(_volume), motion=True)
    hide = PatchMask(ratio=0.8, size=4)
    loader = SliceLoader(dataset, batch_size=2, seed=1, augment=hide)
    batch = next(iter(loader))
    image, target = image_to_image(batch, torch.device("cpu"))
    assert torch.equal(target, torch.cat([batch["target"], batch["motion"]], dim=1))
    assert not torch.equal(image, target[:, :1])
    net = _net()
    before = snapshot(net)
    PretrainingStage(net, loader, iterations=3, motion=True).run(tmp_path, resume=False)
    assert same(before, snapshot(net))


@pytest.mark.parametrize("iterations", [1, 4, 6, 7])
def test_pretraining_takes_the_iterations_it_was_given_and_depends_on_no_global_seed(tmp_path, iterations):
    results = []
    for run in range(2):
        torch.manual_seed(100 + run)
        stage = PretrainingStage(_net(), loader := _loader(False), iterations=iterations)
        stage.run(tmp_path / str(run), resume=False)
        results.append((tmp_path / str(run) / "encoder.pt").read_bytes())
        index = json.loads((tmp_path / str(run) / "checkpoint.json").read_text())
        payload = torch.load(tmp_path / str(run) / index["checkpoints"][-1]["file"], weights_only=True)
        assert 0 <= payload["engine"]["iteration"] - iterations < -(-iterations // len(loader))
    assert results[0] == results[1]


def test_a_killed_pretraining_goes_on_bit_for_bit(tmp_path, snapshot, same):
    whole, first, second = _net(), _net(), _net(5)
    PretrainingStage(whole, _loader(False), iterations=12).run(tmp_path / "whole", resume=False)

    class Kill:
        def attach(self, engine):
            engine.add_event_handler("ITERATION_COMPLETED", self)

        def __call__(self, engine):
            if engine.state.iteration == 7:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        PretrainingStage(first, _loader(False), iterations=12, handlers=[Kill()]).run(tmp_path / "cut", resume=False)
    PretrainingStage(second, _loader(False), iterations=12).run(tmp_path / "cut", resume=True)
    assert same(snapshot(whole.encoder), snapshot(second.encoder)) == []


def test_zero_iterations_leave_the_encoder(tmp_path, snapshot, same):
    net = _net()
    before = snapshot(net)
    PretrainingStage(net, _loader(False), iterations=0).run(tmp_path, resume=False)
    assert same(before, snapshot(net)) == []


def test_a_network_without_our_encoder_is_refused():
    with pytest.raises(ValueError, match="networks must have an encoder to pre-train, got Conv2d without"):
        PretrainingStage(torch.nn.Conv2d(1, 1, 1), None, iterations=1)


# --- kernels


def test_kernels_become_the_means_of_the_mixture_of_all_networks(tmp_path, snapshot, same):
    nets = [_net(0), _net(1)]
    before = [snapshot(net) for net in nets]
    stage = KernelStage(nets, _loader(False), seed=3)
    assert stage.run(tmp_path, resume=False) == ["kernels.pt"]
    for old, net in zip(before, nets, strict=True):
        assert same(old, snapshot(net)) == ["kernels.weight"]
    means = torch.load(tmp_path / "kernels.pt", weights_only=True)["means"]
    torch.testing.assert_close(nets[1].kernels.unit_kernels(), means.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(means.norm(dim=1), torch.ones(4, dtype=means.dtype))
    other = _net(7)
    KernelStage(other, None).load(tmp_path)
    assert torch.equal(other.kernels.weight, nets[0].kernels.weight)


def test_features_are_those_of_the_encoder_in_eval_mode_inside_the_border():
    net = _net().train()
    loader = SliceLoader(SliceDataset(_rows(1, False), Lambda(_volume)), batch_size=3, shuffle=False)
    vectors = sample_features(net, loader, torch.device("cpu"), per_image=1000, border=1)
    with torch.no_grad():
        features = net.eval().encoder(next(iter(loader))["image"])[:, :, 1:-1, 1:-1]
    expected = features.flatten(2).movedim(1, 2).flatten(0, 1)
    expected = expected[expected.norm(dim=1) > 0]
    order = lambda t: t[np.lexsort(t.numpy().T)]  # noqa: E731
    torch.testing.assert_close(order(vectors), order(expected))
    few = sample_features(net, loader, torch.device("cpu"), per_image=5, border=1)
    assert len(few) <= 15


# --- assignment


def _mean_dice(table, classes):
    """Soft Dice by the definition, class by class."""
    dice = []
    for n in range(1, table.shape[0]):
        chosen = [j for j, c in enumerate(classes) if c == n]
        hit = sum(float(table[n, j]) for j in chosen)
        dice.append(2 * hit / (sum(float(table[:, j].sum()) for j in chosen) + float(table[n].sum())))
    return sum(dice) / len(dice)


@pytest.mark.parametrize(("classes", "kernels"), [(2, 6), (3, 5), (4, 4)])
@pytest.mark.parametrize("kind", ["uniform", "peaked", "mostly background"])
def test_the_assignment_is_the_best_of_all(classes, kernels, kind):
    for seed in range(5):
        table = torch.rand(classes, kernels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if kind == "peaked":
            table = table**4
        if kind == "mostly background":
            table[0] *= 10
        chosen, dice = choose_assignment(table)
        best = max(_mean_dice(table, c) for c in itertools.product(range(classes), repeat=kernels))
        assert dice == pytest.approx(_mean_dice(table, chosen))
        assert dice == pytest.approx(best)


def test_many_kernels_are_assigned_too():
    owner = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(0))
    table = torch.nn.functional.one_hot(owner, 4).T.double() * 10 + 0.1
    assert choose_assignment(table)[0] == owner.tolist()


def test_the_table_counts_activity_by_class():
    net = _net(head="assignment")
    loader = SliceLoader(SliceDataset(_rows(1), Lambda(_volume)), batch_size=3, shuffle=False)
    table = kernel_table(net, loader, 4, torch.device("cpu"))
    batch = next(iter(loader))
    with torch.no_grad():
        activations = net.eval().kernels(net.encoder(batch["image"])).double().numpy()
    expected = np.zeros((4, 4))
    for b in range(3):
        for y in range(8):
            for x in range(8):
                block = batch["label"][b, 0, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten().tolist()
                for value in block:
                    expected[int(value)] += activations[b, :, y, x] / 4
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="at least one labelled source slice"):
        kernel_table(net, [], 4, torch.device("cpu"))


# --- training


def _training(tmp_path, net, mode="last", epochs=3, handlers=(), fused=False, **kwargs):
    loader = InterleavedLoader(_loader(), _loader(False), steps_per_epoch=2)
    if fused:
        net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=fused)
    trainer = SemiSupervisedTrainer(
        "cpu", epochs, loader, net, optimizer, VMFLoss("vmfnet"), train_handlers=list(handlers)
    )
    stage = TrainingStage(
        trainer, net, *_about(), ModelSelection(net, mode), {"network": net, "optimizer": optimizer},
        ckpt_dir=tmp_path / "models", bundle="tiny", version="1.2", **kwargs,
    )  # fmt: skip
    return stage, trainer


def test_training_writes_a_model_that_monai_and_safetensors_read(tmp_path):
    net = _net()
    stage, trainer = _training(tmp_path, net)
    folder = tmp_path / "stages" / "training-1"
    assert stage.run(folder, resume=False) == ["model.pt", "model.safetensors", "manifest.json"]
    assert trainer.state.iteration == 12
    state = torch.load(tmp_path / "models" / "model.pt", weights_only=True)
    other = load_file(tmp_path / "models" / "model.safetensors")
    assert state.keys() == other.keys() == net.state_dict().keys()
    assert all(torch.equal(state[k], other[k]) and torch.equal(state[k], net.state_dict()[k]) for k in state)
    manifest = json.loads((tmp_path / "models" / "manifest.json").read_text())
    assert (manifest["name"], manifest["version"]) == ("tiny", "1.2")
    assert manifest["selection"] == {"mode": "last", "source_validation_dice": None, "epoch": 3}
    assert manifest["network"]["channels"] == [4, 8, 8]
    assert [step["_target_"] for step in manifest["preprocessing"]] == ["vmfseg.transforms.ToSliceStackd"]
    assert manifest["input"] == {"channels": 1, "shape": [16, 16]}
    assert torch.__version__.startswith(manifest["versions"]["torch"].split("+")[0])
    assert str(tmp_path) not in json.dumps(manifest)
    fresh = _net(9)
    _training(tmp_path, fresh)[0].load(folder)
    assert all(torch.equal(state[k], v) for k, v in fresh.state_dict().items())
    again = Model.load(tmp_path / "models").build_network()
    image = torch.rand(1, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(again(image), net.eval()(image))


class Kill:
    def __init__(self, iteration):
        self.iteration = iteration

    def attach(self, engine):
        engine.add_event_handler("ITERATION_COMPLETED", self)

    def __call__(self, engine):
        if engine.state.iteration == self.iteration:
            raise RuntimeError("killed")


@pytest.mark.parametrize(
    ("iteration", "fused"),
    [(2, False), (5, False), (11, False), (7, True)],
    ids=["2", "5", "11", "channels last, fused"],
)
def test_a_killed_training_goes_on_bit_for_bit(tmp_path, iteration, fused):
    _training(tmp_path / "a", _net(), fused=fused)[0].run(tmp_path / "a" / "t", resume=False)
    killed = _training(tmp_path / "b", _net(), handlers=[Kill(iteration)], fused=fused)[0]
    with pytest.raises(RuntimeError, match="killed"):
        killed.run(tmp_path / "b" / "t", resume=False)
    _training(tmp_path / "b", _net(), fused=fused)[0].run(tmp_path / "b" / "t", resume=True)
    for name in ("model.safetensors", "manifest.json"):
        assert (tmp_path / "a" / "t" / name).read_bytes() == (tmp_path / "b" / "t" / name).read_bytes()


def test_a_training_killed_after_its_last_checkpoint_only_writes_the_model(tmp_path):
    stage, _ = _training(tmp_path, _net())
    stage.run(tmp_path / "t", resume=False)
    model = (tmp_path / "t" / "model.safetensors").read_bytes()
    for name in ("model.pt", "model.safetensors", "manifest.json"):
        (tmp_path / "t" / name).unlink()
    stage, trainer = _training(tmp_path, _net(4))
    stage.run(tmp_path / "t", resume=True)
    assert (tmp_path / "t" / "model.safetensors").read_bytes() == model
    assert trainer.state.iteration == 12


def test_kernels_are_assigned_where_the_head_asks_for_it(tmp_path):
    net = _net(head="assignment")
    loader = InterleavedLoader(_loader(), None, steps_per_epoch=2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    trainer = SemiSupervisedTrainer("cpu", 1, loader, net, optimizer, VMFLoss({"clustering": 1.0}))
    arguments = (trainer, net, *_about(), ModelSelection(net, "last"), {"network": net})
    with pytest.raises(ValueError, match="assignment_loader must be given"):
        TrainingStage(*arguments).run(tmp_path / "x", resume=False)
    TrainingStage(*arguments, assignment_loader=_loader()).run(tmp_path / "t", resume=False)
    manifest = json.loads((tmp_path / "t" / "manifest.json").read_text())
    assert len(manifest["assignment"]["classes"]) == 4
    assert 0 <= manifest["assignment"]["source_soft_dice"] <= 1


def test_what_fits_passes_the_check_and_leaves_the_network_as_it_was(tmp_path, snapshot, same):
    net = _net().train()
    stage, _ = _training(tmp_path, net)
    before = snapshot(net)
    stage.check()
    assert net.training
    assert same(before, snapshot(net)) == []
    assert not list(tmp_path.iterdir())


def _stage(net, loss, loader=None):
    optimizer = torch.optim.Adam(net.parameters())
    trainer = SemiSupervisedTrainer("cpu", 1, loader or _loader(), net, optimizer, loss)
    return TrainingStage(trainer, net, *_about(), ModelSelection(net), {})


def _unet(out_channels):
    arguments = {"spatial_dims": 2, "in_channels": 1, "channels": [4, 8], "strides": [2]}
    return _made(_target_="monai.networks.nets.UNet", out_channels=out_channels, **arguments)


def test_a_class_that_no_mask_shows_is_refused():
    with pytest.raises(VmfError) as caught:
        _stage(_net(), VMFLoss("vmfnet"), _loader(classes=2)).check()
    assert caught.value.code == "VMF294"
    assert caught.value.subject == "class 3"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("outputs", [3, 5])
def test_a_network_with_another_number_of_outputs_is_refused(outputs):
    with pytest.raises(VmfError) as caught:
        _stage(_unet(outputs), VMFLoss({"dice": 1.0})).check()
    assert caught.value.code == "VMF350"
    assert caught.value.found == f"{outputs} output channels"
    assert "out_channels to 4" in caught.value.fix


@pytest.mark.parametrize("term", ["reconstruction", "clustering", "presence"])
def test_a_term_without_its_part_is_refused_by_name(term):
    with pytest.raises(ValueError, match=rf"weights\['{term}'\] must be 0 for a network without"):
        _stage(_unet(4), VMFLoss({"dice": 1.0, term: 0.1})).check()
    _stage(_unet(4), VMFLoss({"dice": 1.0, term: 0.0})).check()


def test_a_network_that_no_config_made_is_refused():
    with pytest.raises(VmfError) as caught:
        _stage(torch.nn.Conv2d(1, 4, 1), VMFLoss({"dice": 1.0})).check()
    assert caught.value.code == "VMF320"
    assert caught.value.found == "torch.nn.modules.conv.Conv2d"


# --- publishing


def _model(folder, text):
    folder.mkdir(parents=True)
    for name in ("model.pt", "model.safetensors", "manifest.json"):
        (folder / name).write_text(f"{text} {name}")
    return folder


def test_a_foreign_model_is_kept_and_an_own_one_is_replaced(tmp_path, capsys):
    one = _model(tmp_path / "stages" / "training-1", "one")
    two = _model(tmp_path / "stages" / "training-2", "two")
    models = _model(tmp_path / "models", "downloaded")
    publish_model(one, models)
    assert (models / "model.pt").read_text() == "one model.pt"
    kept = sorted(p.name for p in models.iterdir() if p.name not in ("model.pt", "model.safetensors", "manifest.json"))
    assert len(kept) == 3
    assert {(models / name).read_text() for name in kept} == {
        "downloaded model.pt", "downloaded model.safetensors", "downloaded manifest.json"
    }  # fmt: skip
    assert "was not made by this run; it is kept as model." in capsys.readouterr().out
    publish_model(two, models)
    publish_model(two, models)
    assert (models / "model.safetensors").read_text() == "two model.safetensors"
    assert len(list(models.iterdir())) == 6
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1  # of the model of other settings, once
    assert "trained with other settings" in said[0]
    assert said[0].endswith(str(one))
