# SPDX-License-Identifier: Apache-2.0
"""``vmfseg adapt``: go on training a model that a phantom taught, with a user's own unlabelled scans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.cli.terminal import Bundle, print_line, print_table, progress_bar
from vmfseg.cli.train_command import read_pairs, train_bundle
from vmfseg.utils import VmfError, write_json
from vmfseg.utils.io import copy_file

if TYPE_CHECKING:
    from vmfseg.model import Model, Predictor
    from vmfseg.model.adaptation import OwnScan, Suitability

__all__ = ["adapt", "adapt_model"]

_KINDS = ("hearts", "cords")
_NAMES = {
    "predicted_dice": "predicted Dice",
    "log_likelihood": "log-likelihood of the kernels",
    "agreement": "agreement of repeats (Dice)",
    "phantom_dice": "Dice on the phantom",
}


def adapt(
    bundle: Bundle,
    scans: Annotated[
        list[str],
        typer.Argument(
            metavar="SCANS", help="Folders, files, glob patterns, tables or datalists of scans.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder for the model.", show_default=False)],
    iterations: Annotated[int, typer.Option(min=1, help="Phantom batches; between them as many of your scans.")] = 300,
    learning_rate: Annotated[float, typer.Option("--learning_rate", help="At the start; it falls to 0.")] = 3e-4,
    subjects: Annotated[int, typer.Option(min=4, help="Drawn phantom subjects that calibrate both models.")] = 12,
    seed: Annotated[int, typer.Option(help="Decides the order and the phantom.")] = 0,
    pairs: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of train.json; repeatable.")
    ] = None,
) -> None:
    r"""Adapt a model to your own scans, without labels: minutes on two cores.

    The phantom goes on teaching, your scans are learnt from by the terms that need
    no label. OUTPUT/models gets the new model if it suits your scans better by what
    can be measured without labels, else the old one; OUTPUT/adapt.json has the
    measures. Scans that cannot be read are named and left out. The same command
    goes on after an interruption.

    \b
    Examples:
      vmfseg adapt hearts scans/ -o my_hearts
      vmfseg segment my_hearts scans/ -o labels/
    """
    found = adapt_model(
        bundle, scans, output, iterations=iterations, learning_rate=learning_rate, subjects=subjects, seed=seed,
        overrides=read_pairs(pairs or []),
    )  # fmt: skip
    before, after = (found[part]["means"] for part in ("before", "after"))
    cells = [(title, _number(before[name]), _number(after[name])) for name, title in _NAMES.items()]
    rows = [row for row in cells if row[1:] != ("-", "-")]
    print_table(("", "before", "after"), rows, right=("before", "after"))
    print_line("; ".join(found["reasons"]))
    kept = "the adapted model" if found["helped"] else "it did not help by these measures: the old model"
    print_line(f"{kept} is in {output / 'models'}", "green" if found["helped"] else "yellow")


def adapt_model(
    bundle: str,
    scans: list[str],
    output: Path,
    *,
    iterations: int = 300,
    learning_rate: float = 3e-4,
    subjects: int = 12,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Adapt a model and return what ``adapt.json`` holds.

    Args:
        bundle: name or folder of the bundle, or folder of a run.
        scans: see :func:`vmfseg.model.adaptation.find_own_scans`.
        output: new folder.
        iterations: phantom batches.
        learning_rate: at the start.
        subjects: drawn subjects; half of them calibrate and compare both models.
        seed: of the training and the phantom.
        overrides: further values by config id.

    Raises:
        VmfError: VMF345 a model that no phantom taught, VMF346 no scan that can be read, VMF503 the folder holds a
            model; see also :func:`vmfseg.cli.train_command.train_bundle`.
    """
    from vmfseg.data import prepare_experiment
    from vmfseg.engines.stages.calibration_stage import CalibrationStage
    from vmfseg.model import Model, Predictor
    from vmfseg.model.adaptation import find_own_scans, own_datalist, verdict
    from vmfseg.model.artifact import MODEL_FILES
    from vmfseg.model.quality import QualityModel
    from vmfseg.model.ship import SHIPPED_FILES

    table = output / "run" / "scans.json"  # there without adapt.json, the last file: an adaptation was interrupted
    if (output / "adapt.json").exists() or ((output / "models").exists() and not table.exists()):
        raise VmfError("VMF503", subject=str(output), rule="the output exists already", fix="choose another -o")
    model = Model.load(bundle)
    kind, root = _teacher(model, bundle)
    old = Predictor.from_bundle(model.root, checkpoint=model.weights)
    drawn = prepare_experiment(kind, "", seed=seed, phantom={"subjects": subjects}, quiet=True)
    print_line(f"calibrating the model as it is on {len(drawn.validation)} volumes of the phantom")
    calibration = output / "run" / "before"
    CalibrationStage(model.weights.parent, drawn.validation, drawn.images, slices=0).run(calibration, False)
    old.quality = QualityModel.load(calibration / "quality.json")
    listed = find_own_scans(list(scans))
    before = _measured(old, listed, drawn.validation, "before")
    good = [scan for scan in listed if scan.name not in before.left_out]
    for name, reason in before.left_out.items():
        print_line(f"left out: {name}, {reason}", "yellow")
    if not good:
        raise VmfError(
            "VMF346", subject=", ".join(scans)[:200], found=f"{len(listed)} files, none of which can be used"
        )
    own_datalist(good, model.labels).save(table)
    values = {
        "dataset_dir": str(table),
        "target_domain": "",
        "init": str(model.weights),
        "output_dir": str(output / "run"),
        "ckpt_dir": str(output / "run" / "models"),
        "network_def": model.network,
        "preprocessing": {"_target_": "Compose", "transforms": model.preprocessing},
        "pixdim": model.pixdim,
        "image_size": model.image_size[0],
        "max_iterations": iterations,
        "epoch_length": -(-iterations // 4),
        "val_interval": 4,
        "selection": "last",  # the phantom must not choose: it would choose the start
        "learning_rate": learning_rate,
        "loss_ramps": {},
        "phantom": {"subjects": subjects},
        "calibration_slices": 0,
        "seed": seed,
        "resume": True,
        **(overrides or {}),
    }
    train_bundle(root, values)
    new = Predictor.from_bundle(output / "run" / "models")
    after = _measured(new, good, drawn.validation, "after")
    helped, reasons = verdict(before, after)
    source = output / "run" / "models" if helped else model.weights.parent
    for name in dict.fromkeys((*MODEL_FILES, *SHIPPED_FILES)):
        if (source / name).is_file():
            copy_file(source / name, output / "models" / name)
    found = {
        "format": "vmfseg-adapt-1",
        "bundle": model.name,
        "scans": [scan.name for scan in good],
        "left_out": before.left_out,
        "iterations": iterations,
        "helped": helped,
        "reasons": reasons,
        "before": before.as_dict(),
        "after": after.as_dict(),
    }
    write_json(output / "adapt.json", found)
    return found


def _teacher(model: Model, bundle: str) -> tuple[str, Path]:
    """Return the phantom that taught a model, and the bundle with the config of its training."""
    from vmfseg.model.artifact import find_bundle
    from vmfseg.model.shelves import on_shelf

    data = model.facts.get("data")
    kind = str(data.get("dataset")) if isinstance(data, Mapping) else ""
    place = find_bundle(bundle)
    root = place if (place / "configs" / "train.json").is_file() else on_shelf(kind)
    if kind not in _KINDS or root is None:
        raise VmfError(
            "VMF345",
            subject=str(model.weights),
            found=f"data {kind or 'that is not noted'}",
            fix=f"use {' or '.join(_KINDS)}, or a model trained from one of them",
        )
    return kind, root


def _measured(predictor: Predictor, scans: list[OwnScan], phantom: list[dict[str, Any]], when: str) -> Suitability:
    from vmfseg.model.adaptation import suitability

    with progress_bar(f"measuring {when}", "scans") as bar:
        task = bar.add_task("measure", total=len(scans))
        return suitability(predictor, scans, phantom, lambda done, _: bar.update(task, completed=done))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
