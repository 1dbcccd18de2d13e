# SPDX-License-Identifier: Apache-2.0
"""Print the path of a scan that a run has never seen: the first one of its target domain. ``make demo`` segments it."""

from __future__ import annotations

import sys

from vmfseg.visualize import load_run_model

if __name__ == "__main__":
    bundle, model = sys.argv[1:]
    sys.stdout.write(f"{load_run_model(bundle, model).experiment.target[0]['image']}\n")
