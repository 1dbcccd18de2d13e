# SPDX-License-Identifier: Apache-2.0
"""HTTP protocol that cuts off clients whose request line and headers do not arrive in time.

uvicorn waits for them without limit, before any middleware sees a request; so a client that sends a byte a minute could
hold a connection for ever, without a token.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["HeadTimeoutProtocol", "protocol_with_timeout"]

_MAX_HEAD = 1 << 16


class HeadTimeoutProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol with a limit on how long, in seconds and bytes, the head of a request may take."""

    head_timeout = 10.0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or of a body."""
        waits = self._waits()
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if waits and self._waits() else 0
        if self._head_bytes > _MAX_HEAD:
            self._cut()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop()
        super().connection_lost(exc)

    def _waits(self) -> bool:
        """Tell whether no request is under way."""
        cycle = getattr(self, "cycle", None)
        return cycle is None or bool(cycle.response_complete)

    def _watch(self) -> None:
        if not self._waits():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout, self._cut)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        self._timer = None
        if self._waits() and self.transport is not None:
            self.transport.close()


def protocol_with_timeout(seconds: float) -> type[HeadTimeoutProtocol]:
    """Return the protocol with this many seconds for the head of a request."""
    return type("HeadTimeoutProtocol", (HeadTimeoutProtocol,), {"head_timeout": seconds})
