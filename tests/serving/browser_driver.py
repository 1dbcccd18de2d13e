# SPDX-License-Identifier: Apache-2.0
"""Chromium by the DevTools protocol over a pipe: nothing to install, no port that others could reach."""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--mute-audio",
    "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
)  # fmt: skip
#: The browser expects its pipes as 3 and 4; both are moved out of the way first.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the program of a browser, or ``None``."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Browser:
    """One page of a headless browser.

    Args:
        profile: an empty folder for it.
        size: of the window.
        dark: whether the user prefers dark pages.
    """

    def __init__(self, profile: Path, size: tuple[int, int] = (1400, 900), dark: bool = False) -> None:
        program = find_browser()
        assert program is not None
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}",
                   "--remote-debugging-pipe"]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), *command, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.events: list[dict[str, Any]] = []
        self._numbers, self._answers = itertools.count(1), queue.Queue[dict[str, Any]]()
        threading.Thread(target=self._listen, daemon=True).start()
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session: str | None = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, seconds: float = 120, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        session = getattr(self, "_session", None)
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answers.get(timeout=seconds)
            if answer["id"] == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 120) -> Any:
        """Wait until an expression is true and return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.1)
        raise AssertionError(f"{expression} did not become true; {self.problems()}")

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def problems(self) -> list[str]:
        """Return errors and warnings of the console, exceptions, and requests that failed."""
        found = []
        for event in list(self.events):
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:600])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                found.append(json.dumps(params["args"])[:600])
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(json.dumps(params["entry"])[:600])
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        sent = [event["params"] for event in list(self.events) if event["method"] == "Network.requestWillBeSent"]
        return [entry["request"]["url"] for entry in sent]

    def close(self) -> None:
        """End the browser."""
        self._session = None
        try:
            self.call("Browser.close", seconds=20)
            self._process.wait(20)
        except (queue.Empty, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(20)
        finally:
            os.close(self._out)

    def _listen(self) -> None:
        rest = b""
        while chunk := os.read(self._in, 1 << 20):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self.events.append(message)
        os.close(self._in)
