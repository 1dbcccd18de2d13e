# SPDX-License-Identifier: Apache-2.0
"""``python -m vmfseg.bundle build|check``: write the bundles from the layers, or see whether they still agree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vmfseg.bundle.check import check_bundle
from vmfseg.bundle.compile import bundle_names, write_bundle
from vmfseg.utils import VmfError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m vmfseg.bundle", description=__doc__.split(": ", 1)[1])
    parser.add_argument("verb", choices=("build", "check"), help="build writes; check only looks, and runs no config")
    parser.add_argument("names", nargs="*", metavar="BUNDLE", help="which bundles; all by default")
    parser.add_argument("--folder", type=Path, default=Path("bundles"), help="where the bundles are (bundles)")
    options = parser.parse_args(arguments)
    failed: VmfError | None = None
    for name in options.names or bundle_names():
        try:
            if options.verb == "build":
                sys.stdout.write(f"{name}: {len(write_bundle(name, options.folder))} files\n")
            else:
                check_bundle(name, options.folder)
                sys.stdout.write(f"{name}: good\n")
        except VmfError as error:
            sys.stderr.write(f"{name}: {error.render()}\n")
            failed = error
    return 0 if failed is None else failed.exit_code


if __name__ == "__main__":
    sys.exit(main())
