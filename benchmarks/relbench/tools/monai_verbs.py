# SPDX-License-Identifier: Apache-2.0
"""What plain MONAI does for each verb; every function runs in a worker."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["export", "load_pairs", "load_weights", "network", "read_cached", "run_config", "segment", "train", "unpack"]


def network() -> Any:
    """Return a small UNet of MONAI with weights from a seed."""
    import torch
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    return UNet(2, 1, 4, channels=(4, 8), strides=(2,)).eval()


def segment(home: str, options: Mapping[str, Any]) -> None:
    """Load, orient, resample, normalize, predict slice by slice, invert, save: the inference of the model zoo."""
    import torch
    from monai.inferers import SliceInferer
    from monai.transforms import (
        AsDiscreted,
        Compose,
        DivisiblePadd,
        EnsureChannelFirstd,
        Invertd,
        LoadImaged,
        NormalizeIntensityd,
        Orientationd,
        SaveImaged,
        Spacingd,
    )

    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    before = Compose([
        LoadImaged("image"), EnsureChannelFirstd("image"), Orientationd("image", "RAS"),
        Spacingd("image", (2.0, 2.0, -1)), NormalizeIntensityd("image"), DivisiblePadd("image", (4, 4, 1)),
    ])  # fmt: skip
    after = Compose([
        Invertd("pred", before, orig_keys="image", nearest_interp=False, to_tensor=True),
        AsDiscreted("pred", argmax=True),
        SaveImaged("pred", output_dir="out", output_postfix="seg", separate_folder=False, output_dtype="uint8"),
    ])  # fmt: skip
    net, inferer = network(), SliceInferer(spatial_dim=2, roi_size=(32, 32), sw_batch_size=int(options.get("batch", 8)))
    for name in options["images"]:
        item = before({"image": name})
        with torch.no_grad():
            item["pred"] = inferer(item["image"][None], net)[0]
        after(item)


def load_pairs(home: str, options: Mapping[str, Any]) -> None:
    """Load every image with its label as a training does, up to the value of the loss."""
    import torch
    from monai.data import load_decathlon_datalist
    from monai.losses import DiceCELoss
    from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, NormalizeIntensityd, Orientationd, Spacingd

    keys = ["image", "label"]
    rows = load_decathlon_datalist("plain/datalist.json", True, "training", ".")
    chain = Compose([
        LoadImaged(keys), EnsureChannelFirstd(keys), Orientationd(keys, "RAS"),
        Spacingd(keys, (1.25, 1.25, -1), mode=("bilinear", "nearest")), NormalizeIntensityd("image"),
    ])  # fmt: skip
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    for row in rows:
        item = chain(row)
        value = loss(torch.cat([item["image"]] * 4)[None], item["label"][None])
        if not torch.isfinite(value):
            raise ValueError("the loss is not finite")
    Path("out").mkdir(exist_ok=True)
    Path("out/rows.json").write_text(str(len(rows)))


def train(home: str, options: Mapping[str, Any]) -> None:
    """``monai.bundle run`` of a bundle that has MONAI's classes alone."""
    from monai.bundle import run

    values = {key: value for key, value in options.items() if key not in ("resume", "config")}
    if options.get("resume"):
        values["resume_from"] = _newest(Path("out/models"))
    run("run", config_file=str(options.get("config", "plain/train.json")), **values)


def _newest(folder: Path) -> str:
    """Return the newest checkpoint that can be read; which one is broken, a user finds out by trying too."""
    from benchmarks.relbench.tools.ours import is_whole

    found = sorted(folder.glob("checkpoint_epoch=*.pt"), key=lambda path: int(path.stem.split("=")[1]))
    return str(next((path for path in reversed(found) if is_whole(path)), ""))


