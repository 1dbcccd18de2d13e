# SPDX-License-Identifier: Apache-2.0
"""Which frames of a cine are segmented: all, some by number, or end-diastole and end-systole as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vmfseg.utils import VmfError
from vmfseg.utils.checks import whole_number

__all__ = ["PHASES", "find_phases", "parse_frames"]

#: Names of frames: the heart's cavity is largest at end-diastole and smallest at end-systole.
PHASES = ("ED", "ES")
_FILTER_FROM = 5


def parse_frames(frames: str | Sequence[int | str] | None, num_frames: int) -> list[int | str] | None:
    """Return the frames asked for, each a number or a phase, without repetition; ``None`` means all.

    Args:
        frames: ``None``, ``"ED,ES"``, ``"0,5"``, or a sequence of numbers and phases. Numbers count from 0.
        num_frames: how many the scan has.

    Raises:
        VmfError: VMF170 for a word that is neither, VMF235 for a frame that does not exist.

    Example:
        >>> parse_frames("ED, 3", 10), parse_frames([5, 5], 10), parse_frames(None, 10)
        (['ED', 3], [5], None)
    """
    if frames is None:
        return None
    words = [word.strip() for word in frames.split(",")] if isinstance(frames, str) else list(frames)
    found: list[int | str] = []
    for word in words:
        text = str(word)
        if text.upper() in PHASES:
            value: int | str = text.upper()
        else:
            number = whole_number(text)
            if number is None:
                raise VmfError("VMF170", subject="frames", found=text or "nothing")
            if number >= num_frames:
                raise VmfError(
                    "VMF235",
                    subject="frames",
                    found=f"frame {number} of {num_frames} (counted from 0)",
                    fix=f"Choose a frame from 0 to {num_frames - 1}.",
                )
            value = number
        if value not in found:
            found.append(value)
    return found


def find_phases(volumes: Sequence[float]) -> dict[str, int]:
    """Return the frames of largest (ED) and smallest (ES) volume of the cavity.

    From five frames on the curve is filtered by a median of three, so that one bad frame decides nothing; a cine is a
    loop, the last frame lies beside the first. Among frames equal by that, the raw volume decides.

    Args:
        volumes: of the cavity, one for each frame.

    Example:
        >>> find_phases([100, 90, 60, 45, 50, 70, 85, 95, 99])
        {'ED': 0, 'ES': 3}
    """
    raw = np.asarray(volumes, dtype=np.float64)
    curve = raw
    if len(raw) >= _FILTER_FROM:
        curve = np.median([np.roll(raw, 1), raw, np.roll(raw, -1)], axis=0)
    order = np.lexsort((raw, curve))
    return {"ED": int(order[-1]), "ES": int(order[0])}
