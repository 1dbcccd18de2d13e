# SPDX-License-Identifier: Apache-2.0
"""How a server bears many clients: answers, pulse and memory while 8 clients send 200 requests.

Run ``python benchmarks/serving.py``; it starts ``vmfseg serve`` with a small model on a folder of made-up scans.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from vmfseg.bundle.compile import write_bundle
from vmfseg.model import Model
from vmfseg.model.definitions import build

SMALL = {"channels": [8, 16, 16], "num_kernels": 6, "hidden_channels": 8, "level": 1}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        figures = load(small_bundle(root), make_studies(root / "studies"), options.requests, options.clients)
    half = figures.memory[len(figures.memory) // 2 :]
    lines = {
        "requests answered": f"{figures.answered} of {options.requests}",
        "told to come again (503)": f"{figures.refused}",
        "clients": f"{options.clients}",
        "requests per second": f"{options.requests / figures.seconds:.1f}",
        "wait, median and longest": f"{statistics.median(figures.waits):.2f} s, {figures.waits[-1]:.2f} s",
        "/health, median and longest": _milliseconds(figures.pulse),
        "pauses of the machine itself": _milliseconds(figures.pauses),
        "memory before and after": f"{figures.memory[0] / 1e6:.0f} MB, {figures.memory[-1] / 1e6:.0f} MB",
        "growth over the second half": f"{(half[-1] - half[0]) / 1e6:.1f} MB",
    }
    for name, value in lines.items():
        print(f"{name:<34}{value}")


def make_studies(folder: Path) -> Path:
    """Write four scans of noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        scan = nib.Nifti1Image(rng.integers(0, 900, (96, 96, 10)).astype(np.int16), np.diag([2.5, 2.5, 8.0, 1.0]))
        nib.save(scan, folder / f"scan{number}.nii.gz")
    return folder


def small_bundle(root: Path) -> Path:
    """Write a bundle with a small network of random weights."""
    write_bundle("vmfnet_mnms", root)
    bundle = root / "vmfnet_mnms"
    labels = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    model = Model.of_slices({"_target_": "vmfseg.networks.VMFNet", **SMALL}, labels, 2.5, (64, 64), name="vmfnet_mnms")
    (bundle / "models").mkdir(exist_ok=True)
    model.save(bundle / "models", build(model.network, "network").state_dict())
    return bundle


@dataclass(frozen=True)
class Figures:
    """What was measured.

    Attributes:
        answered: requests with status 200.
        refused: how often a client was told to come again.
        seconds: of all requests together.
        waits: of each request.
        pulse: of ``/health``.
        pauses: how late a thread was woken that did nothing else: what a busy machine adds to every figure.
        memory: of the server in bytes, before, every 20 requests, after.
    """

    answered: int
    refused: int
    seconds: float
    waits: list[float]
    pulse: list[float]
    pauses: list[float]
    memory: list[int]


def load(bundle: Path, studies: Path, requests: int, clients: int) -> Figures:
    """Send requests from several clients at once and measure what comes back."""
    command = [sys.executable, "-m", "vmfseg.cli.main", "serve", str(bundle), "--studies", str(studies), "--port", "0"]
    with tempfile.TemporaryFile("w+b") as log:
        environment = {**os.environ, "COLUMNS": "200"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)  # noqa: S603 - ours
        try:
            url = _address(process, log)
            send(url, 0)
            before, stop = memory(process.pid), threading.Event()
            pulse: list[float] = []
            pauses: list[float] = []
            watcher = threading.Thread(target=_watch, args=(url, pulse, pauses, stop))
            watcher.start()
            start = time.monotonic()
            memories = [before]
            with ThreadPoolExecutor(clients) as pool:
                results = []
                for number, result in enumerate(pool.map(lambda k: send(url, k), range(requests))):
                    results.append(result)
                    if number % 20 == 19:
                        memories.append(memory(process.pid))
            seconds = time.monotonic() - start
            stop.set()
            watcher.join()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    waits = sorted(result[1] for result in results)
    refused = sum(result[2] for result in results)
    return Figures(sum(r[0] == 200 for r in results), refused, seconds, waits, pulse, pauses, memories)


def send(url: str, number: int) -> tuple[int, float, int]:
    """Segment an image by id; return status, seconds, and how often the server said to come again."""
    mark = "x-vmfseg-x"
    body = f'--{mark}\r\nContent-Disposition: form-data; name="params"\r\n\r\n{{}}\r\n--{mark}--\r\n'.encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    address = f"{url}/infer/vmfnet_mnms?image=scan{number % 4}&output=image"
    start, refused = time.monotonic(), 0
    while True:
        try:
            request = urllib.request.Request(address, body, headers, method="POST")  # noqa: S310 - our own server
            with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
                answer.read()
                return answer.status, time.monotonic() - start, refused
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return error.code, time.monotonic() - start, refused
            refused += 1
            time.sleep(0.2)


def _milliseconds(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:.0f} ms, {max(values) * 1000:.0f} ms"


def memory(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _watch(url: str, pulse: list[float], pauses: list[float], stop: threading.Event) -> None:
    """Measure the pulse, and how late this very thread is woken: what the machine alone adds."""
    while not stop.is_set():
        start = time.monotonic()
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:  # noqa: S310 - our own server
            answer.read()
        pulse.append(time.monotonic() - start)
        start = time.monotonic()
        time.sleep(0.1)
        pauses.append(time.monotonic() - start - 0.1)


def _address(process: subprocess.Popen[bytes], log: object) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)  # type: ignore[attr-defined]
        found = re.search(rb"at (http://\S+:\d+)", log.read())  # type: ignore[attr-defined]
        if found:
            return found[1].decode()
        time.sleep(0.2)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    main()
