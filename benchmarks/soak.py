# SPDX-License-Identifier: Apache-2.0
"""Soak a server: clients that upload, segment, save labels, delete and hang up, while it is killed and started again.

Run ``python benchmarks/soak.py`` (10 minutes, 8 clients, killed in the middle). It starts ``vmfseg serve`` on the
loopback address with a small model on made-up scans, and ends with exit code 1 if an acknowledged label is lost, a
request fails with a status of 500 or more (503, busy, excepted), or the memory grows.
"""

from __future__ import annotations

import argparse
import http.client
import io
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import nibabel as nib
import numpy as np
import requests
from serving import _address, make_studies, memory, small_bundle

#: Seconds that ``/health`` may take.
GOAL = 0.2
MODEL, SHAPE = "vmfnet_mnms", (96, 96, 10)


@dataclass
class Tally:
    """What the clients saw.

    Attributes:
        status: answers by request and HTTP status.
        labels: last acknowledged label, by image and tag.
        unheard: labels that were sent after it and not acknowledged.
        acknowledged: how many labels were.
        pulse: seconds of ``/health``.
        late: of answers above 0.2 s, when they were asked for, in seconds of that life, and how long they took.
        pauses: how late a thread was woken that did nothing else.
        memory: of the server in bytes, by life.
        broken: requests that a kill or a hang-up ended.
        lost: labels that are gone, and folders that were left.
    """

    status: Counter[str] = field(default_factory=Counter)
    labels: dict[tuple[str, str], int] = field(default_factory=dict)
    unheard: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    acknowledged: int = 0
    pulse: list[float] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    memory: list[list[int]] = field(default_factory=list)
    broken: int = 0
    lost: list[str] = field(default_factory=list)

    def failures(self) -> int:
        """Return how many answers were errors of the server."""
        return sum(n for key, n in self.status.items() if key[-3:] >= "500" and not key.endswith("503"))


class Server:
    """``vmfseg serve`` in a process of its own."""

    def __init__(self, bundle: Path, studies: Path, temporary: Path) -> None:
        self.command = [sys.executable, "-m", "vmfseg.cli.main", "serve", str(bundle), "--studies", str(studies)]
        self.environment = {**os.environ, "COLUMNS": "200", "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        self.url, self.alive = "", threading.Event()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [*self.command, "--port", "0"], stdout=self.log, stderr=subprocess.STDOUT, env=self.environment
        )
        self.url = _address(self.process, self.log)
        requests.get(f"{self.url}/health", timeout=300).raise_for_status()
        self.alive.set()

    def kill(self) -> None:
        """End it as a power failure would."""
        self.alive.clear()
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self.alive.clear()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def soak(root: Path, seconds: float, clients: int, kills: int = 1, seed: int = 0) -> Tally:
    """Run the clients for some time and return what they saw."""
    (root / "tmp").mkdir()
    server = Server(small_bundle(root), make_studies(root / "studies"), root / "tmp")
    server.start()
    tally, stop, lock = Tally(), threading.Event(), threading.Lock()
    threads = [
        threading.Thread(target=_client, args=(server, tally, lock, stop, random.Random(seed * 1000 + number), number))
        for number in range(clients)
    ]
    watcher = threading.Thread(target=_watch, args=(server, tally, stop))
    for thread in [*threads, watcher]:
        thread.start()
    try:
        for _ in range(kills):
            time.sleep(seconds / (kills + 1))
            server.kill()
            server.start()
        time.sleep(seconds / (kills + 1))
    finally:
        stop.set()
        for thread in [*threads, watcher]:
            thread.join(300)
    _check_labels(server, tally)
    server.stop()
    left = [path.name for path in (root / "tmp").glob("vmfseg-serve-*")]
    tally.lost += [f"temporary folder {name}" for name in left]
    return tally


def _client(
    server: Server, tally: Tally, lock: threading.Lock, stop: threading.Event, rng: random.Random, number: int
) -> None:
    """Do one thing after the other; each client labels images of its own, so that the last label is known."""
    session, turn = requests.Session(), 0
    while not stop.is_set():
        if not server.alive.wait(0.2):
            continue
        turn += 1
        what = rng.choices(["infer", "label", "upload", "remove", "list", "hang up"], [3, 4, 2, 1, 2, 1])[0]
        try:
            status = _act(server, session, tally, what, rng, number, turn)
        except requests.RequestException:
            with lock:
                tally.broken += 1
            continue
        if status:
            with lock:
                tally.status[f"{what} {status}"] += 1
            if status == 503:
                stop.wait(0.2)