def plain_bundle(place: Path, **changes: Any) -> None:
    """Write a bundle of the model zoo's kind: UNet, SupervisedTrainer, CheckpointSaver, seeds set."""
    transforms = [
        {"_target_": "LoadImaged", "keys": ["image", "label"]},
        {"_target_": "EnsureChannelFirstd", "keys": ["image", "label"]},
        {"_target_": "NormalizeIntensityd", "keys": "image"},
        {"_target_": "RandFlipd", "keys": ["image", "label"], "prob": 0.5, "spatial_axis": 0},
        {"_target_": "RandGaussianNoised", "keys": "image", "prob": 0.5},
    ]
    state = {"model": "@network", "optimizer": "@optimizer", "trainer": "@trainer"}
    saver = {"_target_": "CheckpointSaver", "save_dir": "@ckpt_dir", "save_dict": state}
    config = {
        "imports": ["$import torch", "$import monai", "$import os"],
        "dataset_dir": ".", "ckpt_dir": "out/models", "resume_from": "", "max_epochs": 8, "batch_size": 2,
        "learning_rate": 0.001, "num_workers": 0, "seed": 0, "channels": [4, 8], "device": "cpu",
        "data": "$monai.data.load_decathlon_datalist('plain/datalist.json', True, 'training', @dataset_dir)",
        "network_def": {"_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 4,
                        "channels": "@channels", "strides": [2], "norm": "batch"},
        "network": "$@network_def.to(@device)",
        "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()", "lr": "@learning_rate"},
        "loss": {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True},
        "preprocessing": {"_target_": "Compose", "transforms": transforms},
        "dataset": {"_target_": "CacheDataset", "data": "@data", "transform": "@preprocessing", "progress": False},
        "loader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": "@batch_size", "shuffle": True,
                   "num_workers": "@num_workers"},
        "saver": {**saver, "save_interval": 1, "n_saved": 2},
        "final": {"_target_": "CheckpointSaver", "save_dir": "@ckpt_dir", "save_dict": {"model": "@network"},
                  "save_final": True, "final_filename": "model.pt"},
        "loader_of_state": {"_target_": "CheckpointLoader", "load_path": "@resume_from", "load_dict": state},
        "trainer": {"_target_": "SupervisedTrainer", "max_epochs": "@max_epochs", "device": "$torch.device(@device)",
                    "train_data_loader": "@loader", "network": "@network", "optimizer": "@optimizer",
                    "loss_function": "@loss"},
        # savers that hold the trainer cannot be among its handlers: references would lead in a circle
        "initialize": [
            "$monai.utils.set_determinism(seed=@seed)",
            "$@saver.attach(@trainer)",
            "$@final.attach(@trainer)",
            "$@loader_of_state.attach(@trainer) if @resume_from else None",
        ],
        "run": ["$@trainer.run()"],
        **changes,
    }  # fmt: skip
    (place / "plain").mkdir(exist_ok=True)
    (place / "plain" / "train.json").write_text(json.dumps(config))


def unpack(home: str, options: Mapping[str, Any]) -> None:
    """Unpack an archive by ``monai.apps.utils.extractall``, as the download of a bundle does."""
    from monai.apps.utils import extractall

    extractall(options["archive"], "out/unpacked", file_type="zip")


def load_weights(home: str, options: Mapping[str, Any]) -> None:
    """Load weights into a network by ``CheckpointLoader``, then segment with them."""
    import torch
    from ignite.engine import Engine
    from monai.handlers import CheckpointLoader

    net = network()
    engine = Engine(lambda engine, batch: None)
    CheckpointLoader(options["file"], {"model": net}, map_location="cpu", strict=True).attach(engine)
    engine.run([0])
    with torch.no_grad():
        result = net(torch.ones(1, 1, 16, 16))
    Path("out").mkdir(exist_ok=True)
    torch.save(result, "out/result.pt")


def run_config(home: str, options: Mapping[str, Any]) -> None:
    """``monai.bundle run`` of a given config."""
    from monai.bundle import run

    given = dict(options)
    run(str(given.pop("run_id", "run")), config_file=str(given.pop("config")), **given)


def read_cached(home: str, options: Mapping[str, Any]) -> None:
    """Read a data set twice through ``PersistentDataset`` and write what came."""
    import numpy as np
    from monai.data import PersistentDataset, load_decathlon_datalist
    from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, NormalizeIntensityd

    rows = load_decathlon_datalist("plain/datalist.json", True, "training", ".")
    chain = Compose([LoadImaged("image"), EnsureChannelFirstd("image"), NormalizeIntensityd("image")])
    data = PersistentDataset([{"image": row["image"]} for row in rows], chain, cache_dir="cache")
    Path("out").mkdir(exist_ok=True)
    np.save("out/voxels.npy", np.stack([np.asarray(data[k]["image"]) for k in range(len(data))]))


def export(home: str, options: Mapping[str, Any]) -> None:
    """Export a network to TorchScript by ``monai.networks.convert_to_torchscript``."""
    import torch
    from monai.networks.utils import convert_to_torchscript

    Path("out").mkdir(exist_ok=True)
    convert_to_torchscript(network(), filename_or_obj=str(options["output"]), inputs=[torch.zeros(1, 1, 16, 16)])
