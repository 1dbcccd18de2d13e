# SPDX-License-Identifier: Apache-2.0
"""``vmfseg package``: a container recipe of a trained bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmfseg.cli.terminal import Bundle, Overwrite

__all__ = ["package"]


def package(
    bundle: Bundle,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the recipe.", show_default=False)],
    wheel: Annotated[
        Path | None,
        typer.Option(help="Wheel of vmfseg. [default: that of this version in ./dist]", show_default=False),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the MONAI Label API instead of segmenting.")] = False,
    overwrite: Overwrite = False,
) -> None:
    r"""Write a folder from which a container is built without a network: Dockerfile, wheel, bundle, checksums.

    Slices of patients that a training keeps for int8 exports are left out.

    \b
    Examples:
      vmfseg package runs/mine -o container
      vmfseg package hearts -o container --serve --wheel dist/vmfseg-*.whl
    """
    from vmfseg.bundle.package import package_bundle

    files = package_bundle(bundle, output, wheel, serve=serve, overwrite=overwrite)
    size = sum(path.stat().st_size for path in files) / 1e6
    typer.echo(f"written: {output} ({len(files)} files, {size:.1f} MB); next: see {output / 'README.md'}")
