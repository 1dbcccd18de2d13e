# SPDX-License-Identifier: Apache-2.0
"""Count wrong tokens of each client, and refuse further ones for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from vmfseg.utils import VmfError

__all__ = ["Attempts"]

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
        vmfseg.utils.errors.VmfError: error VMF562: too many wrong tokens...
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
