# SPDX-License-Identifier: Apache-2.0
"""What must not work: wrong, hostile and half requests. Each gets its code, nothing is left, the server lives on."""

import gzip
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import nibabel as nib
import numpy as np
import pytest
from serving_tools import nifti_bytes, oblique, read_nifti, tree, voxels

from vmfseg.serving.workspace import Workspace
from vmfseg.utils import VmfError

pytestmark = pytest.mark.usefixtures("untouched")

GOOD = nifti_bytes(voxels((24, 26, 3), 5))
MASK = nifti_bytes(np.ones((24, 26, 3), np.uint8))
FORM = {"params": (None, "{}")}


def body(**fields):
    return {"files": {**FORM, **fields}}


def header_bomb() -> bytes:
    image = nib.Nifti1Image(np.zeros((8, 8, 8), np.int16), np.eye(4))
    image.header["dim"][1:4] = 30000
    return image.header.binaryblock + b"\0" * 1100


BAD = [  # method, path, options, status, code
    pytest.param("POST", "/infer/other?image=scan0", body(), 404, "VMF180", id="unknown model"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=nobody", body(), 404, "VMF181", id="unknown image"),
    pytest.param("POST", "/infer/vmfnet_mnms?session_id=00", body(), 404, "VMF183", id="unknown session"),
    pytest.param("POST", "/infer/vmfnet_mnms", body(), 400, "VMF185", id="no image"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0&output=x", body(), 422, "VMF185", id="unknown output"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0&output=dicom_seg", body(), 501, "VMF197", id="dicom seg"),
    pytest.param("POST", "/infer/vmfnet_mnms", {"json": {}}, 415, "VMF194", id="content type"),
    pytest.param("POST", "/infer/vmfnet_mnms", {"data": b"x", "headers": {"Content-Type": "text/html"}}, 415, "VMF194",
                 id="html body"),
    pytest.param("POST", "/infer/vmfnet_mnms",
                 {"data": b"--a\r\nnothing", "headers": {"Content-Type": "multipart/form-data"}}, 400, "VMF185",
                 id="no boundary"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, "{")), 400, "VMF185", id="half json"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, "[1]")), 400, "VMF185", id="json list"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, '{"a": NaN}')), 400, "VMF185", id="nan"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, "[" * 9000)), 400, "VMF185", id="deep"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, '{"result_extension": ".exe"}')), 400,
                 "VMF185", id="extension"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, '{"result_dtype": "O"}')), 400, "VMF185",
                 id="type"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=scan0", body(params=(None, '{"nan_to": "x"}')), 400, "VMF185",
                 id="type of a rule"),
    pytest.param("POST", "/infer/vmfnet_mnms?image=cine", body(params=(None, '{"frames": "9"}')), 422, "VMF235",
                 id="frame"),
    pytest.param("POST", "/infer/vmfnet_mnms", body(file=("a.png", GOOD)), 422, "VMF205", id="not an image name"),
    pytest.param("POST", "/infer/vmfnet_mnms", body(file=("a.nii\x00.gz", GOOD)), 400, "VMF184", id="nul in file name"),
    pytest.param("POST", "/infer/vmfnet_mnms", body(file=("a.nii", b"x" * 4_100_000)), 413, "VMF190", id="huge"),
    pytest.param("POST", "/vmfseg/explain/vmfnet_mnms?image=cine&frame=7", body(), 422, "VMF235", id="explain frame"),
    pytest.param("GET", "/vmfseg/result/0/mask.nii.gz", {}, 404, "VMF199", id="no result"),
    pytest.param("PUT", "/session/", body(), 422, "VMF185", id="session without files"),
    pytest.param("PUT", "/session/?uncompress=true", body(files=("a.zip", b"PK")), 501, "VMF197", id="archive"),
    pytest.param("GET", "/session/00", {}, 404, "VMF183", id="no session"),
    pytest.param("PUT", "/datastore/?image=scan0", body(file=("a.nii", GOOD)), 409, "VMF196", id="image is there"),
    pytest.param("PUT", "/datastore/?image=x_gt", body(file=("a.nii", GOOD)), 400, "VMF184", id="named like a mask"),
    pytest.param("PUT", "/datastore/?image=x", body(file=("a.nii", GOOD[:900])), 422, "VMF211", id="cut image"),
    pytest.param("DELETE", "/datastore/?id=scan0", {}, 403, "VMF198", id="image of the folder"),
    pytest.param("PUT", "/datastore/label?image=no", body(label=("a.nii", MASK)), 404, "VMF181", id="label of none"),
    pytest.param("PUT", "/datastore/label?image=scan0", body(label=("a.nii", MASK)), 422, "VMF253", id="label shape"),
    pytest.param("PUT", "/datastore/label?image=tilted",
                 body(label=("a.nii", nifti_bytes(np.ones((30, 26, 5), np.uint8)))), 422, "VMF254", id="label place"),
    pytest.param("PUT", "/datastore/label?image=tilted",
                 body(label=("a.nii", nifti_bytes(np.full((30, 26, 5), 0.5, np.float32), oblique()))), 422, "VMF250",
                 id="label values"),
    pytest.param("GET", "/datastore/label?label=scan0&tag=final", {}, 404, "VMF182", id="no label"),
    pytest.param("POST", "/activelearning/best", {"json": {}}, 404, "VMF186", id="unknown strategy"),
    pytest.param("POST", "/activelearning/random", {"json": [1]}, 422, "VMF185", id="strategy with a list"),
    pytest.param("POST", "/train/vmfnet_mnms", {"json": {"seed": "x"}}, 400, "VMF185", id="training option"),
    *(
        pytest.param("POST", "/train/vmfnet_mnms", {"json": {key: value}}, 400, "VMF185", id=f"{key} {value}"[:30])
        for key, value in (("max_iterations", -5), ("max_iterations", 0), ("epoch_length", 0), ("max_epochs", -1),
                           ("batch_size", 0), ("learning_rate", -1.0), ("seed", 10**30), ("seed", 10**400))
    ),
    pytest.param("POST", "/train/vmfnet_mnms", {"json": {}}, 422, "VMF292", id="training without labels"),
    pytest.param("POST", "/train/other", {"json": {}}, 404, "VMF180", id="training of nothing"),
    pytest.param("DELETE", "/train/", {}, 404, "VMF187", id="nothing to stop"),
    pytest.param("GET", "/train/", {}, 404, "VMF187", id="no training"),
    pytest.param("GET", "/nowhere", {}, 404, "VMF192", id="no route"),
    pytest.param("GET", "/assets/..%2fapp.py", {}, 404, "VMF192", id="asset elsewhere"),
    pytest.param("GET", "/assets/docs.html%00", {}, 404, "VMF192", id="asset with nul"),
    pytest.param("PATCH", "/info/", {}, 405, "VMF193", id="method"),
    pytest.param("POST", "/train/", {"json": {}, "headers": {"Origin": "http://evil.example"}}, 403, "VMF189",
                 id="page of another site"),
    pytest.param("GET", "/info/", {"headers": {"Host": "evil.example"}}, 403, "VMF189", id="rebound host"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "options", "status", "code"), BAD)
