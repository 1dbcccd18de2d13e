# SPDX-License-Identifier: Apache-2.0
"""Stages of a run: pre-training, kernels, training, calibration, evaluation; each skipped when done, each resumable."""
