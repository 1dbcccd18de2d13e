# SPDX-License-Identifier: Apache-2.0
"""Studies: a grid of bundle runs, executed by processes, Ray or Slurm, and the tables of what came out."""

from .driver import run_study
from .engine import make_engine
from .plan import Plan
from .records import open_study, read_records
from .source_data import find_data
from .study_file import Study
from .summary import summarize_study

__all__ = [
    "Plan",
    "Study",
    "find_data",
    "make_engine",
    "open_study",
    "read_records",
    "run_study",
    "summarize_study",
]
