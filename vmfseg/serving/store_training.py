# SPDX-License-Identifier: Apache-2.0
"""Train a served bundle on the labels of the store, in a process and a folder of its own.

The bundle itself is never written to. When a training ends well, its model is served from then on; the weights lie in
``.vmfseg/runs/MODEL-N/models`` of the studies.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg.bundle.config import read_config
from vmfseg.bundle.keys import check_knob
from vmfseg.data import Datalist
from vmfseg.data.datalist import Row
from vmfseg.data.reader import read_header, read_volume
from vmfseg.serving.http_errors import public_error
from vmfseg.serving.image_index import HIDDEN
from vmfseg.serving.label_store import FINAL, LabelStore
from vmfseg.serving.served_models import ServedModel
from vmfseg.utils import VmfError, numpy_rng, read_json, write_json

__all__ = ["OPTIONS", "Training", "row_overrides", "store_rows"]

#: What a client may choose, with the config id and the type of the value.
OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max_iterations": ("max_iterations", int),
    "max_epochs": ("train::trainer::max_epochs", int),
    "epoch_length": ("epoch_length", int),
    "learning_rate": ("learning_rate", float),
    "batch_size": ("batch_size", int),
    "seed": ("seed", int),
}
_STOP_SECONDS = 15.0
_LINES = 40


class Training:
    """The training of this server: at most one runs.

    Args:
        labels: what is learnt from.
        on_done: called with the model and the folder of a run that ended well.
    """

    def __init__(self, labels: LabelStore, on_done: Callable[[ServedModel, Path, int], None]) -> None:
        self.labels, self.on_done = labels, on_done
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._task: dict[str, Any] = {}
        self._folder = labels.studies.root
        self.stats: dict[str, dict[str, Any]] = {}

    def start(self, model: ServedModel, params: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a training and return the task as MONAI Label describes it.

        Raises:
            VmfError: VMF541 one runs already, VMF185 an option of the wrong type, VMF292 no labelled image.
        """
        values = {name: _option(key, params[key], kind) for key, (name, kind) in OPTIONS.items() if key in params}
        with self._lock:
            if self._process is not None:
                raise VmfError("VMF541", subject="training")
            share = float(_number("val_split", params.get("val_split", 0.2), float))
            trained = model.predictor.model
            if not (trained.root / "configs" / "train.json").is_file():
                raise VmfError(
                    "VMF305",
                    subject=model.name,
                    rule="a training needs the configs of the bundle",
                    found="a model without configs/train.json",
                    fix="serve the folder of the bundle",
                )
            rows = store_rows(self.labels, share, seed=values.get("seed", 0))
            folder, number = self._new_folder(model.name)
            warm = bool(params.get("pretrained", True))
            config = read_config(trained.root / "configs" / "train.json", "configs/train.json")
            # network and preprocessing of the served model, whatever the config of the bundle says
            steps = {"_target_": "Compose", "transforms": trained.preprocessing}
            changes = {"network_def": trained.network, "preprocessing": steps}
            changes |= row_overrides(rows, self.labels, config, warm=warm)
            write_json(folder / "overrides.json", {**changes, **values})
            command = [sys.executable, "-m", "vmfseg.cli.main", "train", str(trained.root), "-o", str(folder)]
            command += ["--config", str(folder / "overrides.json"), *(["--init", str(trained.weights)] if warm else [])]
            command += ["--trust"] if trained.trust else []
            self._folder = folder
            self._task = {
                "id": secrets.token_hex(8),
                "status": "RUNNING",
                "request": {"model": model.name, **{key: params[key] for key in OPTIONS if key in params}},
                "start_ts": time.strftime("%Y-%m-%dT%H:%M:%S"),
                "end_ts": "",
                "run": number,
            }
            with (folder / "log.txt").open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and command
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that its data loaders end with it
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
            threading.Thread(target=self._wait, args=(self._process, model, number), daemon=True).start()
            return self._describe()

    def status(self, *, running_only: bool = False) -> dict[str, Any]:
        """Return the current task, or the last one.

        Raises:
            VmfError: VMF187 if there is none.
        """
        with self._lock:
            if not self._task or (running_only and self._process is None):
                raise VmfError("VMF187", subject="training")
            return self._describe()

    def stop(self) -> dict[str, Any]:
        """End the training, at once if it does not listen.

        Raises:
            VmfError: VMF187 if none runs.
        """
        self.status(running_only=True)
        with self._lock:
            process = self._process
            self._task["status"] = "STOPPING"
        if process is not None:
            _end(process)
        with self._lock:
            self._task["status"] = "STOPPED"
            return self._describe()

    def close(self) -> None:
        """End what runs."""
        process = self._process
        if process is not None:
            _end(process)

    def _wait(self, process: subprocess.Popen[bytes], model: ServedModel, number: int) -> None:
        code, folder = process.wait(), self._folder
        status, error = ("DONE", None) if code == 0 else ("ERROR", None)
        if code == 0:
            try:
                self.on_done(model, folder / "models", number)
            except VmfError as refusal:
                status, error = "ERROR", refusal
        with self._lock:
            stopped = self._task["status"] in ("STOPPING", "STOPPED")
            self._task.update(status="STOPPED" if stopped else status, end_ts=time.strftime("%Y-%m-%dT%H:%M:%S"))
            if error is not None:
                self._task["error"] = public_error(error, [folder]).as_dict()
            self.stats[model.name] = self._summary(folder)
            self._process = None

    def _describe(self) -> dict[str, Any]:
        lines = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
        roots = [self._folder, self.labels.studies.root]
        shown = [public_error(VmfError("VMF900", rule=line), roots).rule for line in lines]
        return {**self._task, "details": [line for line in shown if line]}

    def _summary(self, folder: Path) -> dict[str, Any]:
        note = folder / "history.json"
        epochs = read_json(note)["epochs"] if note.is_file() else []
        scores = [value for row in epochs for value in row["validation"].values() if value is not None]
        return {
            "run": self._task["run"],
            "status": self._task["status"],
            "epoch": epochs[-1]["epoch"] if epochs else 0,
            "best_metric": max(scores, default=None),
            "start_ts": self._task["start_ts"],
            "end_ts": self._task["end_ts"],
        }

    def _new_folder(self, name: str) -> tuple[Path, int]:
        runs, number = self.labels.studies.root / HIDDEN / "runs", 1
        runs.mkdir(parents=True, exist_ok=True)
        while (runs / f"{name}-{number}").exists():
            number += 1
        folder = runs / f"{name}-{number}"
        folder.mkdir()
        return folder, number


