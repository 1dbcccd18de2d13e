# SPDX-License-Identifier: Apache-2.0
"""Draw a montage of endless phantom slices: ``python -m vmfseg.phantom hearts slices.png [--real FOLDER]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vmfseg.phantom.montage import save_slice_montage

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw a montage of endless slices from the command line."""
    parser = argparse.ArgumentParser(prog="python -m vmfseg.phantom", description=main.__doc__)
    parser.add_argument("kind", choices=("hearts", "cords"))
    parser.add_argument("png", help="the picture to write")
    parser.add_argument("--real", help="folder of real NIfTI scans to draw beside the phantom")
    for name, value in (("rows", 3), ("columns", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--labels", action="store_true", help="lay the phantom's labels over its slices")
    save_slice_montage(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
