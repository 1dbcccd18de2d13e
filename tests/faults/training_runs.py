# SPDX-License-Identifier: Apache-2.0
"""Run a tiny bundle in a process of its own, watch it, and kill it."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: A network and a schedule that take seconds: 3 epochs of pre-training, 4 of training.
TINY: dict[str, object] = {
    "channels": [4, 8, 8],
    "hidden_channels": 4,
    "num_kernels": 4,
    "image_size": 32,
    "pixdim": 6.0,
    "batch_size": 8,
    "unlabeled_batch_size": 2,
    "pretraining_iterations": 90,
    "max_iterations": 8,
    "epoch_length": 2,
    "selection": "last",  # so that the model holds what every step did, up to the last
}


class BundleRun:
    """The bundle ``vmfnet_mnms`` on tiny data, by MONAI's command or by ours.

    Args:
        bundle: folder of the bundle.
        data: folder of the data.
        output: folder of the run.
    """

    def __init__(self, bundle: Path, data: Path, output: Path) -> None:
        self.bundle, self.data, self.output = bundle, data, output

    @property
    def model(self) -> Path:
        return self.output / "models" / "model.safetensors"

    def digest(self) -> str:
        """Return the checksum of the final weights."""
        return hashlib.sha256(self.model.read_bytes()).hexdigest()

    def command(self, program: str, more: Mapping[str, object]) -> list[str]:
        options = {**TINY, "dataset_dir": self.data, **more}
        if program == "vmfseg":
            head = [sys.executable, "-m", "vmfseg.cli.main", "train", str(self.bundle), "-o", str(self.output)]
            flags = [f"--{key}" for key, value in options.items() if value is True]
            return head + flags + [f"--{key}={value}" for key, value in options.items() if value is not True]
        options |= {"output_dir": self.output, "ckpt_dir": self.output / "models"}
        head = [sys.executable, "-m", "monai.bundle", "run", "training"]
        config = self.bundle / "configs" / "train.json"
        return [*head, "--config_file", str(config), *(f"--{key}={value}" for key, value in options.items())]

    def start(self, program: str = "monai", file_limit: int | None = None, **more: object) -> subprocess.Popen[str]:
        """Start a run in a process group of its own and return it; ``file_limit`` is the largest file it may write."""

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job would ignore Ctrl-C
            if file_limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            self.command(program, more), cwd=self.bundle.parent, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare,
        )  # fmt: skip

    def run(self, program: str = "monai", **more: object) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        process = self.start(program, **more)
        out, error = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def interrupt(
        self, line: str, number: int = signal.SIGKILL, program: str = "monai", **more: object
    ) -> tuple[int, str]:
        """Start a run, send it a signal as soon as a line matches, and return its exit code and errors."""
        process = self.start(program, **more)
        assert process.stdout is not None
        seen = []
        for text in process.stdout:
            seen.append(text)
            if re.search(line, text):
                break
        else:
            raise AssertionError(f"no line matched {line}:\n{''.join(seen)}\n{process.stderr.read()}")
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)  # its workers too
        else:
            process.send_signal(number)
        _, error = process.communicate(timeout=120)
        return process.returncode, error


def checkpoints(output: Path) -> Sequence[Path]:
    """Return the checkpoints of all stages."""
    return sorted(output.glob("stages/*/epoch-*.pt"))
