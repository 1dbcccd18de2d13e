# SPDX-License-Identifier: Apache-2.0
"""Bundles are what their layers say, and the checker finds what it is there to find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUNDLES
from monai.bundle import ConfigParser
from monai.bundle.properties import InferProperties, TrainProperties

import vmfseg
from vmfseg.bundle.__main__ import main
from vmfseg.bundle.check import METADATA_KEYS, check_bundle, metadata_problems, monai_problems
from vmfseg.bundle.compile import bundle_names, compile_bundle, merge_layers, resolve_likes, write_bundle
from vmfseg.bundle.config import overlay
from vmfseg.utils import VmfError

REPOSITORY = BUNDLES.parent
NAMES = bundle_names()
OVERLAYS = ("evaluate.json", "paper.json", "multi_gpu_train.json")
TAUGHT = ("hearts", "cords")  # by the phantom
#: Meta-learning and nnU-Net are on one device.
ONE_DEVICE = ("saml", "dgnet", "nnunet")


def read(name: str, file: str) -> dict:
    return json.loads((BUNDLES / name / "configs" / file).read_text())


def test_the_bundles_are_described():
    methods = ("unet", "sdnet", "lddg", "saml", "dgnet", "nnunet")
    compared = [f"{method}_{data}" for method in methods for data in ("mnms", "scgm")]
    assert sorted({*NAMES} - {*compared}) == [
        "cords", "hearts", "unsupervised_mnms", "vmfnet_mnms", "vmfnet_scgm",
        "vmfpseudo_mnms", "vmfpseudo_scgm", "vmfweak_mnms",
        "weak_mnms",
    ]  # fmt: skip
    assert {*compared} < {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_committed_bundle_agrees_with_its_layers(name):
    check_bundle(name, BUNDLES)


@pytest.mark.parametrize("name", NAMES)
def test_layout_is_the_zoos(name):
    files = set(compile_bundle(name))
    overlays = OVERLAYS[2:] if name in TAUGHT else OVERLAYS[:2] if name.startswith(ONE_DEVICE) else OVERLAYS
    assert files == {
        *(f"configs/{file}" for file in ("metadata.json", "train.json", "inference.json", "logging.conf", *overlays)),
        "docs/README.md", "docs/data_license.txt", "LICENSE", "models/.gitkeep",
    }  # fmt: skip
    assert (BUNDLES / name / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    card = (BUNDLES / name / "docs" / "README.md").read_text()
    for heading in ("Model Overview", "Data", "Training configuration", "Performance", "Limitations", "Commands"):
        assert f"\n## {heading}\n" in card
    assert ("torchrun" in card) == ("multi_gpu_train.json" in overlays)


@pytest.mark.parametrize("name", NAMES)
def test_versions_are_those_that_are_installed_by_make(name):
    pins = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split())
    metadata = read(name, "metadata.json")
    needed = dict(metadata["required_packages_version"])
    assert needed.pop("vmfseg") == vmfseg.__version__
    assert needed == {package: pins[package] for package in needed}
    versions = [metadata[key] for key in ("monai_version", "pytorch_version", "numpy_version")]
    assert versions == [pins["monai"], pins["torch"], pins["numpy"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("file", OVERLAYS)
def test_overlay_is_monais(name, file):
    if file.startswith("multi_gpu") and name.startswith(ONE_DEVICE):
        pytest.skip("on one device only")
    if name in TAUGHT and file in OVERLAYS[:2]:
        pytest.skip("no data set of patients to be scored on")
    files = [BUNDLES / name / "configs" / part for part in ("train.json", file)]
    parser = ConfigParser()
    parser.read_config([str(path) for path in files])
    parser.config.pop("_meta_", None)
    ours = overlay(*(json.loads(path.read_text()) for path in files))
    macros = {"run"}  # the parser has put in what %training stands for
    assert {k: v for k, v in ours.items() if k not in macros} == {
        k: v for k, v in parser.config.items() if k not in macros
    }


PAPER = [  # methods.md, section 10
    pytest.param("vmfnet_mnms", 288, 1.2, 50_000, id="vmfnet_mnms"),
    pytest.param("vmfpseudo_mnms", 288, 1.2, 50_000, id="vmfpseudo_mnms"),
    pytest.param("vmfweak_mnms", 288, 1.2, 50_000, id="vmfweak_mnms"),
    pytest.param("vmfnet_scgm", 144, 0.5, 50_000, id="vmfnet_scgm"),
    pytest.param("unsupervised_mnms", 288, 1.2, "$200 * len(@train::loader)", id="unsupervised_mnms"),
    pytest.param("weak_mnms", 288, 1.2, "$200 * len(@train::loader)", id="weak_mnms"),
]


@pytest.mark.parametrize(("name", "size", "pixdim", "steps"), PAPER)
def test_paper_overlay_has_the_papers_numbers(name, size, pixdim, steps):
    config = overlay(read(name, "train.json"), read(name, "paper.json"))
    assert (config["image_size"], config["pixdim"], config["max_iterations"]) == (size, pixdim, steps)
    network = config["network_def"]
    assert network["channels"] == [64, 128, 256, 512, 512]
    values = [network[key] for key in ("hidden_channels", "num_kernels", "kappa", "last_activation", "log_activations")]
    assert values == [64, 12, 30.0, "relu", False]
    assert (config["batch_size"], config["gradient_clip"], config["learning_rate"]) == (4, 0.1, 1e-4)
    assert config["loss_ramps"] == {}
    assert "@kernels::stage" in config["stages"]["stages"]
    assert config["loss_weights"] == name.split("_")[0]
    assert config["train"]["loss"].get("presence_any", False) == name.startswith("weak")
    if "pretraining" in config and name.startswith(("un", "weak")):  # what train.json adds is switched off
        assert (network["position"], config["all_frames"]) == (0, False)
        assert config["pretraining"]["stage"]["motion"] is False
        assert config["pretraining"]["dataloader"]["augment"] == "@augmentation"
        assert config["pretraining"]["dataset"]["motion"] is False
        assert config.get("presence_tile", 0) == 0
        assert network["presence"] == ("activations" if name.startswith("weak") else "none")
    if "joint" in config:
        assert (config["joint"], config["unlabeled_batch_size"]) == (False, 4)


OWN_PAPERS = [  # baselines.md, sections 3 to 5; parameters for four classes and three source domains
    pytest.param("unet", {"batch_size": 4, "learning_rate": 1e-4, "max_iterations": 50_000}, 17_266_436, id="unet"),
    pytest.param("sdnet", {"batch_size": 4, "learning_rate": 1e-4, "max_iterations": "$50 * @epoch_length"}, None,
                 id="sdnet"),
    pytest.param("lddg", {"batch_size": 24, "learning_rate": 1e-4, "max_iterations": "$200 * @epoch_length"},
                 13_403_508, id="lddg"),
    pytest.param("saml", {"batch_size": 15, "learning_rate": 1e-3, "max_iterations": 10_000}, None, id="saml"),
    pytest.param("dgnet", {"batch_size": 6, "learning_rate": 4e-5, "max_iterations": "$150 * @epoch_length"},
                 20_222_912, id="dgnet"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "values", "parameters"), OWN_PAPERS)
def test_overlay_of_a_compared_method_has_the_numbers_of_its_paper(method, values, parameters):
    config = overlay(read(f"{method}_mnms", "train.json"), read(f"{method}_mnms", "paper.json"))
    assert {key: config[key] for key in values} == values
    assert (config["image_size"], config["pixdim"], config["learning_rate_power"]) == (288, 1.2, 0.0)
    if parameters is not None:
        fixed = {"num_domains": 3} if method == "dgnet" else {}
        parser = ConfigParser({**config, "network_def": {**config["network_def"], **fixed}})
        assert sum(p.numel() for p in parser.get_parsed_content("network_def").parameters()) == parameters


def test_compared_methods_share_data_augmentation_and_schedule_with_vmfnet():
    ours = read("vmfnet_mnms", "train.json")
    shared = [
        "source", "preprocessing", "augmentation", "postprocessing", "validate", "calibration", "evaluation",
        "max_iterations", "epoch_length", "learning_rate", "gradient_clip", "image_size",
    ]  # fmt: skip
    for method in ("unet", "sdnet", "lddg", "saml", "dgnet"):
        theirs = read(f"{method}_mnms", "train.json")
        for key in shared:
            assert theirs[key] == ours[key], f"{method}: {key}"
        assert theirs["network_def"]["channels"] == ours["network_def"]["channels"]
        assert theirs["train"]["dataloader"]["steps_per_epoch"] == "@epoch_length"


def test_paper_network_has_the_papers_parameters():
    parser = ConfigParser(overlay(read("vmfnet_mnms", "train.json"), read("vmfnet_mnms", "paper.json")))
    network = parser.get_parsed_content("network_def")
    assert sum(parameter.numel() for parameter in network.parameters()) == 17_455_685


PROBLEMS = [
    pytest.param({"a": 1}, "a is used by nothing", id="unused"),
    pytest.param({"run": "$@a::y", "a": {"y": 1, "z": 2}}, "a::z is used by nothing", id="unused in a section"),
    pytest.param({"run": ["%b::c"], "b": {"c": [1], "d": 1}}, "b::d is used by nothing", id="macro"),
]


@pytest.mark.parametrize(("config", "problem"), PROBLEMS)
def test_what_nothing_uses_is_found(config, problem):
    assert list(monai_problems(config, {})) == [problem]


def test_checker_asks_for_what_monai_requires():
    missing = list(monai_problems({"run": "$1"}, TrainProperties))
    assert "train::trainer is missing, which MONAI requires" in missing
    assert "evaluator is missing, which MONAI requires" in list(monai_problems({"run": "$1"}, InferProperties))


@pytest.mark.parametrize("key", METADATA_KEYS)
def test_checker_asks_for_metadata(key):
    metadata = read("vmfnet_mnms", "metadata.json")
    assert not list(metadata_problems(metadata))
    del metadata[key]
    assert f"no {key}" in list(metadata_problems(metadata))


CHANGES = [
    pytest.param(lambda root: (root / "configs/train.json").write_text("{}"), "train.json is not what", id="changed"),
    pytest.param(lambda root: (root / "LICENSE").unlink(), "LICENSE is missing", id="missing"),
    pytest.param(lambda root: (root / "docs/old.md").write_text(""), "docs/old.md comes from no layer", id="stale"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_check_refuses_what_differs(change, message, tmp_path, capsys):
    write_bundle("vmfnet_mnms", tmp_path)
    assert main(["check", "vmfnet_mnms", "--folder", str(tmp_path)]) == 0
    change(tmp_path / "vmfnet_mnms")
    assert main(["check", "vmfnet_mnms", "--folder", str(tmp_path)]) == 4
    error = capsys.readouterr().err
    assert "VMF307" in error
    assert message in error


def test_build_leaves_unchanged_files_alone(tmp_path):
    paths = write_bundle("vmfnet_mnms", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in paths}
    assert main(["build", "vmfnet_mnms", "--folder", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in paths} == before


def test_unknown_bundle_is_named_with_the_nearest(capsys):
    assert main(["check", "vmfnet_mnm"]) == 4
    assert "Did you mean 'vmfnet_mnms'?" in capsys.readouterr().err


def test_check_is_a_command_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "vmfseg.bundle", "check", "weak_mnms"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "weak_mnms: good\n"


def test_layers_merge_by_key_and_null_removes():
    merged = merge_layers({"a": {"x": 1, "y": [1, 2]}, "b": 1}, {"a": {"y": [3]}, "b": None}, {"c": {"z": None}})
    assert merged == {"a": {"x": 1, "y": [3]}, "c": {}}


def test_like_needs_something_to_be_like():
    with pytest.raises(VmfError, match="_like_: a::c"):
        resolve_likes({"a": {"b": 1}, "d": {"_like_": "a::c"}})


def test_partner_differs_from_the_network_by_its_seed_alone():
    config = read("vmfpseudo_mnms", "train.json")
    differing = {key for key in config["partner"] if config["partner"][key] != config["network"].get(key)}
    assert differing == {"seed", "init"}
    assert config["partner"]["seed"] == "$@seed + 1"


def test_committed_files_name_no_place_of_a_machine():
    for path in BUNDLES.glob("*/*/*"):
        if path.parent.name in ("configs", "docs"):
            assert str(Path.home()) + "/" not in path.read_text()
            assert str(REPOSITORY) not in path.read_text()
