# SPDX-License-Identifier: Apache-2.0
"""The program that calls nnunetv2; started by :mod:`vmfseg.methods.nnunet`, in the environment with that package.

It imports nothing of vmfseg, which need not be installed there, and reads one JSON file that says what to do.
"""

from __future__ import annotations

import json
import os
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(request_file: str) -> None:
    """Carry out one request."""
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    {"train": train, "predict": predict, "export": export}[request["task"]](request)


def train(request: dict[str, Any]) -> None:
    """Plan and preprocess, unless that is done, then train, or go on with a training that was stopped."""
    numpy, torch = import_module("numpy"), import_module("torch")
    paths = import_module("nnunetv2.paths")
    name, number = request["dataset"], int(request["dataset"][7:10])
    done = Path(str(paths.nnUNet_preprocessed)) / name / "vmfseg_done"
    if not done.is_file():
        api = import_module("nnunetv2.experiment_planning.plan_and_preprocess_api")
        count = max(1, request["processes"])
        api.extract_fingerprints([number], num_processes=count, check_dataset_integrity=True)
        api.plan_experiments([number], gpu_memory_target_in_gb=request["memory_gb"])
        if request["batch_size"]:
            plans = done.with_name("nnUNetPlans.json")
            content = json.loads(plans.read_text(encoding="utf-8"))
            content["configurations"]["2d"]["batch_size"] = request["batch_size"]
            plans.write_text(json.dumps(content, indent=4), encoding="utf-8")
        api.preprocess([number], configurations=["2d"], num_processes=[count])
        done.write_text("preprocessing is complete\n", encoding="utf-8")
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(request["seed"] % 2**32)
    # the planner takes this number for threads, so it is 0 only from here on
    os.environ["nnUNet_n_proc_DA"] = str(request["processes"])  # noqa: SIM112 - nnU-Net's own spelling
    running = import_module("nnunetv2.run.run_training")
    folder = Path(str(paths.nnUNet_results)) / name / "nnUNetTrainer__nnUNetPlans__2d" / "fold_all"
    started = (folder / "checkpoint_latest.pth").is_file()
    trainer = running.get_trainer_from_args(
        name, "2d", "all", continue_training=started, device=torch.device(request["device"])
    )
    trainer.num_epochs, trainer.num_iterations_per_epoch = request["epochs"]
    # the pseudo-validation on training cases chooses nothing here, so one batch of it is enough
    trainer.num_val_iterations_per_epoch = 1
    trainer.save_every = max(1, trainer.num_epochs // 20)
    running.maybe_load_checkpoint(trainer, started, False)
    trainer.run_training()


def predict(request: dict[str, Any]) -> None:
    """Write one label map for each image."""
    torch = import_module("torch")
    predictor = import_module("nnunetv2.inference.predict_from_raw_data").nnUNetPredictor(
        use_mirroring=request["mirror"],
        perform_everything_on_device=request["device"] != "cpu",
        device=torch.device(request["device"]),
        allow_tqdm=False,
    )
    predictor.initialize_from_trained_model_folder(request["model"], use_folds=("all",))
    predictor.predict_from_files_sequential(request["images"], request["outputs"])


def export(request: dict[str, Any]) -> None:
    """Write the weights of the trained network, tensors by name and nothing else."""
    torch = import_module("torch")
    checkpoint = Path(request["model"]) / "fold_all" / "checkpoint_final.pth"
    weights = torch.load(checkpoint, map_location="cpu", weights_only=False)["network_weights"]
    torch.save({name: tensor.clone() for name, tensor in weights.items()}, request["output"])


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules must not hide those of other packages
    main(sys.argv[1])