def test_bad_request_gets_its_code(server, method, path, options, status, code):
    answer = server.request(method, path, **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["detail"].startswith(f"error {code}: ")
    assert len(answer.json()["detail"].splitlines()) <= 5
    assert_no_path(server, answer)


IMAGES = [
    pytest.param("a.nii.gz", gzip.compress(GOOD)[:-300], id="truncated gzip"),
    pytest.param("a.nii", GOOD[:2000], id="truncated"),
    pytest.param("a.nii.gz", b"", id="empty"),
    pytest.param("a.nii.gz", b"<html>404</html>", id="html"),
    pytest.param("a.nii", nifti_bytes(np.full((24, 26, 3), np.nan, np.float32)), id="nan"),
    pytest.param("a.nii", nifti_bytes(np.zeros((24, 26, 3), np.int16)), id="constant"),
    pytest.param("a.nii", header_bomb(), id="header bomb"),
    pytest.param("a.nrrd", b"NRRD0004\ntype: uint8\n", id="half nrrd"),
    pytest.param("a.mha", GOOD, id="nifti named mha"),
    *(
        pytest.param("a.mha", f"ObjectType = Image\nNDims = {n}\nElementDataFile = LOCAL\n".encode(), id=f"NDims {n}")
        for n in (-5, 100, 999999999)  # ITK dies of them
    ),
]


@pytest.mark.parametrize(("name", "content"), IMAGES)
def test_bad_image_is_refused_as_on_the_command_line(server, predictor, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VmfError) as caught:
        predictor.predict(tmp_path / name)
    error = caught.value
    answer = server.infer(content, name)
    told = answer.json()
    assert answer.status_code == 422
    assert (told["code"], told["rule"], told["fix"]) == (error.code, error.rule, error.fix)
    assert told["subject"] == name
    assert_no_path(server, answer)


WAYS_OUT = [
    "../secret", "../../secret", "..", "/etc/hostname", "..\\secret", "C:\\secret", "a/../../secret", "./scan0",
    "scan0\x00", "scan0\n", "labels/../../secret", "x" * 600, "", " /../secret", "....//secret/..",
]  # fmt: skip


@pytest.mark.parametrize("name", WAYS_OUT)
def test_names_lead_nowhere(server, name):
    secret = server.studies.parent / "secret.nii"
    secret.write_bytes(GOOD)
    before = tree(server.studies.parent)
    quoted = {"image": name, "label": name, "id": name, "tag": "final"}
    if name:  # an empty one counts as not given there
        answers = [
            server.infer(image=name),
            server.request("POST", "/vmfseg/explain/vmfnet_mnms", params={"image": name}, files=FORM),
            server.request("PUT", "/datastore/image", params={"image": name}, files={"file": ("a.nii", GOOD)}),
            server.request(
                "PUT", "/datastore/label", params={"image": "scan0", "tag": name}, files={"label": ("a.nii", MASK)}
            ),
        ]
    else:
        answers = []
    answers += [
        server.get("/datastore/image", params=quoted),
        server.get("/datastore/image/info", params=quoted),
        server.get("/datastore/label", params=quoted),
        server.get("/datastore/label", params={"label": "scan0", "tag": name}),
        server.request("DELETE", "/datastore/image", params=quoted),
        server.request("PUT", "/datastore/label", params=quoted, files={"label": ("a.nii", MASK)}),
        server.request("PUT", "/datastore/image/info", params=quoted, data={"info": "{}"}),
    ]
    assert {answer.status_code for answer in answers} <= {400}, [answer.text for answer in answers]
    assert {answer.json()["code"] for answer in answers} == {"VMF184"}
    assert tree(server.studies.parent) == before
    secret.unlink()


def test_a_link_out_of_the_studies_is_not_followed(own_server, tmp_path):
    (tmp_path / "secret.nii").write_bytes(GOOD)
    (tmp_path / "elsewhere").mkdir()
    server = own_server()
    (server.studies / "link.nii").symlink_to(tmp_path / "secret.nii")
    (server.studies / "labels").mkdir()
    (server.studies / "labels" / "evil").symlink_to(tmp_path / "elsewhere")
    (server.studies / "labels" / "final").mkdir()
    (server.studies / "labels" / "final" / "scan0.nii").symlink_to(tmp_path / "secret.nii")
    assert server.get("/datastore/image", params={"image": "link"}).json()["code"] == "VMF181"
    assert server.get("/datastore/label", params={"label": "scan0", "tag": "final"}).json()["code"] == "VMF182"
    shape = nib.load(server.studies / "scan1.nii.gz").shape
    label = {"label": ("a.nii", nifti_bytes(np.ones(shape, np.uint8)))}
    answer = server.request("PUT", "/datastore/label", params={"image": "scan1", "tag": "evil"}, files=label)
    assert (answer.status_code, answer.json()["code"]) == (400, "VMF184")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_parallel_uploads_of_one_name_get_their_own_answers(server, predictor, tmp_path):
    scans = [voxels((24, 26, 3), 100 + k) for k in range(16)]

    def send(array):
        while True:
            answer = server.infer(nifti_bytes(array), "scan.nii", output="image", params='{"result_extension": ".nii"}')
            if answer.status_code != 503:
                return answer
            time.sleep(0.1)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, scans))
    seen = set()
    for array, answer in zip(scans, answers, strict=True):
        expected = np.asarray(predictor(nib.Nifti1Image(array, np.diag([1.3, 1.3, 8.0, 1.0]))).dataobj)
        found = np.asarray(read_nifti(answer.content).dataobj)
        np.testing.assert_array_equal(found, expected)
        seen.add(found.tobytes())
    assert len(seen) == 16


