# SPDX-License-Identifier: Apache-2.0
"""The application: routes behind the gate, every error as the one error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from vmfseg import __version__
from vmfseg.serving.errors import Refusal, as_refusal, refusal_response
from vmfseg.serving.gate import Gate
from vmfseg.serving.routes import ROUTERS
from vmfseg.serving.service import Service
from vmfseg.serving.worker import ClientGone
from vmfseg.utils import VmfError

__all__ = ["create_app"]

_SWEEP_SECONDS = 60.0


def create_app(service: Service) -> FastAPI:
    """Return the server as an ASGI application; it closes the service when it stops.

    Args:
        service: models and studies.
    """
    app = FastAPI(
        title="vmfseg",
        version=__version__,
        summary="Segmentation in the language of MONAI Label, with kernels that explain it",
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
    app.add_middleware(Gate, rules=service.options.gate)
    return app


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
