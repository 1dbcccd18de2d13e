# SPDX-License-Identifier: Apache-2.0
"""``vmfseg serve``: models for 3D Slicer, MONAI Label clients and a browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from vmfseg.cli.terminal import BatchSize, Device, Trust, echo
from vmfseg.utils.packages import require_package

__all__ = ["serve"]

_NEEDED = ("fastapi", "uvicorn", "python_multipart")


def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE",
            help="Names of bundles (hearts, cords), or folders of bundles or runs.",
            show_default=False,
        ),
    ],
    studies: Annotated[
        Path,
        typer.Option(help="Folder of images; labels are kept in its subfolder labels.", show_default=False),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's need --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="VMFSEG_TOKEN",
            help="What clients must show; in 3D Slicer it is the password. Better set than typed.",
            show_default=False,
            show_envvar=True,
        ),
    ] = "",
    max_upload: Annotated[int, typer.Option("--max-upload", min=1, help="Largest request in MB.")] = 1024,
    queue: Annotated[int, typer.Option(min=1, help="Requests that run or wait; further ones get status 503.")] = 16,
    batch_size: BatchSize = 8,
    device: Device = None,
    trust: Trust = False,
) -> None:
    r"""Start a MONAI Label-compatible server, with a viewer on /.

    The viewer sorts the cases by flag and predicted Dice; correct labels with a brush, submit them, fine-tune on them.
    Images are only read. What clients upload or label is added and replaces nothing. Stop with Ctrl-C.

    \b
    Example:
      vmfseg serve hearts --studies ~/scans
    """
    from rich.logging import RichHandler

    for name in _NEEDED:
        require_package(name)
    from vmfseg.serving import Service, ServiceOptions
    from vmfseg.serving import serve as run

    def ready(url: str, service: Service) -> None:
        echo(f"serving {', '.join(service.models)} and {len(service.studies.ids())} images at {url}")
        echo(f"viewer {url}/   API {url}/docs   stop with Ctrl-C")

    handler = RichHandler(show_path=False, markup=False, rich_tracebacks=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    options = ServiceOptions(token=token, max_upload=max_upload * 1_000_000, queue=queue, device=device)
    run(bundles, studies, host, port, options, batch_size=batch_size, trust=trust, on_ready=ready)