def test_a_full_queue_says_when_to_come_again(own_server):
    server = own_server(queue=1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.infer(image="cine", output="json"), range(8)))
    kinds = {answer.status_code for answer in answers}
    assert kinds == {200, 503}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["code"] == "VMF540"
    assert 1 <= int(refused.headers["Retry-After"]) <= 120


def head(server, length, path="/infer/vmfnet_mnms"):
    lines = (f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Content-Length: {length}")
    return "\r\n".join([*lines, "Content-Type: multipart/form-data; boundary=x", "", ""]).encode()


PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.nii"\r\n\r\n'


def test_a_slow_body_is_cut_off(own_server):
    server = own_server(body_timeout=0.4)
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(head(server, 100_000) + PART)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"VMF191" in answer
    assert server.leftovers() == []


@pytest.mark.parametrize("half_close", [False, True], ids=["hang up", "half close"])
def test_half_an_upload_leaves_nothing(server, half_close):
    data = head(server, 100_000) + PART + b"x" * 5000
    if half_close:
        assert b"200" not in server.raw(data, half_close=True).split(b"\r\n")[0]
    else:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(data)


def test_a_client_that_hangs_up_is_not_waited_for(own_server):
    server = own_server()
    part = b'--x\r\nContent-Disposition: form-data; name="params"\r\n\r\n{}\r\n--x--\r\n'
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head(server, len(part), "/infer/vmfnet_mnms?image=cine") + part)
    deadline = time.monotonic() + 60
    while (server.service.worker.pending or server.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (server.service.worker.pending, server.leftovers()) == (0, [])
    assert server.infer(image="scan0", output="json").status_code == 200


def test_a_chunked_body_is_counted(server):
    def endless():
        yield PART
        for _ in range(100):
            yield b"x" * 100_000

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    try:
        answer = server.request("POST", "/infer/vmfnet_mnms", data=endless(), headers=headers)
    except OSError:  # the server hung up while we were still sending
        return
    assert (answer.status_code, answer.json()["code"]) == (413, "VMF190")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"], ids=["tls", "http 9"]
)
def test_what_is_not_http_is_no_trouble(server, data):
    assert b"200" not in server.raw(data, half_close=True).split(b"\r\n")[0]


