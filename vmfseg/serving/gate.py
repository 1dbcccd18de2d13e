# SPDX-License-Identifier: Apache-2.0
"""Middleware that checks token, host, size and speed of requests, counts wrong tokens and sets security headers."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
from asyncio import wait_for
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vmfseg.serving.http_errors import Refusal, refusal_response
from vmfseg.utils import VmfError

__all__ = ["Attempts", "Gate", "GateRules", "client_address"]

logger = logging.getLogger("vmfseg.serving")

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
#: Answered without a token: they tell nothing about studies or models.
_OPEN = re.compile(r"/|/health/?|/assets/[^/]+|/auth/?|/auth/token/?")
_FORMS = ("/infer/", "/session/", "/datastore/", "/vmfseg/")
_FORM_TYPES = ("multipart/form-data", "application/x-www-form-urlencoded")
#: Slower clients are cut off after the time that the rules allow for a pause.
_MIN_BYTES_PER_SECOND = 10_000
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; font-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class GateRules:
    """What is let in.

    Attributes:
        token: what ``Authorization: Bearer`` must say; empty asks for nothing, and then only this machine is served.
        max_upload: bytes of a request.
        body_timeout: seconds that a request may pause while it is sent.
    """

    token: str = ""
    max_upload: int = 1 << 30
    body_timeout: float = 30.0


class Gate:
    """ASGI middleware. Refuses before a body is read, counts and times the body while it is, logs one line after.

    Without a token only host names of this machine are answered, and nothing that another site's page asks for: so a
    web page that the user happens to visit cannot reach a server on his own machine (DNS rebinding, forged requests).
    The log names no id: ids of images may be names of patients.

    Args:
        app: what is guarded.
        rules: what is let in.
        attempts: wrong tokens so far.
    """

    def __init__(self, app: ASGIApp, rules: GateRules, attempts: Attempts | None = None) -> None:
        self.app, self.rules, self._salt = app, rules, secrets.token_bytes(16)
        self.attempts = attempts or Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if status in (401, 403, 408, 413, 415, 429):  # the rest of the body is not read
                    headers["Connection"] = "close"
            await send(message)

        try:
            refusal = self._refuse(scope)
            if refusal is not None:
                await refusal_response(refusal)(scope, receive, guarded_send)
            else:
                await self.app(scope, self._counted(scope, receive), guarded_send)
        finally:
            self._log(scope, status, time.monotonic() - start)

    def _refuse(self, scope: Scope) -> Refusal | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self.rules.token:
            if not _OPEN.fullmatch(path) and not self._has_token(headers):
                return self._wrong_token(scope, headers)
        elif _host_name(headers.get("host", "")) not in _LOOPBACK:
            return Refusal(_other_host(headers.get("host", "")))
        origin = headers.get("origin")
        if origin and origin.split("://")[-1] != headers.get("host", "") and scope["method"] != "GET":
            return Refusal(_other_host(origin))
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.rules.max_upload:
            return Refusal(self._too_large(f"{int(length)} bytes"))
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind and scope["method"] in ("PUT", "POST") and path.startswith(_FORMS) and kind not in _FORM_TYPES:
            return Refusal(VmfError("VMF194", subject="Content-Type", found=kind))
        return None

    def _wrong_token(self, scope: Scope, headers: Headers) -> Refusal:
        client = client_address(scope)
        try:
            self.attempts.check(client)
        except VmfError as error:
            return Refusal(error)
        if headers.get("authorization"):
            self.attempts.failed(client)
        return Refusal(_no_token())

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = secrets.compare_digest(given.strip().encode(), self.rules.token.encode())
        return right and scheme.lower() == "bearer"

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        start, size, done = time.monotonic(), 0, False

        async def counted() -> Message:
            nonlocal size, done
            if done:
                return await receive()
            left = self.rules.body_timeout + size / _MIN_BYTES_PER_SECOND - (time.monotonic() - start)
            try:
                message = await wait_for(receive(), max(left, 0.001))
            except TimeoutError as error:
                raise Refusal(_too_slow(size)) from error
            done = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.rules.max_upload:
                raise Refusal(self._too_large("more than that"))
            return message

        return counted

    def _too_large(self, found: str) -> VmfError:
        limit = f"a request must not exceed {self.rules.max_upload} bytes"
        return VmfError("VMF190", subject="upload", rule=limit, found=found)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "-")
        given = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        named = [value for key in ("image", "label", "id", "session_id") for value in given.get(key, [])]
        marks = " ".join(hashlib.sha256(self._salt + name.encode()).hexdigest()[:8] for name in named)
        logger.info("%s %s %d %.3fs %s", scope["method"], route, status, seconds, marks)


def client_address(scope: Scope) -> str:
    """Return the address of the client of a request."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _host_name(host: str) -> str:
    return host.lower() if host.endswith("]") else host.lower().rsplit(":", 1)[0]


def _no_token() -> VmfError:
    return VmfError(
        "VMF188",
        subject="Authorization",
        found="none, or another",
        fix="send Authorization: Bearer TOKEN; in 3D Slicer log in with the token as password",
    )


def _other_host(found: str) -> VmfError:
    return VmfError("VMF189", subject="request", found=found[:80] or "no host")


def _too_slow(size: int) -> VmfError:
    found = f"{size} bytes so far"
    return VmfError("VMF191", subject="upload", found=found)


_MAX_CLIENTS = 10_000


class Attempts:
    """Wrong tokens by client.

    Args:
        limit: wrong tokens that a client may send within ``seconds``.
        seconds: after which a wrong token is forgotten.

    Example:
        >>> attempts = Attempts(limit=1)
        >>> attempts.check("10.0.0.7")
        >>> attempts.failed("10.0.0.7")
        >>> attempts.check("10.0.0.7")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF562: the server has had too many wrong tokens...
    """

    def __init__(self, limit: int = 10, seconds: float = 60.0) -> None:
        self.limit, self.seconds = limit, seconds
        self._times: OrderedDict[str, list[float]] = OrderedDict()
        self._lock = threading.Lock()

    def failed(self, client: str) -> None:
        """Note a wrong token."""
        with self._lock:
            recent = [*self._recent(client), time.monotonic()][-self.limit :]
            self._times[client] = recent
            self._times.move_to_end(client)
            while len(self._times) > _MAX_CLIENTS:
                self._times.popitem(last=False)

    def check(self, client: str) -> None:
        """Refuse a client with too many wrong tokens (VMF562)."""
        with self._lock:
            recent = self._recent(client)
        if len(recent) >= self.limit:
            raise VmfError("VMF562", subject="token", found=f"{len(recent)} within {self.seconds:g} seconds")

    def _recent(self, client: str) -> list[float]:
        start = time.monotonic() - self.seconds
        return [moment for moment in self._times.get(client, []) if moment > start]
