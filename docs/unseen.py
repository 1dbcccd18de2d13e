# SPDX-License-Identifier: Apache-2.0
"""Print the path of the first scan of a run's target domain, which was not used for training. ``make demo`` uses it."""

from __future__ import annotations

import sys

from vmfseg.model import Model
from vmfseg.visualize import run_experiment

if __name__ == "__main__":
    bundle, weights = sys.argv[1:]
    experiment, _ = run_experiment(Model.load(bundle, weights))
    sys.stdout.write(f"{experiment.target[0]['image']}\n")
