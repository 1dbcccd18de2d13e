# SPDX-License-Identifier: Apache-2.0
"""Suite E: wrong, hostile and half requests to a real server; plain MONAI has none."""

from __future__ import annotations

import gzip
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.relbench.meeting import judge
from benchmarks.relbench.scans import AFFINE, heart
from benchmarks.relbench.serving import MODEL, Reply, Server, nifti, server_of, size_of
from benchmarks.relbench.suites.a_images import _mha
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.verdict import Case, Verdict, no_counterpart

__all__ = ["cases"]

Talk = Callable[[Server, Path], Reply]
FORM = {"params": (None, "{}")}
WAY_OUT = "plain name|no folder|outside|inside|traversal|that is listed"


def _case(
    name: str, threat: str, talk: Talk, statuses: tuple[int, ...], code: str = "", cause: str = "", quick: bool = True
) -> Case:
    """Make a case of one talk: the status, code and cause that must come, and a server as it was."""

    def probe(tool: Tool, place: Path) -> Verdict:
        if tool.call(Job("serve", (), None), place) is None:
            return no_counterpart()
        server = server_of(tool, place)
        good = tool.remembered("good answer", lambda: server.infer(nifti()).content)
        before = server.state()
        reply = talk(server, place)
        verdict = Verdict(note=f"status {reply.status} {reply.code} {reply.text[:60] if reply.status == 0 else ''}")
        verdict.detected = reply.status in statuses
        if code:
            detail = reply.text.replace("\\n", "\n")
            verdict.parts = {
                "lines": detail.count("\n") <= 5,
                "code": reply.code in code.split("|"),
                "cause": re.search(cause, reply.text, re.IGNORECASE) is not None,
                "cure": '"fix"' in reply.text or "\n  fix" in detail,
                "no path": str(server.place) not in reply.text and "Traceback" not in reply.text,
            }
            verdict.message = all(verdict.parts.values())
        verdict.intact = _settles(server, before)
        lived = server.alive()
        if not lived:
            verdict.note += "; the server is dead"
        verdict.recovers = lived and server.infer(nifti()).content == good
        return verdict

    return Case("E", name, threat, probe, quick)


def _settles(server: Server, before: object) -> bool:
    """Whether files come back to what they were, within the seconds that cleaning up may take."""
    deadline = time.monotonic() + 20
    while server.state() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    return server.state() == before


def _mask(shape: tuple[int, int, int] = (24, 20, 3)) -> bytes:
    return nib.Nifti1Image(heart(shape), AFFINE).to_bytes()


def _put_label(server: Server, tag: str, image: str = "scan0") -> Reply:
    files = {"label": ("a.nii", _mask())}
    return server.ask("PUT", "/datastore/label", params={"image": image, "tag": tag}, files=files)


def _linked(server: Server, place: Path) -> Reply:
    link = server.studies / "link.nii"
    (place / "secret.nii").write_bytes(nifti())
    link.symlink_to(place / "secret.nii")
    try:
        return server.ask("GET", "/datastore/image", params={"image": "link"})
    finally:
        link.unlink()


def _mha_upload(server: Server, place: Path) -> Reply:
    _mha("NDims = -5")(place)
    return server.infer((place / "scan.mha").read_bytes(), "scan.mha")


def _bomb(server: Server, place: Path) -> Reply:
    image = nib.Nifti1Image(np.zeros((8, 8, 8), np.int16), np.eye(4))
    image.header["dim"][1:4] = 30000
    return server.infer(image.header.binaryblock + bytes(1100), "a.nii")


def _own_answers(server: Server, place: Path) -> Reply:
    """Sixteen uploads of one name and different sizes: everybody must get the label map of the own scan."""
    answers = server.many(16)
    while any(answer.status == 503 for answer in answers):
        time.sleep(0.2)
        answers = [a if a.status == 200 else server.upload(k) for k, a in enumerate(answers)]
    if any(answer.status != 200 for answer in answers):
        return Reply(1, f"statuses {sorted({answer.status for answer in answers})}")
    images = [nib.Nifti1Image.from_stream(io.BytesIO(answer.content)) for answer in answers]
    return Reply(200 if [image.shape for image in images] == [size_of(k) for k in range(16)] else 1, "answers mixed up")


def _full_queue(server: Server, place: Path) -> Reply:
    refused = [answer for answer in server.many(8) if answer.status != 200]
    good = next((a for a in refused if a.status == 503 and a.headers.get("Retry-After", "").isdigit()), None)
    return good or Reply(0, "nobody was told to come again")


def _hang_up(server: Server, place: Path) -> Reply:
    head = f"POST /infer/{MODEL} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100000\r\n"
    part = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.nii"\r\n\r\n'
    with server.connect() as connection:
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n{part}".encode() + b"x" * 5000)
    return Reply(200 if server.alive() else 0)


