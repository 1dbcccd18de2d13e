# SPDX-License-Identifier: Apache-2.0
"""Plain MONAI: LoadImage, bundle run, CheckpointSaver and SaveImage, put together as its model zoo does.

Its messages are judged by the text of the exception alone, without the traceback; it needs no code and any exit code
but 0 will do. Of several checkpoints the newest that can be read is taken.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.relbench.process import Call, Outcome
from benchmarks.relbench.tools import monai_verbs
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.tools.ours import is_whole
from benchmarks.relbench.trees import hash_files

__all__ = ["PlainMonai"]

_ADVICE = r"please|\btry\b|should|must be|\buse\b|\bset\b|install|check|consider|\bpass\b|\bneeds?\b|expected|require"
_VERBS: dict[str, Callable[..., None]] = {
    "segment": monai_verbs.segment,
    "verify": monai_verbs.load_pairs,
    "train": monai_verbs.train,
    "unpack": monai_verbs.unpack,
    "weights": monai_verbs.load_weights,
    "config": monai_verbs.run_config,
    "cached": monai_verbs.read_cached,
    "export": monai_verbs.export,
}


class PlainMonai(Tool):
    """MONAI 1.6.1 without anything of vmfseg."""

    name = "MONAI"

    def call(self, job: Job, place: Path) -> Call | None:
        """Return the call of the verb."""
        if job.plain is None:
            return None
        options: dict[str, Any] = dict(job.plain)
        function = _VERBS.get(options.pop("verb", job.verb))
        return None if function is None else self._call(function, job, place, str(self.home), options)

    def parts(self, outcome: Outcome, wanted: Wanted) -> dict[str, bool]:
        """Look for file, cause and a cure in what the exception says, or in warnings where there is none."""
        text = outcome.text
        if "Traceback" in text:  # every link of the chain, without the lines of code
            lines = [
                line for line in text.splitlines() if not line.startswith((" ", "Traceback", "The above", "During"))
            ]
            text = "\n".join(lines)
        return {
            "file": re.search(wanted.file, text) is not None,
            "cause": re.search(wanted.cause, text, re.IGNORECASE) is not None,
            "cure": wanted.noted or re.search(_ADVICE, text, re.IGNORECASE) is not None,
        }

    def digest(self, job: Job, place: Path) -> str:
        """Hash the tensors of a model, or the files of another result."""
        model = place / "out" / "models" / "model.pt"
        if job.verb != "train":
            return hash_files(place / "out")
        if not is_whole(model):
            return ""
        import torch

        found = hashlib.sha256()
        for name, value in sorted(torch.load(model, weights_only=True).items()):
            found.update(name.encode() + value.numpy().tobytes())
        return found.hexdigest()

    def again(self, job: Job) -> Job:
        """Resume a training from the newest checkpoint that can be read."""
        return job.having(resume=True) if job.verb == "train" else job

    def whole(self, path: Path) -> bool:
        """Read a result by its own library."""
        return is_whole(path)
