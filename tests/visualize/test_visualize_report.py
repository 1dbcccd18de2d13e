# SPDX-License-Identifier: Apache-2.0
import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import nibabel as nib
import numpy as np
import pytest

from vmfseg.transforms.spatial import slice_axis
from vmfseg.utils import VmfError
from vmfseg.visualize import build_report, view_volume
from vmfseg.visualize.report_cases import add_pictures, scored_volumes
from vmfseg.visualize.report_page import Page


class Outline(HTMLParser):
    """Collect what a test asks about: tags that are open at the end, attributes, text by section."""

    VOID = frozenset({"meta", "link", "img", "br", "input", "hr"})

    def __init__(self, text):
        super().__init__()
        self.stack, self.attributes, self.words, self.cells = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def pictures(self):
        return [value for tag, key, value in self.attributes if (tag, key) == ("img", "src")]


@pytest.fixture(scope="module")
def report(finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    build_report(finished.output, path, dataset_dir=finished.data, cases=2)
    return path.read_text(encoding="utf-8")


def test_the_page_is_whole_and_shows_what_the_run_left(report, finished):
    page = Outline(report)
    assert page.stack == []
    for words in ("tiny_mnms", "Worst cases first", "Every volume", "Heart function", "What the kernels stand for",
                  "Training", "Manifest", "Definitions", "target domain unseen", finished.scores.compute()["policy"],
                  "maximum over both surfaces"):  # fmt: skip
        assert words in page.text
    # two worst cases and the median, boxes, kernels and tissues, curves
    assert len(page.pictures) == 6
    for source in page.pictures:
        kind, data = source.split(",", 1)
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG\r\n")
    assert all(value for tag, key, value in page.attributes if (tag, key) == ("img", "alt"))


def test_figures_and_failures_are_those_of_the_metrics(report, finished):
    text = Outline(report).text
    summary = finished.scores.compute()
    for name, entry in summary["overall"]["classes"].items():
        assert f"{name} {entry['dice']['n']} {entry['dice']['mean']:.3f} ± {entry['dice']['sd']:.3f}" in text
    assert "1 structures missed" in text
    assert "missed RV" in text


def test_worst_cases_come_first(report, finished):
    volumes = {}
    for row in finished.scores.rows:
        volumes.setdefault((row.subject, row.phase), []).append(row.dice)
    means = sorted((sum(dice) / len(dice), name) for name, dice in volumes.items())
    titles = re.findall(r'<h3><span class="rank">([^<]+)</span>([^<]+)</h3>', report)
    assert [rank for rank, _ in titles] == ["1", "2", "median"]
    assert [title for _, title in titles[:2]] == [f"{s} {p}, domain D" for _, (s, p) in means[:2]]
    places = [(int(k), int(n)) for k, n in re.findall(r"slice (\d+) of (\d+), \d+ wrong pixels", report)]
    assert len(places) == 3
    assert all(1 <= k <= n for k, n in places), "slices are counted from 1"
    table = report[report.index('id="volume-table"') :]
    order = re.findall(r'<tr><td class="text">D</td><td class="text">(\w+)</td><td class="text">(\w+)</td>', table)
    assert order == [name for _, name in means]


def test_nothing_points_outside_of_the_file(report, finished):
    page = Outline(report)
    for _, key, value in page.attributes:
        if key in ("src", "href", "action", "srcset", "data"):
            assert value.startswith(("data:", "#"))
    assert "http://" not in report
    assert "https://" not in report
    assert "url(" not in report
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    assert str(finished.home) not in report


def test_links_lead_to_sections(report):
    page = Outline(report)
    ids = {value for _, key, value in page.attributes if key == "id"}
    links = {value[1:] for _, key, value in page.attributes if key == "href" and value.startswith("#")}
    assert links
    assert links <= ids


def test_the_same_run_gives_the_same_bytes(report, finished, tmp_path):
    again = build_report(finished.bundle, tmp_path / "again.html", dataset_dir=finished.data, cases=2)
    assert again.read_text(encoding="utf-8") == report


def test_figures_alone_make_a_report(finished, tmp_path):
    for name in ("metrics.json", "metrics.csv"):
        (tmp_path / name).write_bytes((finished.output / name).read_bytes())
    path = build_report(tmp_path)
    assert path == tmp_path / "report.html"
    page = Outline(path.read_text(encoding="utf-8"))
    assert "no trained model beside these figures" in page.text
    assert len(page.pictures) == 1
    assert "Worst cases first" not in page.text


def test_without_cases_neither_model_nor_data_is_touched(copied):
    (copied / "models" / "model.safetensors").write_bytes(b"broken")
    page = Outline(build_report(copied, cases=0).read_text(encoding="utf-8"))
    assert len(page.pictures) == 2
    assert "No pictures" not in page.text


def test_a_model_that_cannot_be_used_is_a_remark_without_a_path(finished, copied, caplog):
    (copied / "models" / "model.safetensors").write_bytes(b"broken")
    text = build_report(copied, dataset_dir=finished.data).read_text(encoding="utf-8")
    assert "No pictures of cases (VMF401): the file must hold named tensors only" in Outline(text).text
    assert str(copied) not in text
    assert str(copied) in caplog.text  # the user at the terminal does learn which file


def test_data_of_another_split_is_said(finished, copied):
    path = copied / "models" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "data": {**manifest["data"], "split": "another"}}))
    text = build_report(copied, dataset_dir=finished.data, cases=1).read_text(encoding="utf-8")
    assert "The data is not the one of the run" in Outline(text).text