def _slow_headers(server: Server, place: Path) -> Reply:
    with server.connect() as connection:
        connection.sendall(b"GET /info/ HTTP/1.1\r\nHost: 127")
        connection.settimeout(45)
        try:
            return Reply(408 if connection.recv(4096) is not None else 0)
        except TimeoutError:
            return Reply(0, "open after 45 s")


def _pulse(server: Server, place: Path) -> Reply:
    """Ask for the health while others segment; the median of nine answers counts, the machine may be busy."""
    from concurrent.futures import ThreadPoolExecutor

    waits = []
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(server.infer, nifti(9, (64, 64, 12))) for _ in range(2)]
        for _ in range(9):
            start = time.monotonic()
            server.ask("GET", "/health")
            waits.append(time.monotonic() - start)
        for job in work:
            job.result()
    return Reply(200 if sorted(waits)[4] < 0.5 else 0, f"median {sorted(waits)[4]:.2f} s")


def _killed(server: Server, place: Path) -> Reply:
    """Kill the server right after it acknowledged labels, start it again, and ask for them."""
    shape = (24, 20, 3)
    acknowledged = [tag for tag in ("one", "two", "three") if _put_label(server, tag).status == 200]
    server.close()
    server.start()
    there = []
    for tag in acknowledged:
        content = server.ask("GET", "/datastore/label", params={"label": "scan0", "tag": tag}).content
        there.append(content[:2] == b"\x1f\x8b" or len(content) >= 352 + np.prod(shape))
    for folder in (server.studies / "labels").iterdir():
        for path in folder.iterdir():
            path.unlink()
    return Reply(200 if len(there) == 3 and all(there) else 0, f"{sum(there)} of {len(acknowledged)} labels")


def _open_to_all() -> Case:
    def probe(tool: Tool, place: Path) -> Verdict:
        job = Job("serve", ("HOME/vmfnet_mnms", "--studies", ".", "--host", "0.0.0.0", "--port", "0"), None)  # noqa: S104
        outcome = tool.run(job, place)
        if outcome is None:
            return no_counterpart()
        return judge(tool, outcome, Wanted("token", r"--token|0\.0\.0\.0|host", "VMF195", 2), "E")

    return Case("E", "open-to-all-without-token", "T98", probe)


def cases() -> list[Case]:
    """Return the 20 cases."""
    train = f"/train/{MODEL}"
    return [
        _case("way-out-in-image-id", "T90",
              lambda s, p: s.ask("GET", "/datastore/image", params={"image": "../secret"}), (400,), "VMF184",
              WAY_OUT),
        _case("way-out-in-tag", "T90", lambda s, p: _put_label(s, "../../x"), (400,), "VMF184", WAY_OUT),
        _case("absolute-path", "T90",
              lambda s, p: s.ask("POST", f"/infer/{MODEL}?image=/etc/passwd", files=FORM), (400,), "VMF184", WAY_OUT),
        _case("encoded-way-out", "T90", lambda s, p: s.ask("GET", "/assets/..%2f..%2fserver.py"), (400, 404),
              "VMF192|VMF184", f"{WAY_OUT}|no such"),
        _case("link-in-the-store", "T90", _linked, (404,), "VMF181", "no such image|not found"),
        _case("too-large-upload", "T91", lambda s, p: s.infer(b"x" * 4_200_000, "a.nii"), (413,), "VMF190",
              "too large|at most|larger than|must not exceed"),
        _case("truncated-upload", "T92", lambda s, p: s.infer(gzip.compress(nifti())[:-300], "a.nii.gz"), (422,),
              "VMF210", "truncated"),
        _case("upload-of-minus-5-dimensions", "T92", _mha_upload, (422,), "VMF240|VMF218", "NDims|-5"),
        _case("header-bomb", "T92", _bomb, (422,), "VMF209|VMF211|VMF214", "header"),
        _case("sixteen-uploads-of-one-name", "T93", _own_answers, (200,)),
        _case("full-queue", "T94", _full_queue, (503,), "VMF540", "busy|queue|waiting"),
        _case("client-hangs-up", "T95", _hang_up, (200,)),
        _case("slow-headers", "T96", _slow_headers, (408,), quick=False),
        _case("health-during-inference", "T97", _pulse, (200,)),
        _open_to_all(),
        _case("page-of-another-site", "T98",
              lambda s, p: s.ask("POST", train, json={}, headers={"Origin": "http://evil.example"}), (403,), "VMF189",
              "another site|origin|page"),
        _case("rebound-host", "T98", lambda s, p: s.ask("GET", "/info/", headers={"Host": "evil.example"}), (403,),
              "VMF189", r"evil\.example|host name"),
        _case("minus-5-iterations", "T99", lambda s, p: s.ask("POST", train, json={"max_iterations": -5}), (400, 422),
              "VMF185|VMF100", "max_iterations"),
        _case("seed-of-31-digits", "T99", lambda s, p: s.ask("POST", train, json={"seed": 10**30}), (400, 422),
              "VMF185|VMF100", r"\bseed\b"),
        _case("killed-after-acknowledging", "T100", _killed, (200,), quick=False),
    ]  # fmt: skip
