# SPDX-License-Identifier: Apache-2.0
"""Try reduced precision in a child process first: on some processors it kills the process.

Some virtual machines advertise AMX and fault on its first instruction (SIGILL), which no ``except`` catches. oneDNN,
which torch and OpenVINO both use, leaves AMX alone when ``ONEDNN_MAX_CPU_ISA`` says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["ISA_CAP", "guard_int8", "run_child", "runs"]

#: The environment under which oneDNN does not use AMX.
ISA_CAP = {"ONEDNN_MAX_CPU_ISA": "AVX10_1_512"}

_PROGRAM = """
import sys, numpy, openvino
model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
shape = [2 if side.is_dynamic else side.get_length() for side in model.inputs[0].get_partial_shape()]
model(numpy.zeros(shape, numpy.float32))
"""


def guard_int8(path: StrPath) -> None:
    """Make sure that an int8 model runs on this processor before it is run in this process.

    Where it dies with AMX, AMX is switched off for this process, which must not have used OpenVINO before.

    Raises:
        VmfError: VMF531 if it does not run at all.
    """
    found = ""
    for environment in ({}, ISA_CAP):
        code, found = runs(Path(path), environment)
        if code == 0:
            os.environ.update(environment)
            return
    raise VmfError(
        "VMF531",
        subject=str(path),
        rule="int8 does not run on this processor",
        found=found,
        fix="use --backend openvino or torch",
    )


def runs(path: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a model once in a child process and return its exit code (0 is well) with what went wrong."""
    return run_child([sys.executable, "-c", _PROGRAM, str(path)], environment, 300)


def run_child(command: list[str], environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run a program of ours in a child process and return its exit code (0 is well) with what went wrong."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and program, paths are single arguments
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {seconds:.0f} s"
    if done.returncode < 0:
        return done.returncode, f"killed by signal {-done.returncode}"
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
