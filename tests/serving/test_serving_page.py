# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: it loads, runs a model, shows masks and kernels, and explains a voxel."""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from browser_driver import Browser, find_browser
from serving_tools import oblique

from vmfseg.serving.routes import page

PAGE = "document.getElementById"


@pytest.fixture
def browser(tmp_path):
    if find_browser() is None:
        pytest.skip("no browser found; on Debian: apt-get install chromium")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def built():
    if not (page.ASSETS / "index.html").is_file():
        pytest.skip("the page is not built: make web")


def choose(browser, study):
    browser.evaluate(f"(s => {{ s.value = '{study}'; s.dispatchEvent(new Event('change')); }})({PAGE}('study'))")
    browser.wait(f"!{PAGE}('run').disabled")


def run(browser):
    browser.evaluate(f"{PAGE}('run').click()")
    browser.wait(f"vmfseg.state.result && !{PAGE}('run').disabled")


def pixels(browser):
    """Return how many pixels of the canvas are gray, and how many have a color."""
    script = """(async () => {
      vmfseg.viewer.nv.drawScene();
      const canvas = document.getElementById("canvas"), copy = document.createElement("canvas");
      [copy.width, copy.height] = [canvas.width, canvas.height];
      const context = copy.getContext("2d");
      context.drawImage(canvas, 0, 0);
      const data = context.getImageData(0, 0, copy.width, copy.height).data;
      let gray = 0, colored = 0;
      for (let k = 0; k < data.length; k += 4) {
        const spread = Math.max(data[k], data[k + 1], data[k + 2]) - Math.min(data[k], data[k + 1], data[k + 2]);
        if (spread > 30) colored += 1; else if (data[k] > 30) gray += 1;
      }
      return [gray, colored];
    })()"""
    return browser.evaluate(script)


@pytest.mark.usefixtures("built")
def test_a_visit(browser, own_server, predictor):
    server = own_server()
    browser.open(server.url)
    browser.wait("document.body?.dataset.ready")
    studies = browser.evaluate(f"Array.from({PAGE}('study').options, option => option.value)")
    assert studies == ["", "cine", "scan0", "scan1", "site/scan0", "tilted"]
    choose(browser, "tilted")
    gray, colored = pixels(browser)
    assert gray > 1000
    assert colored == 0

    run(browser)
    strongest = "vmfseg.state.result.kernels.toSorted((a, b) => b.share - a.share)[0].kernel"
    press = f"document.querySelector(`#kernel-list button[data-kernel='${{{strongest}}}']`).click()"
    gray, with_mask = pixels(browser)
    assert with_mask > 1000
    browser.evaluate(f"{PAGE}('mask').click()")
    assert pixels(browser)[1] == 0, "the mask can be hidden"
    browser.evaluate(press)
    browser.wait("vmfseg.state.kernel !== null")
    assert pixels(browser)[1] > 100, "the map of a kernel is shown"
    browser.evaluate(press)
    browser.wait("vmfseg.state.kernel === null")
    assert pixels(browser)[1] == 0

    browser.evaluate(f"(s => {{ s.value = 1; s.dispatchEvent(new Event('input')); }})({PAGE}('slice'))")
    assert browser.evaluate(f"{PAGE}('slice-text').textContent") == "2 of 5"
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
    assert browser.problems() == []
    outside = [url for url in browser.requests() if not url.startswith((server.url, "data:", "blob:"))]
    assert outside == []
    if folder := os.environ.get("VMFSEG_SCREENSHOTS"):
        browser.screenshot(Path(folder) / "page.png")


@pytest.mark.usefixtures("built")
def test_frames_of_a_cine_and_a_refusal(browser, own_server):
    server = own_server()
    bad = nib.Nifti1Image(np.full((20, 20, 3), np.nan, np.float32), np.eye(4))
    nib.save(bad, server.studies / "broken.nii.gz")
    deadline = time.monotonic() + 30  # the server looks at its folder again after a moment
    while "broken" not in server.get("/datastore/?output=all").json()["objects"]:
        assert time.monotonic() < deadline
    browser.open(server.url)
    browser.wait("document.body?.dataset.ready")
    choose(browser, "cine")
    run(browser)
    assert browser.evaluate(f"[{PAGE}('frame-field').hidden, {PAGE}('frame').max]") == [False, "3"]
    browser.evaluate(f"(f => {{ f.value = 2; f.dispatchEvent(new Event('change')); }})({PAGE}('frame'))")
    browser.wait("vmfseg.state.result.frame === 2")
    choose(browser, "broken")
    browser.evaluate(f"{PAGE}('run').click()")
    message = browser.wait(f"!{PAGE}('message').hidden && {PAGE}('message').innerText")
    assert "VMF230" in message
    assert "Cure:" in message


@pytest.mark.usefixtures("built")
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
    browser.open(f"{server.url}/docs")
    text = browser.wait("document.body?.innerText.includes('/infer/{model}') && document.body.innerText")
    assert "/datastore/label" in text
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
