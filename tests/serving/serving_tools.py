# SPDX-License-Identifier: Apache-2.0
"""What the tests of the server share."""

from __future__ import annotations

import hashlib
import io
import re
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import requests
import uvicorn
from scipy.ndimage import zoom
from scipy.spatial.transform import Rotation

from vmfseg.serving import Service
from vmfseg.serving.server import server_config


def voxels(shape: tuple[int, ...] = (30, 26, 5), seed: int = 0) -> np.ndarray:
    """Return int16 voxels with structures of a few pixels."""
    coarse = np.random.default_rng(seed).random((8, 7, *shape[2:]))
    factors = (shape[0] / 8, shape[1] / 7, *([1] * (len(shape) - 2)))
    return (1000 * zoom(coarse, factors, order=1)).astype(np.int16)


def oblique() -> np.ndarray:
    """Return an affine that is turned about all axes."""
    affine = np.eye(4)
    turn = Rotation.from_euler("xyz", [20, 30, 40], degrees=True).as_matrix()
    affine[:3, :3], affine[:3, 3] = turn @ np.diag([1.3, 1.3, 8.0]), (5.0, -7.0, 12.0)
    return affine


def nifti_bytes(array: np.ndarray, affine: np.ndarray | None = None) -> bytes:
    """Return an uncompressed NIfTI file."""
    return nib.Nifti1Image(array, np.diag([1.3, 1.3, 8.0, 1.0]) if affine is None else affine).to_bytes()


def read_nifti(content: bytes) -> Any:
    """Read an uncompressed NIfTI file from memory."""
    return nib.Nifti1Image.from_stream(io.BytesIO(content))


def tree(root: Path) -> dict[str, str]:
    """Return the hash of every file below a folder but the server's own notes."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "info.json"]
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Server:
    """A running server and how to talk to it."""

    def __init__(self, url: str, studies: Path, temporary: Path) -> None:
        self.url, self.port, self.studies, self.temporary = url, int(url.rsplit(":", 1)[1]), studies, temporary

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request."""
        return requests.request(method, self.url + path, timeout=120, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        """GET."""
        return self.request("GET", path, **options)

    def infer(self, content: bytes | None = None, name: str = "scan.nii", **query: Any) -> requests.Response:
        """POST /infer/ with an uploaded file or by the query alone."""
        model, params = query.pop("model", "vmfnet_mnms"), query.pop("params", "{}")
        files: dict[str, Any] = {"params": (None, params)}
        if content is not None:
            files["file"] = (name, content)
        return self.request("POST", f"/infer/{model}", params=query, files=files)

    def raw(self, data: bytes, seconds: float = 20, half_close: bool = False) -> bytes:
        """Send bytes as they are and return what comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while chunk := connection.recv(65536):
                    answer += chunk
            except (TimeoutError, ConnectionResetError):
                pass
            return answer

    def leftovers(self) -> list[str]:
        """Return what lies in the server's temporary folder."""
        found = [path for path in self.temporary.glob("vmfseg-serve-*/*") if path.name != ".lock"]
        return sorted(str(path.relative_to(self.temporary)) for path in found)


class ServerProcess(Server):
    """A server in a process of its own, started by the command line."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, studies: Path, temporary: Path) -> None:
        self.process, self.log = process, log
        super().__init__(self._address(), studies, temporary)

    def text(self) -> str:
        """Return what it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def _address(self, seconds: float = 300) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            found = re.search(r"at (http://\S+:\d+)", self.text())
            if found:  # it listens already, and answers as soon as it is ready
                return found[1].replace("0.0.0.0", "127.0.0.1")
            time.sleep(0.1)
        raise AssertionError(self.text())


class ServerThread(Server):
    """A server in a thread of the test: the same sockets and requests, without the seconds that a process takes."""

    def __init__(self, service: Service) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.service, self._server = service, uvicorn.Server(server_config(service))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        super().__init__(url, service.studies.root, service.workspace.root.parent)

    def leftovers(self) -> list[str]:
        """Return what lies in the server's temporary folder."""
        return sorted(path.name for path in self.service.workspace.root.glob("*") if path.name != ".lock")

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
