# SPDX-License-Identifier: Apache-2.0
r"""Stateless seeds: randomness as a function of names, never of what ran before.

Every random draw of the project starts from :math:`\text{seed} = \mathrm{SHA256}(p_1, p_2, \dots)` over the parts that
identify it, for instance (run seed, epoch, sample id). So a resumed run equals an uninterrupted one bit for bit, the
number of workers changes nothing, and subject 17 of the phantom is the same whatever else is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # both take seconds to import, and the command line needs neither for its help
    import numpy as np
    import torch

__all__ = ["derive_seed", "numpy_rng", "seeded", "torch_rng"]


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed that depends on all ``parts`` (their ``str``) and on their order.

    Example:
        >>> derive_seed(0, "epoch", 3) == derive_seed(0, "epoch", 3), derive_seed(0, 1) == derive_seed(1, 0)
        (True, False)
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_rng(*parts: object) -> np.random.Generator:
    """Return a NumPy generator for these ``parts``."""
    import numpy as np

    return np.random.default_rng(derive_seed(*parts))


def torch_rng(*parts: object) -> torch.Generator:
    """Return a CPU torch generator for these ``parts``."""
    import torch

    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed torch's global CPU generator inside the block and restore its state afterwards.

    Weight initialisation of ``torch.nn`` knows only the global generator; this keeps its use local. If the first part
    is ``None``, the block uses the global generator as it is.

    Example:
        >>> import torch
        >>> before = torch.get_rng_state()
        >>> with seeded(0, "head"):
        ...     a = torch.rand(1)
        >>> with seeded(0, "head"):
        ...     b = torch.rand(1)
        >>> bool(a == b), torch.equal(before, torch.get_rng_state())
        (True, True)
    """
    import torch

    if parts[0] is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