def store_rows(labels: LabelStore, validation: float = 0.2, seed: int = 0) -> list[Row]:
    """Return the rows of a training on the store: finished labels, some of them for validation, the rest unlabelled.

    Of a cine, frames with a label are learnt from, or two frames stand for it if there is none.

    Args:
        labels: of the store.
        validation: share of the labelled images that choose the model; none if there is only one.
        seed: of that choice.

    Raises:
        ValueError: ``validation`` is not in [0, 1).
        VmfError: VMF292 no image has a finished label.
    """
    if not 0 <= validation < 1:
        raise ValueError(f"val_split must lie in [0, 1), got {validation}. 0.2 keeps a fifth.")
    root, found = labels.studies.root, {}
    for image in labels.studies.ids():
        frames = read_header(labels.studies.get(image).path).num_frames
        label = labels.of_image(image).get(FINAL)
        found[image] = (frames, label)
    done = sorted(image for image, (_, label) in found.items() if label is not None)
    if not done:
        fix = "save labels with the tag final first"
        raise VmfError("VMF292", subject="training", rule="no image has a finished label", fix=fix)
    count = max(1, round(validation * len(done))) if validation and len(done) > 1 else 0
    chosen = set(numpy_rng(seed, "validation").permutation(np.array(done, dtype=object))[:count])
    rows = []
    for image, (frames, label) in found.items():
        path = labels.studies.get(image).path.relative_to(root).as_posix()
        common: dict[str, Any] = {"image": path, "domain": "studies", "subject": image}
        if label is None:
            numbers: Iterable[int | None] = [None] if frames == 1 else sorted({0, frames // 3})
            rows += [Row(**common, frame=frame, split="unlabeled") for frame in numbers]
        else:
            part = "validation" if image in chosen else "labeled"
            file = label.path.relative_to(root).as_posix()
            numbers = [None] if frames == 1 else _labeled_frames(label.path)
            rows += [Row(**common, label=file, frame=frame, split=part) for frame in numbers]
    return rows


def row_overrides(rows: list[Row], labels: LabelStore, config: Mapping[str, Any], *, warm: bool) -> dict[str, Any]:
    """Return the entries of ``train.json`` that rows of the store replace.

    Args:
        rows: see :func:`store_rows`.
        labels: of the store.
        config: the bundle's ``train.json``.
        warm: start from the served weights; stages before the training are left out then.
    """
    datalist = Datalist("studies", labels.studies.root, {0: "background", 1: "class"}, tuple(rows))
    parts: dict[str, list[dict[str, Any]]] = {"labeled": [], "validation": [], "unlabeled": []}
    for row, item in zip(rows, datalist.to_dicts(), strict=True):
        parts[str(row.split)].append({key: value for key, value in item.items() if value is not None})
    values: dict[str, Any] = {"train::dataset::data": parts["labeled"], "validate::dataset::data": parts["validation"]}
    if "unlabeled_dataset" in config["train"] and parts["unlabeled"]:
        values["train::unlabeled_dataset::data"] = parts["unlabeled"]
    if warm:
        before = ("@pretraining::stage", "@kernels::stage")
        values["stages::stages"] = [stage for stage in config["stages"]["stages"] if stage not in before]
    return values


def _labeled_frames(path: Path) -> list[int]:
    array = read_volume(path, kind="label").array
    if array.ndim == 3:
        raise VmfError("VMF237", subject=path.name, found="one volume")
    return [k for k in range(array.shape[3]) if array[..., k].any()]


def _option(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """Return an option of a training; what the command line refuses is refused here, before a process is started."""
    number = _number(name, value, kind)
    try:
        check_knob(name, number)
    except VmfError as error:
        raise VmfError("VMF185", subject=name, rule=error.rule, found=error.found, fix=error.fix) from error
    return number


def _number(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 and kind(value) == value:
        return kind(value)
    raise VmfError("VMF185", subject=name, rule=f"must be a number ({kind.__name__})", found=repr(value)[:40], fix="")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)  # its own group, see start_new_session
            process.wait(_STOP_SECONDS)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
