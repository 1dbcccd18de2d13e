# SPDX-License-Identifier: Apache-2.0
"""The compared methods after ``kill -9``: noise, partners, meta-test domains and schedules go on where they were."""

from __future__ import annotations

import re
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
_LEVERS = {"gin": 0.5, "copy_paste": 1.0, "consistency": 0.1, "network_def::mix_style": 0.5}
METHODS = {
    "unet": {},
    "unet with levers": {**_SEMI, **_LEVERS, "pseudo_confidence": 0.4},
    "vmfnet with levers": {
        **_SEMI,
        **_LEVERS,
        "network_def::hidden_channels": 4,
        "network_def::num_kernels": 4,
        "kernel_vote": True,
        "pseudo_confidence": 0.3,
        "accumulation_steps": 2,
        "network_def::log_activations": False,
        "pretraining_iterations": 4,
    },
    "sdnet": {**_SEMI, "network_def::hidden_channels": 4, "train::trainer::warm_up": 2},
    "lddg": {"network_def::hidden_channels": 4, "train::schedule::step_size": 1},
    "saml": {},
    "dgnet": {**_SEMI, "network_def::style_channels": 2, "train::schedule::patience": 0},
}


@pytest.mark.parametrize(
    "method", [method if method == "saml" else pytest.param(method, marks=pytest.mark.slow) for method in METHODS]
)
def test_a_killed_training_goes_on_bit_for_bit(method, tiny_phantom, tmp_path):
    bundle = f"{method.split()[0]}_mnms"
    write_bundle(bundle, tmp_path)
    options = {**_SHARED, **METHODS[method]}
    whole, killed = (
        BundleRun(tmp_path / bundle, tiny_phantom, tmp_path / name, options) for name in ("whole", "killed")
    )
    result = whole.run()
    assert result.returncode == 0, result.stdout + result.stderr
    batches = 16 if "unlabeled_batch_size" in options else 8
    assert killed.interrupt(f"^training: {batches // 2}/{batches}")[0] == -signal.SIGKILL
    assert not killed.model.exists()
    assert checkpoints(killed.output)
    result = killed.run(resume="True")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^stage \d/\d training: resumed", result.stdout, re.MULTILINE)
    assert f"training: {batches // 4}/{batches}" not in result.stdout
    assert killed.digest() == whole.digest()
    assert (killed.output / "metrics.json").read_bytes() == (whole.output / "metrics.json").read_bytes()
