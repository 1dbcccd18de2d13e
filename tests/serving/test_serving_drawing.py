# SPDX-License-Identifier: Apache-2.0
"""Correct labels in a real browser: brush, eraser, undo, submit, download; and the frames of a cine."""

import gzip
import json

import nibabel as nib
import numpy as np
import pytest
from page_driver import PAGE, Page
from serving_tools import read_nifti, voxels

pytestmark = pytest.mark.usefixtures("built")

FLIPPED = np.array([[-1.5, 0, 0, 20.0], [0, -1.25, 0, 30.0], [0, 0, 8.0, -4.0], [0, 0, 0, 1.0]])


@pytest.fixture
def flipped(own_server):
    """Return a server with a scan whose file runs to the patient's left and back, and the scan."""
    server = own_server()
    scan = nib.Nifti1Image(voxels((30, 26, 5), 7), FLIPPED)
    nib.save(scan, server.studies / "flipped.nii.gz")
    server.service.studies.refresh()
    return server, nib.load(server.studies / "flipped.nii.gz")


def saved(server, image):
    return nib.load(server.studies / "labels" / "final" / f"{image}.nii.gz")


def submit(here):
    here.browser.evaluate(f"{PAGE}('message').hidden = true")
    here.press("submit")
    here.browser.wait(f"!{PAGE}('message').hidden && !vmfseg.reading.busy")
    assert here.text("message").startswith("Submitted"), here.text("message")


def test_a_stroke_changes_the_submitted_label_exactly_where_it_was_drawn(browser, flipped, predictor):
    server, scan = flipped
    here = Page(browser, server.url)
    here.choose("flipped")
    here.run()
    here.slide("slice", 3)
    predicted = predictor.predict(server.studies / "flipped.nii.gz").labels
    start = here.values()

    here.key("b")
    here.press("#classes [data-value='3']")
    here.slide("size", 1)
    here.drag(here.places(scan, [(4, 20), (9, 20), (9, 17)]))
    expected = predicted.copy()
    expected[4:10, 20, 3] = 3
    expected[9, 17:21, 3] = 3
    after_one = here.values()

    here.slide(
        "size", 3
    )  # on pixels of 1.5 by 1.25 mm a disc of 1.875 mm reaches one to each side, and the corners not
    here.press("#classes [data-value='2']")
    here.drag(here.places(scan, [(20, 10)]))
    (left, _), (right, _) = here.places(scan, [(20, 10), (21, 10)])
    ring = browser.evaluate("parseFloat(document.getElementById('ring').style.width)")
    assert ring == pytest.approx(3 * 1.25 / 1.5 * abs(right - left), rel=0.02)
    disc = [(20, 10), (19, 10), (21, 10), (20, 9), (20, 11)]
    for x, y in disc:
        expected[x, y, 3] = 2
    here.press("[data-tool=eraser]")
    here.slide("size", 1)
    here.drag(here.places(scan, [(4, 20), (5, 20)]))
    expected[4:6, 20, 3] = 0
    assert here.text("label-state") == "Changes are not submitted."
    submit(here)
    assert browser.evaluate(f"[{PAGE}('train').textContent, {PAGE}('train').disabled]") == [
        "Fine-tune on 1 label",
        False,
    ]
    label = saved(server, "flipped")
    np.testing.assert_array_equal(np.asarray(label.dataobj), expected)
    np.testing.assert_array_equal(label.affine, scan.affine)
    assert server.get("/datastore/?output=train").json() == [
        {"image": "flipped.nii.gz", "label": "labels/final/flipped.nii.gz"}
    ]
    note = server.get("/datastore/label/info", params={"label": "flipped"}).json()
    assert (note["version"], note["model"]) == (1, "vmfnet_mnms")

    here.key("z", modifiers=2)
    here.key("z", modifiers=2)
    assert here.values() == after_one
    here.press("undo")
    assert here.values() == start
    assert browser.evaluate(f"{PAGE}('undo').disabled")
    submit(here)
    np.testing.assert_array_equal(np.asarray(saved(server, "flipped").dataobj), predicted)
    assert browser.problems() == []


@pytest.mark.slow
def test_what_was_drawn_is_not_lost_and_comes_back(browser, flipped):
    server, scan = flipped
    here = Page(browser, server.url)
    here.choose("flipped")
    here.press("empty")
    here.key("b")
    here.slide("size", 5)
    here.drag(here.places(scan, [(10, 10), (14, 10)]))
    drawn = here.values()
    assert sum(drawn) > 0
    dialog = f"{PAGE}('unsaved').open"
    for button, stays in (("[value='']", True), ("[value=submit]", False)):
        here.key("[")
        browser.wait(dialog)
        here.press(f"#unsaved button{button}")
        browser.wait(f"!{dialog}")
        if stays:
            assert here.values() == drawn
    here.opened("cine")
    assert np.asarray(saved(server, "flipped").dataobj).sum() == sum(drawn)
    here.choose("flipped")
    assert here.text("label-state") == "Saved label."
    assert here.values() == drawn
    browser.evaluate(
        "Object.defineProperty(HTMLAnchorElement.prototype, 'click', { value() { window.saved = this.download;"
        "window.bytes = fetch(this.href).then(r => r.arrayBuffer()).then(b => Array.from(new Uint8Array(b))); } });"
        "true"
    )
    here.press("download")
    name, content = browser.wait("window.saved && window.bytes.then(bytes => [window.saved, bytes])")
    assert name == "flipped_label.nii.gz"
    label = read_nifti(gzip.decompress(bytes(content)))
    np.testing.assert_array_equal(np.asarray(label.dataobj), np.asarray(saved(server, "flipped").dataobj))


