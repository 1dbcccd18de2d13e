# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: work list, image, mask, kernels, voxel, errors, sizes of the window."""

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from inference_bundle import tiny_model
from page_driver import PAGE, Page
from serving_tools import ServerThread, oblique

from vmfseg.model import Predictor
from vmfseg.serving import ImageIndex, Service
from vmfseg.serving.routes import page
from vmfseg.serving.served_models import ServedModel
from vmfseg.serving.worklist import remember


def mark(server, **flags):
    """Give cases a flag and a predicted Dice, as if they had been scored."""
    model = server.service.models["vmfnet_mnms"]
    for image, (color, dice) in flags.items():
        remember(server.service.labels, image, model, {"flag": color, "dice": dice, "score": dice})


@pytest.mark.usefixtures("built")
def test_a_visit(browser, own_server, predictor):
    server = own_server()
    mark(server, cine=("green", 0.93), scan0=("red", 0.7), scan1=("amber", 0.6), tilted=("red", 0.2))
    here = Page(browser, server.url)
    assert here.cases() == ["tilted", "scan0", "scan1", "cine", "site/scan0"], "by flag, then by predicted Dice"
    assert browser.evaluate(f"{PAGE}('run').disabled")
    here.choose("tilted")
    gray, colored = here.pixels()
    assert gray > 1000
    assert colored == 0
    views = "Array.from(document.querySelectorAll('#views button'), button => button.innerText)"
    assert browser.evaluate(views) == ["Slices", "All planes"], "a stack of thick slices"
    assert browser.evaluate("vmfseg.viewer.nv.opts.crosshairWidth") == 0

    here.run()
    outlines = here.pixels()[1]
    assert outlines > 50
    here.press("[data-style=fill]")
    assert here.pixels()[1] > 3 * outlines
    here.press("[data-style=none]")
    assert here.pixels()[1] == 0, "the label can be hidden"
    strongest = "vmfseg.reading.result.kernels.toSorted((a, b) => b.share - a.share)[0].kernel"
    press = f"document.querySelector(`#kernel-list button[data-kernel='${{{strongest}}}']`).click()"
    browser.evaluate(press)
    browser.wait("vmfseg.reading.kernel !== null")
    assert here.pixels()[1] > 100, "the map of a kernel is shown"
    browser.evaluate(press)
    browser.wait("vmfseg.reading.kernel === null")
    assert here.pixels()[1] == 0

    here.slide("slice", 1)
    assert here.text("slice-text") == "2 of 5"
    here.key("ArrowUp")
    assert here.text("slice-text") == "3 of 5"
    x, y, width, height = browser.evaluate(
        f"(e => {{ const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }})({PAGE}('canvas'))"
    )
    browser.click(x + 0.52 * width, y + 0.45 * height)
    text = browser.wait(f"!{PAGE}('voxel').hidden && {PAGE}('voxel').innerText")
    expected = predictor.predict(server.studies / "tilted.nii.gz", activations=True)
    place = browser.evaluate("Array.from(vmfseg.viewer.place.mm).slice(0, 3)")
    index = tuple(np.rint(np.linalg.inv(oblique()) @ (*place, 1))[:3].astype(int).tolist())
    name = predictor.labels[int(expected.labels[index])]
    assert f"Voxel {', '.join(map(str, index))} was labelled {name}." in text
    first = browser.evaluate("document.querySelector('#voxel-kernels .index').textContent")
    assert int(first) == int(expected.activations[index].argmax())
    volumes = {row.split("\t")[0]: row.split("\t")[1] for row in here.text("volumes").splitlines()[1:]}
    told = expected.quality["frames"][0]["volumes_ml"]
    assert volumes == {structure: f"{volume:.1f} ml" for structure, volume in told.items()}
    assert browser.problems() == []
    outside = [url for url in browser.requests() if not url.startswith((server.url, "data:", "blob:"))]
    assert outside == []
    if folder := os.environ.get("VMFSEG_SCREENSHOTS"):
        browser.screenshot(Path(folder) / "page.png")


@pytest.mark.usefixtures("built")
@pytest.mark.slow
def test_the_work_list_is_sorted_and_walked_by_keys(browser, own_server):
    server = own_server()
    mark(server, cine=("green", 0.93), scan0=("red", 0.7), scan1=("amber", 0.6), tilted=("red", 0.2))
    here = Page(browser, server.url)
    assert here.cases() == ["tilted", "scan0", "scan1", "cine", "site/scan0"]
    first = browser.evaluate("document.querySelector('.case').getAttribute('aria-label')")
    assert first == "tilted, red flag, predicted Dice 0.20"
    here.key("]")
    here.opened("tilted")
    here.key("]")
    here.opened("scan0")
    assert here.text("case-place") == "2 of 5"
    here.key("[")
    here.opened("tilted")
    assert browser.evaluate(f"{PAGE}('previous').disabled")
    here.press("score")
    browser.wait(f"{PAGE}('score').disabled")
    assert here.text("cases-count") == "0 of 5 labelled, 5 scored"
    assert here.cases() == ["tilted", "scan0", "scan1", "site/scan0", "cine"], "what is not calibrated before green"


