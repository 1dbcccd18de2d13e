# SPDX-License-Identifier: Apache-2.0
"""A real server on the loopback address, and how a case talks to it."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import requests

from benchmarks.relbench.process import Worker
from benchmarks.relbench.scans import AFFINE, array_of, write_scan
from benchmarks.relbench.tools.base import Job, Tool
from benchmarks.relbench.trees import Tree, tree

__all__ = ["MODEL", "Reply", "Server", "nifti", "server_of", "size_of"]

MODEL = "vmfnet_mnms"


@dataclass(frozen=True)
class Reply:
    """What came back: status, text, headers, and the code of the error."""

    status: int
    text: str = ""
    code: str = ""
    headers: Any = None
    content: bytes = b""


def nifti(number: int = 0, shape: tuple[int, ...] = (24, 20, 3)) -> bytes:
    """Return an uncompressed NIfTI file."""
    return nib.Nifti1Image(array_of(shape, number=number), AFFINE).to_bytes()


def size_of(number: int) -> tuple[int, int, int]:
    """Return the size of the scan of a number: each has another."""
    return (24 + number, 20, 3)


class Server:
    """``vmfseg serve`` in a process of its own.

    Args:
        tool: which starts it.
        place: its folder; the images are in ``studies``.
    """

    def __init__(self, tool: Tool, place: Path) -> None:
        self.tool, self.place, self.studies = tool, place, place / "studies"
        if not self.studies.exists():
            for number in range(3):
                write_scan(self.studies / f"scan{number}.nii.gz", array_of((24, 20, 3), number=number))
        self.worker: Worker | None = None
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        words = ("HOME/vmfnet_mnms", "--studies", "studies", "--port", "0", "--max-upload", "4", "--queue", "2")
        self.worker = self.tool.start(Job("serve", (*words, "--device", "cpu")), self.place)
        assert self.worker is not None
        if not self.worker.wait_for(r"at http://\S+:\d+"):
            raise RuntimeError("the server did not start: " + self.worker.end().text[-400:])
        found = re.search(r"at (http://\S+):(\d+)", self.worker.printed())
        assert found is not None
        self.url, self.port = f"{found[1]}:{found[2]}", int(found[2])

    def ask(self, method: str, path: str, **options: Any) -> Reply:
        """Send a request."""
        try:
            answer = requests.request(method, self.url + path, timeout=120, **options)
        except requests.exceptions.RequestException as error:
            return Reply(0, type(error).__name__)
        try:
            code = str(answer.json().get("code", ""))
        except (ValueError, AttributeError):
            code = ""
        return Reply(answer.status_code, answer.text[:5000], code, answer.headers, answer.content)

    def infer(self, content: bytes, name: str = "scan.nii", **options: Any) -> Reply:
        """Segment an uploaded file."""
        files = {"params": (None, '{"result_extension": ".nii"}'), "file": (name, content)}
        return self.ask("POST", f"/infer/{MODEL}?output=image", files=files, **options)

    def many(self, count: int) -> list[Reply]:
        """Send uploads of one name and different sizes at once."""
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(self.upload, range(count)))

    def upload(self, number: int) -> Reply:
        """Send the upload of a number."""
        return self.infer(nifti(number, size_of(number)), "scan.nii")

    def connect(self) -> socket.socket:
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def state(self) -> Tree:
        """Return the images, the labels and what lies in the temporary folder."""
        images = {
            f"studies/{name}": text for name, text in tree(self.studies).items() if not name.endswith("info.json")
        }
        left = tree(self.place / "tmp").items()  # but the lock, which lies in a folder of another name after a restart
        work = {name: text for name, text in left if "vmfseg-serve" in name and not name.endswith("/.lock")}
        return {**images, **work}

    def alive(self) -> bool:
        """Whether it answers."""
        return self.ask("GET", "/health").status == 200

    def close(self) -> None:
        """Kill it."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def server_of(tool: Tool, place: Path) -> Server:
    """Return the server that the cases share; one that died is started again."""
    home = place.parents[1] / f"server-{tool.worker.first}"
    if "server" not in tool.memory:
        home.mkdir()
        tool.memory["server"] = Server(tool, home)
    server: Server = tool.memory["server"]
    if not server.alive():
        server.close()
        server.start()
    return server