@pytest.mark.slow
def test_zoom_keeps_the_clicked_voxel_in_place_and_the_brush_follows(browser, flipped):
    server, scan = flipped
    here = Page(browser, server.url)
    here.choose("flipped")
    place = here.places(scan, [(7, 19)])
    here.drag(place)
    here.slide("zoom", 3)
    here.press("empty")
    here.key("b")
    here.slide("size", 1)
    (x, y), (beside, _) = here.places(scan, [(7, 19), (8, 19)])
    here.drag([(x, y), (x + 3 * (beside - x), y)])
    submit(here)
    expected = np.zeros((30, 26, 5), np.uint8)
    expected[7:9, 19, 2] = 1
    np.testing.assert_array_equal(np.asarray(saved(server, "flipped").dataobj), expected)
    here.press("contrast-reset")
    assert browser.evaluate("vmfseg.viewer.zoom") == 1


def test_the_slider_shows_the_frame_and_labels_belong_to_frames(browser, own_server):
    server = own_server()
    cine = np.zeros((24, 26, 3, 4), np.int16)
    for frame in range(4):
        cine[6 * frame : 6 * frame + 6, ..., frame] = 1000
    nib.save(nib.Nifti1Image(cine, np.diag([1.3, 1.3, 8.0, 1.0])), server.studies / "bars.nii.gz")
    server.service.studies.refresh()
    scan = nib.load(server.studies / "bars.nii.gz")
    here = Page(browser, server.url)
    here.choose("bars")
    places = here.places(scan, [(3 + 6 * frame, 13) for frame in range(4)])
    seen = [here.brightness(places)]
    for frame in (1, 2, 3):
        here.slide("frame", frame)
        seen.append(here.brightness(places))
    assert (np.array(seen) > 128).tolist() == np.eye(4, dtype=bool).tolist()
    assert here.text("frame-text") == "4 of 4"
    here.key("ArrowRight")
    assert browser.evaluate("vmfseg.reading.frame") == 0, "a cine is a loop"
    here.key("ArrowLeft")
    here.key("ArrowLeft")
    assert browser.evaluate("[vmfseg.reading.frame, vmfseg.viewer.image.frame4D]") == [2, 2]
    here.run()
    assert browser.evaluate("vmfseg.reading.result.frame") == 2
    here.slide("frame", 1)
    assert here.hidden("quality")
    assert here.text("label-state") == "No label of frame 2 yet. Run the model, or draw."
    here.press("empty")
    here.key("b")
    here.slide("size", 1)
    here.drag(here.places(scan, [(2, 3), (5, 3)]))
    here.slide("frame", 2)
    assert not here.hidden("quality")
    submit(here)
    values = np.asarray(saved(server, "bars").dataobj)
    assert values.shape == cine.shape
    drawn = np.zeros((24, 26, 3), np.uint8)
    drawn[2:6, 3, 1] = 1
    np.testing.assert_array_equal(values[..., 1], drawn)
    told = json.loads(browser.evaluate("JSON.stringify(vmfseg.reading.result.quality.frames[0].volumes_ml)"))
    sizes = {name: int((values[..., 2] == k).sum()) for k, name in enumerate(("LV", "MYO", "RV"), start=1)}
    assert {name: round(count * 1.3 * 1.3 * 8 / 1000, 1) for name, count in sizes.items()} == pytest.approx(
        {name: round(volume, 1) for name, volume in told.items()}, abs=0.11
    )
    here.press("play")
    browser.wait("vmfseg.reading.frame !== 2")
    here.press("play")
    assert browser.evaluate("vmfseg.cine.timer") is None
    assert browser.problems() == []


@pytest.mark.slow
def test_window_and_level_change_the_contrast(browser, own_server):
    server = own_server()
    ramp = np.repeat(np.arange(0, 300, 10, dtype=np.int16)[:, None, None], 26, axis=1).repeat(3, axis=2)
    nib.save(nib.Nifti1Image(ramp, np.diag([1.3, 1.3, 8.0, 1.0])), server.studies / "ramp.nii.gz")
    server.service.studies.refresh()
    scan = nib.load(server.studies / "ramp.nii.gz")
    here = Page(browser, server.url)
    here.choose("ramp")
    places = here.places(scan, [(5, 13), (15, 13), (25, 13)])
    start = here.brightness(places)
    here.slide("window", 40)
    here.slide("level", 150)
    low, middle, high = here.brightness(places)
    assert (low, high) == (0, 255)
    assert middle == pytest.approx(127, abs=12)
    here.press("contrast-reset")
    assert here.brightness(places) == start
