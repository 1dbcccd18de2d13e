# SPDX-License-Identifier: Apache-2.0
"""Worker thread for segmentations, with a bounded queue."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vmfseg.serving.http_errors import Refusal
from vmfseg.utils import VmfError

__all__ = ["ClientGone", "Worker"]

T = TypeVar("T")
_POLL_SECONDS = 0.25
_MAX_RETRY = 120


class ClientGone(Exception):
    """The client hung up before its turn came."""


class Worker:
    """Runs jobs one after the other in a thread of its own, so that the server answers meanwhile.

    Args:
        limit: jobs that run or wait; one more is refused with an estimate of when to try again.

    Example:
        >>> worker = Worker(limit=2)
        >>> asyncio.run(worker.run(lambda: 6 * 7))
        42
        >>> worker.close()
    """

    def __init__(self, limit: int = 16) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}. It counts the job that runs.")
        self.limit, self._seconds, self._pending = limit, 1.0, 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="vmfseg-worker")

    @property
    def pending(self) -> int:
        """How many jobs run or wait."""
        return self._pending

    async def run(self, job: Callable[[], T], is_gone: Callable[[], Awaitable[bool]] | None = None) -> T:
        """Run a job and return its result.

        Args:
            job: what to do.
            is_gone: tells whether nobody waits for the result any more; a job that has not begun is dropped then.

        Raises:
            Refusal: VMF540 if the queue is full.
            ClientGone: if it was dropped.
        """
        future = self._submit(job)
        waiting = asyncio.wrap_future(future)
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=_POLL_SECONDS)
            if done:
                return waiting.result()
            if is_gone is not None and await is_gone() and future.cancel():
                raise ClientGone

    def close(self) -> None:
        """Drop what waits and end the thread when its job is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._pending >= self.limit:
                raise Refusal(_full(self._pending), retry_after=self._estimate())
            self._pending += 1
        try:
            future = self._pool.submit(self._timed, job)
        except RuntimeError:
            self._release()
            raise
        future.add_done_callback(lambda _: self._release())
        return future

    def _timed(self, job: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return job()
        finally:
            self._seconds += 0.2 * (time.monotonic() - start - self._seconds)

    def _release(self) -> None:
        with self._lock:
            self._pending -= 1

    def _estimate(self) -> int:
        return min(_MAX_RETRY, max(1, math.ceil(self._seconds * self.limit / 2)))


def _full(count: int) -> VmfError:
    return VmfError("VMF540", subject="queue", found=f"{count} jobs")
