# SPDX-License-Identifier: Apache-2.0
"""The page, the API documentation, the login of MONAI Label clients, and the health check."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, PackageLoader, select_autoescape

from vmfseg import __version__
from vmfseg.serving.gate import client_address
from vmfseg.serving.routes.infer import Shared
from vmfseg.utils import VmfError

__all__ = ["ASSETS", "router"]

router = APIRouter(tags=["server"])

#: What ``make web`` builds. Nothing else is served from it.
ASSETS = Path(__file__).parents[1] / "assets"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_PAGES = Environment(loader=PackageLoader("vmfseg.serving", "pages"), autoescape=select_autoescape())


@router.get("/health", summary="Whether the server is alive")
async def health(service: Shared) -> dict[str, Any]:
    """Answer at once, whatever the models are doing."""
    return {"status": "ok", "version": __version__, "pending": service.worker.pending, "queue": service.worker.limit}


@router.get("/", include_in_schema=False)
def page() -> Response:
    """Return the page, or how to build it."""
    built = ASSETS / "index.html"
    if built.is_file():
        return FileResponse(built, media_type="text/html")
    return HTMLResponse(_PAGES.get_template("unbuilt.html").render(version=__version__))


@router.get("/assets/{name}", include_in_schema=False)
def asset(name: str) -> Response:
    """Return a file of the page; names are looked up among those that are there."""
    known = {path.name: path for path in (ASSETS, ASSETS.parent / "pages") if path.is_dir() for path in path.iterdir()}
    file = known.get(name)
    if file is None or file.suffix not in _TYPES:
        raise VmfError("VMF192", subject="asset", rule="there is no such file", fix="build the page by make web")
    return FileResponse(file, media_type=_TYPES[file.suffix])


@router.get("/favicon.ico", include_in_schema=False)
def icon() -> Response:
    """Say that there is none: browsers ask of their own accord."""
    return Response(status_code=204)


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    """Return the API documentation as a page that loads nothing from elsewhere."""
    schema = request.app.openapi()
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            entry = _operation(path, method, operation, schema)
            groups.setdefault(operation.get("tags", ["other"])[0], []).append(entry)
    html = _PAGES.get_template("docs.html").render(groups=groups, version=__version__, url=str(request.base_url))
    return HTMLResponse(html)


@router.get("/auth/", summary="Whether a token is needed")
def auth(service: Shared) -> dict[str, Any]:
    """Answer 404 where no token is needed, as clients of MONAI Label expect."""
    if not service.options.token:
        raise VmfError("VMF192", subject="auth", rule="no token is needed here", fix="send requests without one")
    return {"enabled": True, "client_id": "vmfseg", "realm": "vmfseg"}


@router.post("/auth/token", summary="Log in: any user name, the token as password")
def login(
    request: Request,
    service: Shared,
    password: Annotated[str, Form()],
    username: Annotated[str, Form()] = "",
    grant_type: Annotated[str, Form()] = "password",
) -> dict[str, str]:
    """Return the token, for the login window of 3D Slicer."""
    token, client = service.options.token, client_address(request.scope)
    service.attempts.check(client)
    if not token or not secrets.compare_digest(password.encode(), token.encode()):
        service.attempts.failed(client)
        raise VmfError("VMF188", subject="password", fix="ask who started it")
    return {"access_token": token, "token_type": "bearer"}


@router.get("/auth/token/valid", summary="Whether the token is right")
def login_valid() -> dict[str, Any]:
    """Answer 200; a wrong token does not come this far."""
    return {}


def _operation(path: str, method: str, operation: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    fields = [
        {"name": p["name"], "place": p["in"], "about": p.get("description", ""), "needed": p.get("required", False)}
        for p in operation.get("parameters", [])
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        form = _resolved(content["schema"], schema)
        for name, field in form.get("properties", {}).items():
            needed = name in form.get("required", [])
            fields.append({"name": name, "place": "form", "about": field.get("description", ""), "needed": needed})
    about = [_with_code(text) for text in str(operation.get("description", "")).split("\n\n") if text]
    return {
        "path": path,
        "method": method.upper(),
        "title": operation.get("summary", ""),
        "about": about,
        "fields": fields,
    }


def _with_code(text: str) -> list[tuple[bool, str]]:
    """Return the pieces of a docstring's paragraph, each with whether it is code."""
    return [(index % 2 == 1, piece) for index, piece in enumerate(text.split("``")) if piece]


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = str(node.get("$ref", "")).rsplit("/", 1)[-1]
    found: dict[str, Any] = schema.get("components", {}).get("schemas", {}).get(name, node)
    return found