def test_the_log_names_no_image(server):
    server.infer(image="tilted", output="json")
    server.infer(nifti_bytes(voxels((24, 26, 3), 6)), "Jane Doe.nii", output="json")
    assert "POST /infer/{model} 200" in server.text()
    assert "tilted" not in server.text()
    assert "Jane" not in server.text()


def assert_no_path(server, answer):
    for place in (server.studies, server.temporary, "/tmp", "site-packages", "Traceback"):
        assert str(place) not in answer.text


@pytest.mark.parametrize("answered", [False, True], ids=["first request", "after an answer"])
def test_slow_headers_are_cut_off(own_server, answered):
    server = own_server(head_timeout=0.4, token="a-token-of-sixteen-characters")
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        if answered:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /info/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        while chunk := connection.recv(65536):  # the rest of the answer, then the end
            assert b"200" not in chunk.split(b"\r\n")[0] or answered
    assert server.get("/health").status_code == 200


def test_endless_headers_are_cut_off(own_server):
    server = own_server(head_timeout=30.0)
    answer = server.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 40_000)
    assert b"200" not in answer.split(b"\r\n")[0]


def test_wrong_tokens_are_counted(own_server):
    token = "a-token-of-sixteen-characters"
    server = own_server(token=token)

    def login(password):
        return server.request("POST", "/auth/token", data={"password": password}).status_code

    assert login(token) == 200
    assert [login("x" * 20) for _ in range(11)] == [401] * 10 + [429]
    refused = server.request("POST", "/auth/token", data={"password": token})
    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (429, "VMF562", "60")
    assert server.get("/info/", headers={"Authorization": f"Bearer {token}"}).status_code == 200  # who is in stays in
    assert server.get("/info/", headers={"Authorization": "Bearer wrong"}).status_code == 429


def test_the_folder_of_a_killed_server_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alive, killed = Workspace(), Workspace()
    kept = alive.new_folder()
    killed._lock.close()  # what the system does when a process ends
    other = tmp_path / "vmfseg-serve-mine"
    other.mkdir()  # not made by a server of this kind
    third = Workspace()
    assert not killed.root.exists()
    assert kept.exists()
    assert other.exists()
    for workspace in (alive, third):
        workspace.close()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