def test_a_network_without_kernels_is_reported_without_them(finished, plain):
    path = build_report(plain, dataset_dir=finished.data, cases=1)
    page = Outline(path.read_text(encoding="utf-8"))
    assert "The network has no vMF kernels, so there are no kernel maps" in page.text
    assert "What the kernels stand for" not in page.text
    assert "Worst cases first" in page.text
    assert len(page.pictures) == 4  # worst, median, boxes, curves


def test_names_are_escaped(copied):
    evil = "<img src=x onerror=alert(1)>"
    for name in ("metrics.csv", "metrics.json"):
        path = copied / "output" / name
        path.write_text(path.read_text().replace("MYO", evil).replace(',"ED"', f',"{evil}"'))
    for path in copied.rglob("manifest.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "name": "</title><script>alert(1)</script>"}))
    text = build_report(copied, cases=0).read_text(encoding="utf-8")
    assert evil not in text
    assert "<script>alert" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "onerror" not in {key for _, key, _ in Outline(text).attributes}


def test_an_existing_report_is_kept(copied):
    path = build_report(copied, cases=0)
    path.write_text("mine")
    with pytest.raises(VmfError, match="exists already") as caught:
        build_report(copied, cases=0)
    assert caught.value.code == "VMF503"
    assert path.read_text() == "mine"
    build_report(copied, cases=0, overwrite=True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert not list(path.parent.glob(".vmfseg-*"))


def test_negative_cases_are_refused(copied):
    with pytest.raises(ValueError, match="cases must be 0 or more, got -1"):
        build_report(copied, cases=-1)


def test_a_page_with_nothing_is_still_a_page():
    assert Outline(Page(title="empty", lead="").render()).stack == []


def test_labels_may_be_partial(finished):
    """Two of three classes drawn, on some slices: pictures and kernels are shown, what nobody drew is not judged."""

    def middle(row):
        image = nib.load(finished.experiment.datalist.path(row.images[0]))
        count = image.shape[slice_axis(image.affine, image.shape[:3])]
        return count // 4, 3 * count // 4

    def partial(rows):
        return tuple(replace(row, annotated=(1, 2), slices="{}-{}".format(*middle(row))) for row in rows)

    split = finished.experiment.split
    parts = {name: partial(getattr(split, name)) for name in ("labeled", "validation", "target")}
    experiment = replace(finished.experiment, split=replace(split, **parts))
    page = Page(title="t", lead="l")
    add_pictures(page, finished.predictor, experiment, scored_volumes(finished.scores.rows), 1)
    assert len(page.cases) == 1
    assert page.kernels
    assert "nobody drew it beside the others: RV" in page.kernel_note
    views = view_volume(finished.predictor, experiment.target[0])
    first, last = middle(split.target[0])
    drawn = [view.index for view in views if view.truth is not None]
    assert drawn == list(range(drawn[0], drawn[0] + last - first + 1))
    assert {view.annotated for view in views if view.truth is not None} == {(1, 2)}


def test_a_class_that_nobody_drew_cannot_be_wrong(make_view):
    view = make_view()
    others = np.where(view.truth == 3, 0, view.truth)
    partial = make_view(truth=others, annotated=(1, 2))
    oracle = sum((view.pred == c) != (others == c) for c in (1, 2)).astype(bool).sum()
    assert partial.wrong == oracle < make_view(truth=others).wrong