@pytest.mark.usefixtures("built")
def test_an_error_takes_the_old_result_away_and_the_button_waits(browser, own_server):
    server = own_server()
    here = Page(browser, server.url)
    here.choose("scan0")
    here.run()
    assert not here.hidden("quality")
    nib.save(nib.Nifti1Image(np.full((30, 26, 5), np.nan, np.float32), np.eye(4)), server.studies / "scan0.nii.gz")
    here.press("run")
    message = browser.wait(f"!{PAGE}('message').hidden && {PAGE}('message').innerText")
    assert "VMF230" in message
    assert [here.hidden(part) for part in ("quality", "volumes", "kernels", "voxel", "edit")] == [True] * 5
    assert here.pixels()[1] == 0
    press = "document.querySelector(\".case[title='scan1']\").click()"
    turns = "for (let turn = 0; turn < 20; turn += 1) await null"  # what follows a click at once
    waiting = browser.evaluate(
        f"(async () => {{ {press}; {turns}; return [{PAGE}('run').disabled, {PAGE}('hint').innerText]; }})()"
    )
    browser.wait("vmfseg.reading.study?.id === 'scan1' && !document.getElementById('run').disabled")
    assert here.hidden("message"), "the error of another case"
    here.run()
    (server.studies / "scan1.nii.gz").unlink()
    here.press(".case[title='scan1']")
    assert "VMF181" in browser.wait(f"!{PAGE}('message').hidden && {PAGE}('message').innerText")
    assert [here.hidden(part) for part in ("quality", "volumes", "label")] == [True] * 3
    assert here.pixels() == (0, 0), "no image under an error about another one"
    assert browser.evaluate(f"{PAGE}('run').disabled")
    assert waiting == [True, "Loading…"]


@pytest.mark.usefixtures("built")
@pytest.mark.slow
def test_a_model_without_kernels_says_what_is_left_out(browser, tmp_path, own_server):
    own = own_server()
    network = {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
               "channels": [4, 8], "strides": [2]}  # fmt: skip
    torch.manual_seed(0)
    from monai.networks.nets import UNet

    weights = UNet(**{key: value for key, value in network.items() if key != "_target_"}).state_dict()
    (tmp_path / "models").mkdir()
    tiny_model(network=network).save(tmp_path / "models", weights)
    predictor = Predictor.from_bundle(tmp_path, "cpu")
    server = ServerThread(Service({"unet": ServedModel("unet", predictor)}, ImageIndex(own.studies)))
    try:
        here = Page(browser, server.url)
        here.choose("scan0")
        here.run()
        note = browser.evaluate(f"{PAGE}('note').textContent")
        assert "no vMF kernels" in note
        assert "corrections work" in note
        assert not browser.evaluate(f"{PAGE}('kernel-list').children.length")
        assert not here.hidden("edit")
        assert browser.problems() == []
    finally:
        server.stop()


@pytest.mark.usefixtures("built")
@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_is_wider_than_the_window(browser, own_server, width):
    server = own_server()
    (server.studies / f"{'a-very-long-name-' * 5}.nii.gz").write_bytes((server.studies / "cine.nii.gz").read_bytes())
    server.service.studies.refresh()
    size = {"deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, **size)
    try:
        here = Page(browser, server.url)
        here.choose("a-very-long-name-" * 5)
        here.run()
        here.press("[data-tool=brush]")
        browser.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        nameless = browser.evaluate(
            "Array.from(document.querySelectorAll('button, input, select, canvas')).filter(node =>"
            "!node.innerText && !node.getAttribute('aria-label') && !node.closest('label')).map(node => node.outerHTML)"
        )
        assert nameless == []
    finally:
        browser.call("Emulation.setDeviceMetricsOverride", width=900, height=640, **size)


@pytest.mark.usefixtures("built")
@pytest.mark.slow
def test_the_page_asks_for_the_token(browser, own_server):
    server = own_server(token="a-token-of-some-length")
    browser.open(server.url)
    browser.wait(f"{PAGE}('login')?.open")
    browser.evaluate(
        f"{PAGE}('token').value = 'a-token-of-some-length'; {PAGE}('login').querySelector('button').click()"
    )
    browser.wait("document.body.dataset.ready")
    assert browser.evaluate(f"{PAGE}('model').value") == "vmfnet_mnms"


def test_the_routes_are_documented_without_a_network(browser, own_server):
    server = own_server()
    browser.events.clear()
    browser.open(f"{server.url}/docs")
    shown = "document.readyState === 'complete' && document.body.innerText.includes('/infer/{model}')"
    text = browser.wait(f"{shown} && document.body.innerText")
    assert "/datastore/label" in text
    assert "/vmfseg/worklist/{model}" in text
    assert "``" not in browser.evaluate("document.body.textContent")
    asked = set(browser.requests()) - {f"{server.url}/favicon.ico"}  # which a browser wants of its own accord
    assert asked == {f"{server.url}/docs", f"{server.url}/assets/pages.css"}
    assert browser.problems() == []


def test_a_page_that_is_not_built_says_how(own_server, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "ASSETS", tmp_path / "assets")
    answer = own_server().get("/")
    assert answer.status_code == 200
    assert "make web" in answer.text


def test_every_answer_forbids_foreign_code(own_server):
    server = own_server()
    for path in ("/", "/docs", "/info/", "/nowhere"):
        headers = server.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_openapi_lists_the_routes_of_the_client(own_server):
    paths = own_server().get("/openapi.json").json()["paths"]
    for path in ("/info/", "/infer/{model}", "/session/", "/datastore/", "/datastore/label", "/train/{model}"):
        assert path in paths
