# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: no console error, every image renders, the tables sort, nothing is fetched."""

import html
import json
import re
import shutil
import subprocess

import pytest

from vmfseg.visualize import build_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
)  # fmt: skip
PROBE = """<script>
addEventListener("load", () => {
  const body = document.querySelector("#volume-table tbody");
  const column = index => Array.from(body.rows, row => row.cells[index].textContent.trim());
  const heads = Array.from(document.querySelectorAll("#volume-table th"));
  const press = index => {
    heads[index].querySelector("button").click();
    return [column(index), heads[index].getAttribute("aria-sort")];
  };
  const seen = {
    errors: window.problems,
    images: Array.from(document.images, image => [image.naturalWidth, image.naturalHeight, image.complete]),
    start: column(3), down: press(3), up: press(3), subjects: press(1), last: press(heads.length - 2),
    fetched: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
    overflow: document.documentElement.scrollWidth - innerWidth,
  };
  const note = document.createElement("pre");
  note.id = "probe";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
});
</script>"""
WATCH = (
    '<script>window.problems = []; addEventListener("error", e => window.problems.push(String(e.message)));</script>'
)


@pytest.fixture(scope="module")
def seen(finished, tmp_path_factory):
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser found (looked for {', '.join(BROWSERS)}); on Debian: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")
    page = build_report(finished.output, folder / "report.html", dataset_dir=finished.data, cases=2)
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<head>", "<head>" + WATCH).replace("</body>", PROBE + "</body>"), encoding="utf-8")
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1240,900", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=600, check=False, encoding="utf-8"
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return {**json.loads(html.unescape(found[1])), "log": done.stderr}


def test_the_console_has_no_error(seen):
    assert seen["errors"] == []
    assert [line for line in seen["log"].splitlines() if "CONSOLE" in line] == []


def test_every_image_renders(seen):
    assert len(seen["images"]) == 6
    for width, height, complete in seen["images"]:
        assert width > 100
        assert height > 100
        assert complete


def test_the_table_sorts_both_ways_by_numbers_and_by_names(seen):
    numbers = [float(cell) for cell in seen["start"]]
    assert len(set(numbers)) > 1
    assert numbers == sorted(numbers)  # worst first, and marked so
    assert seen["down"] == [[f"{value:.3f}" for value in sorted(numbers, reverse=True)], "descending"]
    assert seen["up"] == [seen["start"], "ascending"]
    assert seen["subjects"] == [sorted(seen["subjects"][0]), "ascending"]
    assert [float(cell) for cell in seen["last"][0]] == sorted(float(cell) for cell in seen["last"][0])


def test_nothing_is_fetched_and_the_page_is_not_wider_than_the_window(seen):
    assert seen["fetched"] == []
    assert seen["overflow"] <= 0
