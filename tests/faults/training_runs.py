# SPDX-License-Identifier: Apache-2.0
"""Run a tiny bundle in a process of its own, watch it, and kill it."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from forked_runs import ForkedRun

#: A network and a schedule that take seconds: 3 epochs of pre-training, 4 of training.
TINY: dict[str, object] = {
    "network_def::channels": [4, 8, 8],
    "network_def::hidden_channels": 4,
    "network_def::num_kernels": 4,
    "image_size": 32,
    "pixdim": 6.0,
    "batch_size": 8,
    "unlabeled_batch_size": 2,
    "max_iterations": 8,
    "epoch_length": 2,
    "selection": "last",  # so that the model holds what every step did, up to the last
    "calibration::stage::max_volumes": 3,
    # a deterministic and a random transform of MONAI more than the bundle has
    "extra_transforms": '[{"_target_": "ScaleIntensityRangePercentilesd", "keys": "image", "lower": 2, "upper": 98, '
    '"b_min": 0, "b_max": 1}, {"_target_": "RandGaussianNoised", "keys": "image", "prob": 0.5}]',
}
#: For ``paper.json``, whose run has all five stages.
ALL_STAGES: dict[str, object] = {
    "labeled_fraction": 0.25,
    "network_def::log_activations": False,
    "num_workers": 0,
    "pretraining_iterations": 60,
}


class BundleRun:
    """A bundle with ``paper.json`` on tiny data, by MONAI's command or by ours.

    Args:
        bundle: folder of the bundle.
        data: folder of the data.
        output: folder of the run.
        options: of every command; by default those of ``vmfnet_mnms``.
    """

    def __init__(self, bundle: Path, data: Path, output: Path, options: Mapping[str, object] | None = None) -> None:
        self.bundle, self.data, self.output = bundle, data, output
        self.options = {**TINY, **ALL_STAGES} if options is None else dict(options)

    @property
    def model(self) -> Path:
        return self.output / "models" / "model.safetensors"

    def digest(self) -> str:
        """Return the checksum of the final weights."""
        return hashlib.sha256(self.model.read_bytes()).hexdigest()

    def words(self, program: str, more: Mapping[str, object]) -> list[str]:
        """Return the module of a program and its arguments."""
        options = {**self.options, "dataset_dir": self.data, **more}
        if program == "vmfseg":
            head = ["vmfseg.cli.main", "train", str(self.bundle), "--paper", "-o", str(self.output)]
            flags = [f"--{key}" for key, value in options.items() if value is True]
            return head + flags + [f"--{key}={value}" for key, value in options.items() if value is not True]
        options |= {"output_dir": self.output, "ckpt_dir": self.output / "models"}
        files = [str(self.bundle / "configs" / name) for name in ("train.json", "paper.json")]
        head = ["monai.bundle", "run", "training", "--config_file", str(files)]
        return [*head, *(f"--{key}={value}" for key, value in options.items())]

    def start(self, program: str = "monai", file_limit: int | None = None, **more: object) -> ForkedRun:
        """Start a run in a process group of its own; ``file_limit`` is the largest file it may write."""
        module, *words = self.words(program, more)
        return ForkedRun(module, words, self.bundle.parent, file_limit=file_limit)

    def run(self, program: str = "monai", **more: object) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return self.start(program, **more).wait()  # type: ignore[arg-type]

    def interrupt(
        self, line: str, number: int = signal.SIGKILL, program: str = "monai", **more: object
    ) -> tuple[int, str]:
        """Start a run, send it a signal as soon as a line matches, and return its exit code and errors."""
        run = self.start(program, **more)  # type: ignore[arg-type]
        seen = []
        for text in run.lines:
            seen.append(text)
            if re.search(line, text):
                break
        else:
            raise AssertionError(f"no line matched {line}:\n{''.join(seen)}\n{run.wait().stderr}")
        run.signal(number)
        result = run.wait()
        return result.returncode, result.stderr


def checkpoints(output: Path) -> Sequence[Path]:
    """Return the checkpoints of all stages."""
    return sorted(output.glob("stages/*/epoch-*.pt"))
