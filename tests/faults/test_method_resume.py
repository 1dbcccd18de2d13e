# SPDX-License-Identifier: Apache-2.0
"""The compared methods after ``kill -9``: noise, partners, meta-test domains and schedules go on where they were."""

from __future__ import annotations

import signal

import pytest
from training_runs import TINY, BundleRun, checkpoints

from vmfseg.bundle.compile import write_bundle

#: What only a VMFNet, or only a method with unlabelled slices, takes.
_OWN = {"network_def::hidden_channels", "network_def::num_kernels", "unlabeled_batch_size"}
_SHARED = {
    **{key: value for key, value in TINY.items() if key not in _OWN},
    "batch_size": 6, "num_workers": 0, "labeled_fraction": 0.5,
}  # fmt: skip
_SEMI = {"unlabeled_batch_size": 6}
METHODS = {
    "unet": {},
    "sdnet": {**_SEMI, "network_def::hidden_channels": 4, "train::trainer::warm_up": 2},
    "lddg": {"network_def::hidden_channels": 4, "train::schedule::step_size": 1},
    "saml": {},
    "dgnet": {**_SEMI, "network_def::style_channels": 2, "train::schedule::patience": 0},
}


@pytest.mark.parametrize(
    "method", [method if method == "saml" else pytest.param(method, marks=pytest.mark.slow) for method in METHODS]
)
def test_a_killed_training_goes_on_bit_for_bit(method, tiny_phantom, tmp_path):
    write_bundle(f"{method}_mnms", tmp_path)
    options = {**_SHARED, **METHODS[method]}
    whole, killed = (
        BundleRun(tmp_path / f"{method}_mnms", tiny_phantom, tmp_path / name, options) for name in ("whole", "killed")
    )
    result = whole.run()
    assert result.returncode == 0, result.stdout + result.stderr
    batches = 16 if "unlabeled_batch_size" in options else 8
    assert killed.interrupt(f"^training: {batches // 2}/{batches}")[0] == -signal.SIGKILL
    assert not killed.model.exists()
    assert checkpoints(killed.output)
    result = killed.run(resume="True")
    assert result.returncode == 0, result.stderr
    assert "stage 1/3 training: resumed" in result.stdout
    assert f"training: {batches // 4}/{batches}" not in result.stdout
    assert killed.digest() == whole.digest()
    assert (killed.output / "metrics.json").read_bytes() == (whole.output / "metrics.json").read_bytes()
