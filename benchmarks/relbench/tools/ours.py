# SPDX-License-Identifier: Apache-2.0
"""The verbs of vmfseg, called as its command line calls them."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from benchmarks.relbench.process import Call, Outcome
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.trees import hash_files

__all__ = ["Vmfseg"]

_BLOCK = re.compile(r"error (VMF\d{3}): [^\n]*(?:\n  (?:about|found|fix   ) [^\n]*)*")
_PROGRESS = re.compile(r"^\d+/\d+ (?:written|failed|skipped) ")


def command(words: tuple[str, ...]) -> None:
    """Run ``vmfseg words`` in this process."""
    import tempfile

    from vmfseg.cli.main import main
    from vmfseg.data.reader import clear_cache

    tempfile.tempdir = None  # TMPDIR is another one in each case
    clear_cache()
    sys.argv = ["vmfseg", *words]
    main()


def read_cached(words: tuple[str, ...]) -> None:
    """Read a data set through the disk cache and write what came."""
    import numpy as np
    from monai.transforms import Compose, NormalizeIntensityd

    from vmfseg.data import LoadVolumed
    from vmfseg.data.discover import open_datalist
    from vmfseg.data.disk_cache import DiskCache

    data, _ = open_datalist("scans.csv")
    rows = [{"image": row["image"]} for row in data.to_dicts()]
    cache = DiskCache(rows, Compose([LoadVolumed(keys=["image"]), NormalizeIntensityd("image")]), "cache")
    Path("out").mkdir(exist_ok=True)
    np.save("out/voxels.npy", np.stack([np.asarray(cache[k]["image"]) for k in range(len(cache))]))


def write_model(home: str) -> None:
    """Write a bundle with a tiny network whose weights come from a seed, and weights of the UNet of plain MONAI."""
    import torch

    from benchmarks.relbench.tools.monai_verbs import network
    from vmfseg.bundle.compile import write_bundle
    from vmfseg.model import Model
    from vmfseg.model.definitions import build

    write_bundle("vmfnet_mnms", Path(home))
    torch.manual_seed(0)
    labels = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    definition = {"_target_": "vmfseg.networks.VMFNet", "channels": [8, 16, 16], "num_kernels": 6, "hidden_channels": 8}
    model = Model.of_slices(definition, labels, 2.0, (32, 32), name="vmfnet_mnms")
    folder = Path(home) / "vmfnet_mnms" / "models"
    folder.mkdir(exist_ok=True)
    model.save(folder, build(model.network, "network").state_dict())
    torch.save({"model": network().state_dict()}, Path(home) / "weights.pt")


class Vmfseg(Tool):
    """vmfseg; its tiny bundle is ``vmfnet_mnms`` in the shared folder."""

    name = "vmfseg"

    def call(self, job: Job, place: Path) -> Call:
        """Return the call of the command line, or of the cache, which has no command."""
        if job.verb == "cached":
            return self._call(read_cached, job, place, ())
        return self._call(command, job, place, tuple(word.replace("HOME", str(self.home)) for word in self.words(job)))

    def words(self, job: Job) -> tuple[str, ...]:
        """Return the words of the command line; ``HOME`` stands for the tool's folder."""
        if job.verb == "segment":
            return ("segment", "HOME/vmfnet_mnms", *job.words, "--device", "cpu")
        if job.verb == "own model":
            return ("segment", "vmfnet_mnms", *job.words, "--device", "cpu")
        if job.verb == "check":
            return ("bundle", "check", *job.words)
        return (job.verb, *job.words)

    def parts(self, outcome: Outcome, wanted: Wanted) -> dict[str, bool]:
        """Look for code, file, cause and cure in at most five lines."""
        errors = [line for line in outcome.err.splitlines() if line.strip() and not _PROGRESS.match(line)]
        block = _BLOCK.search(outcome.err) or _BLOCK.search(outcome.out)
        if block is not None:
            text = block[0]
            lines = len(errors) + (0 if block[0] in outcome.err else text.count("\n") + 1)
        else:  # a finding in a table, or a warning: one line
            found = [line for line in outcome.text.splitlines() if re.search(wanted.code, line)]
            text, lines = "\n".join(found), len(errors) + len(found[:1])
        return {
            "lines": 0 < lines <= 5 and "Traceback" not in outcome.text,
            "code": re.search(wanted.code, text) is not None,
            "file": re.search(wanted.file, text) is not None,
            "cause": re.search(wanted.cause, text, re.IGNORECASE) is not None,
            "cure": wanted.noted or re.search(r"\n  fix    | - |, got .*\. \S", text) is not None,
            "exit": outcome.code == (0 if wanted.noted else wanted.exit),
        }

    def digest(self, job: Job, place: Path) -> str:
        """Hash the model of a training, and every result of another verb."""
        if job.verb == "train":
            model = place / "out" / "models" / "model.safetensors"
            return hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""
        return hash_files(place / "out")

    def again(self, job: Job) -> Job:
        """Resume a training."""
        return job.having("--resume") if job.verb == "train" else job

    def whole(self, path: Path) -> bool:
        """Read a result by its own library."""
        return is_whole(path)


def is_whole(path: Path) -> bool:
    """Whether nibabel, torch or safetensors read a file to its end."""
    import nibabel as nib
    import torch
    from safetensors.torch import load_file

    try:
        if path.name.endswith((".nii", ".nii.gz")):
            nib.load(path).get_fdata()  # type: ignore[attr-defined]
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".pt":
            torch.load(path, weights_only=True)
        else:
            return path.stat().st_size > 0
    except Exception:  # whatever a damaged file makes them raise
        return False
    return True