def _act(
    server: Server, session: requests.Session, tally: Tally, what: str, rng: random.Random, number: int, turn: int
) -> int:
    url, own = server.url, f"up{number}"
    if what == "infer":
        image = rng.choice(["scan0", "scan1", "scan2", "scan3"])
        answer = session.post(f"{url}/infer/{MODEL}", params={"image": image, "output": "image"},
                              files={"params": (None, "{}")}, timeout=300)  # fmt: skip
        return answer.status_code
    if what == "label":
        image, tag = f"scan{number % 4}", f"client{number}"
        value = turn % 250 + 1
        files = {"label": ("a.nii", _nifti(np.full(SHAPE, value, np.uint8)))}
        tally.unheard.setdefault((image, tag), []).append(value)
        answer = session.put(f"{url}/datastore/label", params={"image": image, "tag": tag}, files=files, timeout=300)
        if answer.status_code == 200:
            tally.labels[image, tag] = value
            tally.unheard[image, tag] = []
            tally.acknowledged += 1
        return answer.status_code
    if what == "upload":
        scan = np.random.default_rng(turn).integers(0, 900, (48, 48, 4)).astype(np.int16)
        return session.put(f"{url}/datastore/image", params={"image": own}, files={"file": ("a.nii", _nifti(scan))},
                           timeout=300).status_code  # fmt: skip
    if what == "remove":
        return session.delete(f"{url}/datastore/image", params={"id": own}, timeout=300).status_code
    if what == "list":
        return session.get(f"{url}/datastore/", params={"output": "all"}, timeout=300).status_code
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"PUT /datastore/image?image=half HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 100000\r\n"
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n".encode())
    return 0


def _nifti(array: np.ndarray) -> bytes:
    stream = io.BytesIO(nib.Nifti1Image(array, np.diag([2.5, 2.5, 8.0, 1.0])).to_bytes())
    return stream.getvalue()


def _watch(server: Server, tally: Tally, stop: threading.Event) -> None:
    """Measure pulse and memory, and how late this very thread is woken: what the machine alone adds."""
    life, began = None, 0.0
    while not stop.is_set():
        if not server.alive.wait(0.2):
            continue
        if life != server.process.pid:
            life, began = server.process.pid, time.monotonic()
            tally.memory.append([])
        start = time.monotonic()
        try:
            _beat(server.url)
            tally.pulse.append(time.monotonic() - start)
            if tally.pulse[-1] > GOAL:
                tally.late.append((start - began, tally.pulse[-1]))
            tally.memory[-1].append(memory(life))
        except (http.client.HTTPException, OSError):
            continue  # it was just killed
        start = time.monotonic()
        stop.wait(0.25)
        tally.pauses.append(max(0.0, time.monotonic() - start - 0.25))


def _beat(url: str) -> None:
    """Ask for ``/health`` by a new connection, with as little work on this side as can be."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            raise http.client.HTTPException("no good health")
    finally:
        connection.close()


def _check_labels(server: Server, tally: Tally) -> None:
    """Look up every label that was acknowledged; a later one of the same client may have come through unheard."""
    for (image, tag), value in tally.labels.items():
        answer = requests.get(f"{server.url}/datastore/label", params={"label": image, "tag": tag}, timeout=60)
        if answer.status_code != 200:
            tally.lost.append(f"{image} {tag}: status {answer.status_code}")
            continue
        found = np.unique(np.asarray(nib.Nifti1Image.from_stream(io.BytesIO(answer.content)).dataobj))
        if len(found) != 1 or int(found[0]) not in (value, *tally.unheard[image, tag]):
            tally.lost.append(f"{image} {tag}: {found[:3]} instead of {value}")


def growth(tally: Tally) -> float:
    """Return how many MB the memory grew over the second half of the longest life."""
    longest = max(tally.memory, key=len)
    half = longest[len(longest) // 2 :]
    return (half[-1] - half[0]) / 1e6 if half else 0.0


def _three(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f} s, {np.quantile(seconds, 0.99):.3f} s, {max(seconds):.3f} s"


def _late(tally: Tally) -> str:
    worst = sorted(tally.late, key=lambda one: -one[1])[:5]
    return "".join(f"; {took:.2f} s at second {when:.0f} of a life" for when, took in worst)


def main() -> None:
    """Print the figures; exit 1 if something was lost, failed or grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", type=int, default=1)
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)  # the clients are threads of one process: the pulse must not wait for them
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as place:
        tally = soak(Path(place), options.seconds, options.clients, options.kills)
    load.append(os.getloadavg()[0])
    lines = {
        "seconds, clients, kills": f"{options.seconds:g}, {options.clients}, {options.kills}",
        "answers": ", ".join(f"{key}: {count}" for key, count in sorted(tally.status.items())),
        "requests cut by a kill": f"{tally.broken}",
        "labels acknowledged, lost": f"{tally.acknowledged}, {len(tally.lost)} {'; '.join(tally.lost[:3])}",
        "errors of the server": f"{tally.failures()}",
        "/health, median, 99 %, longest": _three(tally.pulse),
        f"/health above {GOAL} s": f"{len(tally.late)} of {len(tally.pulse)}{_late(tally)}",
        "pauses of the machine, likewise": _three(tally.pauses),
        "load of the machine, first and last": f"{load[0]:.1f}, {load[1]:.1f} on {os.cpu_count()} cores",
        "memory growth over second half": f"{growth(tally):.1f} MB",
    }
    for name, value in lines.items():
        print(f"{name:<38}{value}")
    sys.exit(1 if tally.lost or tally.failures() or growth(tally) > 30 else 0)


if __name__ == "__main__":
    main()
