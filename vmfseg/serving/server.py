# SPDX-License-Identifier: Apache-2.0
"""The ASGI application, and the server that listens on a port."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from vmfseg import __version__
from vmfseg.serving.gate import Gate
from vmfseg.serving.http_errors import Refusal, as_refusal, refusal_response
from vmfseg.serving.image_index import ImageIndex
from vmfseg.serving.routes import ROUTERS
from vmfseg.serving.served_models import load_models
from vmfseg.serving.service import Service, ServiceOptions
from vmfseg.serving.slow_clients import protocol_with_timeout
from vmfseg.serving.worker import ClientGone
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["check_host", "create_app", "serve", "server_config"]

_SWEEP_SECONDS = 60.0
_SWITCH_SECONDS = 0.0005


def create_app(service: Service) -> FastAPI:
    """Return the server as an ASGI application; it closes the service when it stops.

    Args:
        service: models and studies.
    """
    app = FastAPI(
        title="vmfseg",
        version=__version__,
        summary="Segmentation by the MONAI Label REST API, with kernel maps",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(ValueError, _error)
    app.add_exception_handler(Exception, _error)
    app.add_middleware(Gate, rules=service.options.gate, attempts=service.attempts)
    return app


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
        bundles: folders of bundles, or names of bundles.
        studies: folder of images.
        host: address to listen on; others than this machine's own need a token.
        port: 0 takes a free one.
        options: how the server behaves.
        batch_size: slices at once.
        trust: see :meth:`vmfseg.model.Model.load`.
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
        service = Service(models, ImageIndex(studies), chosen)
        _answer_promptly()
        logging.getLogger("vmfseg.serving").setLevel(logging.INFO)
        shown = f"[{host}]" if ":" in host else host
        if on_ready is not None:
            on_ready(f"http://{shown}:{listener.getsockname()[1]}", service)
        uvicorn.Server(server_config(service)).run(sockets=[listener])
    finally:
        listener.close()


def _answer_promptly() -> None:
    """Let the thread that answers wait less for the one that segments: they share one interpreter.

    The segmenting thread gives way after half a millisecond instead of five, which an answer waits for several times;
    and what is loaded by now (half a million objects, a third of a second) is left out of every later garbage
    collection, during which nothing is answered.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def server_config(service: Service) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    return uvicorn.Config(
        create_app(service),
        http=protocol_with_timeout(service.options.head_timeout),
        access_log=False,  # it would write ids, which may be names, into the log; the gate has its own
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=10,
    )


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


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    sweeper = asyncio.create_task(_sweep(service))
    try:
        yield
    finally:
        sweeper.cancel()
        with suppress(asyncio.CancelledError):
            await sweeper
        service.close()


async def _sweep(service: Service) -> None:
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        await asyncio.to_thread(service.sessions.sweep)


async def _error(request: Request, error: Exception) -> Response:
    return refusal_response(as_refusal(error, request.app.state.service.roots))


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return await _error(request, error)
    status = error.status_code if isinstance(error, HTTPException) else 500
    subject, detail = request.method, str(getattr(error, "detail", ""))
    known: dict[int, tuple[str, str, str]] = {
        404: ("VMF192", "there is no such route", "see /docs"),
        405: ("VMF193", "the route does not take this method", "see /docs"),
    }
    code, rule, fix = known.get(status, ("VMF185", "the request cannot be read", "see /docs"))
    detail = "" if status in known else detail
    return refusal_response(Refusal(VmfError(code, subject=subject, rule=rule, found=detail, fix=fix), status))


async def _validation_error(_request: Request, error: Exception) -> Response:
    problems: list[Any] = list(error.errors()) if isinstance(error, RequestValidationError) else []
    places = [".".join(str(part) for part in problem["loc"][1:]) or "body" for problem in problems]
    found = "; ".join(f"{place}: {problem['msg']}" for place, problem in zip(places, problems, strict=True))
    refusal = VmfError(
        "VMF185",
        subject=", ".join(places)[:120],
        rule="the request is not complete",
        found=found[:200],
        fix="see /docs",
    )
    return refusal_response(Refusal(refusal, 422))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(128)  # whoever connects from now on waits until the models are loaded
    except (OSError, OverflowError) as error:
        listener.close()
        raise VmfError("VMF543", subject=f"{host}:{port}", found=str(error)) from error
    return listener
