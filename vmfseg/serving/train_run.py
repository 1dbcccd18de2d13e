# SPDX-License-Identifier: Apache-2.0
"""One training of a served bundle, in a process of its own: ``python -m vmfseg.serving.train_run JOB.json``.

The bundle's own ``training`` runs, by MONAI's workflow, with the data of the store in place of its own: finished labels
are learnt from, some of them choose the model, all other images are unlabelled.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from monai.bundle import ConfigWorkflow

from vmfseg.data import Datalist, Experiment
from vmfseg.data.splits import Split
from vmfseg.utils import find_vmf_error, read_json
from vmfseg.utils.io import StrPath

__all__ = ["load_experiment", "main", "overrides"]


def load_experiment(datalist: StrPath) -> Experiment:
    """Return the experiment that a datalist with ``split`` fields describes; ``source`` of the bundle's config."""
    rows = Datalist.load(datalist)
    experiment = Experiment(rows, Split.from_datalist(rows))
    sys.stdout.write("\n".join([experiment.describe(), *experiment.remarks()]) + "\n")
    return experiment


def overrides(job: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return what of a bundle's ``train.json`` is replaced.

    Stages that judge an unseen domain are left out: the store knows of none. From weights that are there, only the
    training itself goes on.

    Args:
        job: ``folder``, ``weights`` (or none), ``values`` by config id.
        config: the bundle's ``train.json``.
    """
    folder = Path(job["folder"])
    stages = [stage for stage in config["stages"]["stages"] if "evaluation" not in str(stage)]
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "ckpt_dir": str(folder / "models"),
        "source": {"_target_": f"{__spec__.name}.load_experiment", "datalist": str(folder / "datalist.json")},
    }
    if job.get("weights"):
        loader = {"_target_": "vmfseg.model.ModelLoader", "network": "@network", "path": job["weights"]}
        values["train::handlers"] = [loader, *config["train"]["handlers"]]
        stages = [stage for stage in stages if str(stage) not in ("@pretraining::stage", "@kernels::stage")]
    return {**values, "stages::stages": stages, **job["values"]}


def main(path: StrPath) -> int:
    """Run the job that a file describes; return the exit code."""
    job = read_json(path)
    file = Path(job["config"])
    values = overrides(job, read_json(file))
    try:
        workflow = ConfigWorkflow(str(file), run_id="training", workflow_type="train", **values)
        workflow.initialize()
        workflow.run()
        workflow.finalize()
    except Exception as error:
        found = find_vmf_error(error)
        if found is None:
            raise
        sys.stderr.write(f"vmfseg: {found.render()}\n")
        return found.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
