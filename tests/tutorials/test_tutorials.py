# SPDX-License-Identifier: Apache-2.0
"""Execute every tutorial in an empty home folder without network access.

With ``VMFSEG_UPDATE_TUTORIALS=1`` the outputs are stored in the notebooks as well.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

nbformat = pytest.importorskip("nbformat", reason="the extra tutorials is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra tutorials is not installed")
pytest.importorskip("ipykernel", reason="the extra tutorials is not installed")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tutorials"
NAMES = [
    "01_quickstart",
    "02_the_vmf_idea",
    "03_five_settings",
    "04_mnms_and_scgm",
    "05_your_own_data",
    "06_looking_inside",
    "07_bundles_export_serving",
    "08_studies",
]
#: Bytes of a stored notebook, its figures included.
SIZE = 250_000


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def tracked_files():
    return {path: path.stat().st_mtime_ns for path in FOLDER.rglob("*") if path.is_file()}


def texts(cells):
    """Return all texts that cells printed or showed."""
    outputs = [output for cell in cells for output in cell.outputs]
    shown = [value for o in outputs for kind, value in o.get("data", {}).items() if kind != "image/png"]
    return [o.text for o in outputs if o.output_type == "stream"] + shown


def few_colors(picture):
    """Return a PNG, in base64, with a palette of 128 colors: half of the bytes, and thin outlines keep their color."""
    stream = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(128, method=Image.Quantize.FASTOCTREE).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def store(book, name, places):
    """Write a notebook that was executed, with figures of few colors, without the times and the folders of this run."""
    book.metadata.language_info = {"name": "python"}
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = few_colors(output.data["image/png"])
    text = nbformat.writes(book)
    for place, word in places.items():
        text = text.replace(str(place), word)
    text = re.sub(r"TMP/(vmfseg-|tmp)\w+", "TMP", text)
    text = re.sub(r"  \d+ s, \d+ s left", "", text)
    (FOLDER / f"{name}.ipynb").write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def test_the_folder_holds_these_tutorials_and_no_others():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_explains_every_cell_and_its_stored_outputs_are_small(name):
    book = read(name)
    nbformat.validate(book)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < SIZE
    assert book.cells[0].cell_type == "markdown"
    assert re.match(rf"# {int(name[:2])}\. \S", book.cells[0].source), "the title starts with the number"
    for before, cell in zip(book.cells, book.cells[1:], strict=False):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown", f"no text before: {cell.source[:80]}"
            assert "execution" not in cell.metadata, "times of a run are no part of a text to read"
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in codes]
    assert counts in ([None] * len(codes), list(range(1, len(codes) + 1))), "run all of it from top to bottom, or none"
    assert any(cell.outputs for cell in codes) == (counts[0] == 1)
    shown = "\n".join(texts(codes))
    assert not re.search(r"/tmp/|/home/|/root/|/Users/|site-packages", shown), "a path of the machine it ran on"
    assert " s left" not in shown, "times of a run are no part of a text to read"
    assert len({cell["id"] for cell in book.cells}) == len(book.cells)


@pytest.mark.parametrize("name", NAMES)
def test_links_between_tutorials_lead_somewhere(name):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+\.ipynb)\)", text):
        assert (FOLDER / target).is_file(), target


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_runs(name, tmp_path):
    home, scratch = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    scratch.mkdir()
    nowhere = "http://127.0.0.1:9"  # nothing listens there: a request to the outside fails at once
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("VMFSEG_", "XDG_", "JUPYTER_"))},
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nowhere),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
    }
    before = tracked_files()
    book = read(name)
    place = {"metadata": {"path": str(FOLDER)}}
    client = nbclient.NotebookClient(
        book, timeout=900, startup_timeout=600, kernel_name="python3", resources=place
    )  # a busy machine takes its time to start a kernel
    client.execute(env=environment)
    assert tracked_files() == before, "a tutorial writes into a temporary folder only"
    assert not (home / ".cache" / "vmfseg").exists()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    noise = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    assert noise == [], "warnings are no part of a text to read"
    assert any("image/png" in output.get("data", {}) for output in outputs) or name.startswith("07"), "no figure"
    if os.environ.get("VMFSEG_UPDATE_TUTORIALS"):
        store(book, name, {scratch: "TMP", home: "HOME", ROOT: "vmfseg"})
