# SPDX-License-Identifier: Apache-2.0
"""From options to a server that listens."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence

import uvicorn

from vmfseg.serving.app import create_app
from vmfseg.serving.models import load_models
from vmfseg.serving.service import Service, ServiceOptions
from vmfseg.serving.studies import Studies
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["check_host", "serve"]


def serve(
    bundles: Sequence[StrPath],
    studies: StrPath,
    host: str = "127.0.0.1",
    port: int = 8000,
    options: ServiceOptions | None = None,
    *,
    batch_size: int = 8,
    trust: bool = False,
    on_ready: Callable[[str, Service], None] | None = None,
) -> None:
    """Serve bundles until interrupted.

    Args:
        bundles: folders of bundles, or names below ``bundles``.
        studies: folder of images.
        host: address to listen on; others than this machine's own need a token.
        port: 0 takes a free one.
        options: how the server behaves.
        batch_size: slices at once.
        trust: serve bundles that do not pass the static check.
        on_ready: called with the address when the server is about to listen.

    Raises:
        VmfError: VMF195 a host that others can reach without a token, VMF502 an address that cannot be used, and what
            the bundles and the studies are refused for.
    """
    chosen = options or ServiceOptions()
    check_host(host, chosen.token)
    listener = _listen(host, port)
    try:
        models = load_models(bundles, chosen.device, batch_size=batch_size, trust=trust)
        service = Service(models, Studies(studies), chosen)
        logging.getLogger("vmfseg.serving").setLevel(logging.INFO)
        shown = f"[{host}]" if ":" in host else host
        if on_ready is not None:
            on_ready(f"http://{shown}:{listener.getsockname()[1]}", service)
        config = uvicorn.Config(
            create_app(service),
            access_log=False,  # it would write ids, which may be names, into the log; the gate has its own
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=10,
        )
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()


def check_host(host: str, token: str) -> None:
    """Refuse a host that others can reach unless a token is set.

    Raises:
        VmfError: VMF195.

    Example:
        >>> check_host("localhost", "")
        >>> check_host("0.0.0.0", "")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF195: a host that others can reach needs a token...
    """
    try:
        private = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        private = host.lower() == "localhost"
    if not private and not token:
        raise VmfError(
            "VMF195",
            subject="--host",
            rule="a host that others can reach needs a token",
            found=host,
            fix="pass --token, or set VMFSEG_TOKEN; or leave --host out to serve this machine alone",
        )
    if token and len(token) < 16:
        raise VmfError(
            "VMF195", subject="--token", rule="a token must have 16 characters or more", found=f"{len(token)}",
            fix="take one from: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )  # fmt: skip


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(128)  # whoever connects from now on waits until the models are loaded
    except (OSError, OverflowError) as error:
        listener.close()
        raise VmfError(
            "VMF502", subject=f"{host}:{port}", rule="the address cannot be used", found=str(error), fix="try --port 0"
        ) from error
    return listener
