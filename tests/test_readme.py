# SPDX-License-Identifier: Apache-2.0
"""The README: its blocks are run, its commands are those that exist, its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.bundle import ConfigParser
from typer.main import get_command

from vmfseg.bundle.compile import bundle_names, write_bundle
from vmfseg.bundle.keys import check_keys
from vmfseg.cli.main import app
from vmfseg.cli.train_command import _options
from vmfseg.data import MNMsDataset
from vmfseg.phantom import draw_subject, make_phantom

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
#: What makes a training of seconds of every training in the README, its own options untouched.
SMALL = "--max_iterations 2 --epoch_length 2 --image_size 32 --batch_size 2 --unlabeled_batch_size 2 --num_workers 0"
#: Of our own networks; another one, that a command names, stays as it is.
NARROW = " --network_def::channels '[8,16,16]'"


@dataclass(frozen=True)
class Block:
    """A fenced block with its language and the mark before it."""

    language: str
    text: str
    slow: bool

    @property
    def commands(self):
        """Return the commands of a shell block, without comments, lines that go on joined."""
        joined = self.text.replace("\\\n", " ")
        words = [shlex.split(line, comments=True) for line in joined.splitlines()]
        return [line for line in words if line]


def blocks():
    found = re.finditer(r"(?:^<!-- test: (\w+) -->\n)?^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [Block(match[2], match[3], match[1] == "slow") for match in found]


def shell_commands():
    return [command for block in blocks() if block.language == "bash" for command in block.commands]


def verbs():
    return get_command(app).commands


def table_after(heading):
    section = TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_blocks_are_found():
    kinds = [block.language for block in blocks()]
    assert {"bash", "python", "csv", "text"} == set(kinds)
    assert TEXT.count("```") == 2 * len(kinds)


@pytest.mark.parametrize("block", [pytest.param(b, id=b.text[:24]) for b in blocks() if b.language == "python"])
def test_a_python_block_runs(block):
    names: dict = {}
    exec(compile(block.text, "README.md", "exec"), names)
    assert sorted(names["terms"]) == ["clustering", "reconstruction"], "as its comment says"
    assert tuple(names["logits"].shape) == (2, 4, 64, 64)


@pytest.mark.parametrize("command", [pytest.param(c, id=" ".join(c)[:60]) for c in shell_commands()])
def test_a_command_has_only_options_that_exist(command):
    if command[0] == "make":
        done = subprocess.run(["make", "-n", *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    elif command[0] == "vmfseg":
        words = command[1:]
        verb = verbs()[words[0]]
        while hasattr(verb, "commands"):
            words = words[1:]
            verb = verb.commands[words[0]]
        context = verb.make_context(words[0], list(words[1:]))
        if words[0] == "train":
            files = ["train.json", *(["paper.json"] if context.params["paper"] else [])]
            named = context.params["bundle"]
            folder = ROOT / "bundles" / (named if named in bundle_names() else "vmfnet_mnms") / "configs"
            check_keys(ConfigParser.load_config_files([str(folder / file) for file in files]), _options(context.args))
        else:
            assert not context.args
    else:
        assert command[:4] == ["python", "-m", "monai.bundle", "run"]
        options = dict(zip(command[5::2], command[6::2], strict=True))
        config = ConfigParser.load_config_file(str(ROOT / options.pop("--config_file")))
        check_keys(config, {key.removeprefix("--"): value for key, value in options.items()})
        assert command[4] in config


def test_the_table_of_verbs_is_that_of_the_program():
    named = [re.match(r"`vmfseg (\w+)", row[0])[1] for row in table_after("Command line")]
    assert sorted(named) == sorted(verbs())


def test_the_table_of_bundles_is_complete():
    named = [name for row in table_after("Methods and bundles") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == bundle_names()


def test_the_table_of_tutorials_is_complete():
    named = [re.search(r"\((.+?)\)", row[0])[1] for row in table_after("Tutorials and documentation")]
    assert named == sorted(f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb"))


def test_links_and_files_exist():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if not target.startswith("http")]
    assert "docs/picture.png" in targets
    for target in [*targets, "docs/picture.py", "CITATION.cff", "benchmarks/results", "studies/phantom_mnms.yaml"]:
        assert (ROOT / target).exists(), target
    assert (ROOT / "docs" / "picture.png").stat().st_size <= 300_000


@pytest.mark.parametrize(
    ("badge", "entry", "words"),
    [
        ("python", r"python_requires = >=(\S+)", "Python: {} or later"),
        ("license", r"license = (\S+)", "license: {}"),
        ("monai", r"monai>=(\S+)", "MONAI: {} or later"),
    ],
)
def test_a_badge_is_true(badge, entry, words):
    found = re.search(entry, (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert found
    said = words.format(found[1])
    picture = (ROOT / "docs" / "badges" / f"{badge}.svg").read_text(encoding="utf-8")
    assert f'aria-label="{said}"' in picture
    assert re.findall(r"<text[^>]*>([^<]*)</text>", picture) == said.split(": ")
    assert f"![{said.replace(': ', ' ')}](docs/badges/{badge}.svg)" in TEXT


def test_what_the_demo_printed_ends_as_the_makefile_says():
    shown = next(block for block in blocks() if block.language == "text").text.splitlines()
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    said = re.findall(r'^echo "(.*)"$', done.stdout, re.MULTILINE)
    assert [line.rstrip() for line in shown[-len(said) :]] == said


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """Return a folder that looks like the repository to a user, with data below ``data``."""
    root = tmp_path_factory.mktemp("readme")
    for name in ("vmfnet_mnms", "vmfnet_scgm"):
        write_bundle(name, root / "bundles")
    data = root / "data"
    data.mkdir()
    hearts = make_phantom(data / "OpenDataset", subjects=10, frames=2, size=96, workers=1)
    make_phantom(data / "SCGM", "scgm", subjects=12, size=50, workers=1)
    mine, new = data / "mine", data / "new"
    mine.mkdir()
    new.mkdir()
    rows = [row for row in MNMsDataset(hearts, checksums=False).datalist().rows if row.phase == "ED"]
    lines = ["image,label,domain,subject,annotated"]
    for number, row in enumerate(rows[:8]):
        image, label = nib.load(hearts / row.image), nib.load(hearts / row.labels[0])
        voxels, mask = (np.asarray(file.dataobj)[..., row.frame] for file in (image, label))
        nib.save(nib.Nifti1Image(voxels, image.affine), mine / f"s{number}.nii.gz")
        nib.save(nib.Nifti1Image(mask.astype(np.uint8), image.affine), mine / f"s{number}_label.nii.gz")
        kind = ("", "") if number == 1 else (f"s{number}_label.nii.gz", "1;2;3" if number == 2 else "")
        hospital = "hospital_b" if number > 4 else "hospital_a"
        lines.append(f"s{number}.nii.gz,{kind[0]},{hospital},s{number},{kind[1]}")
    nib.save(nib.Nifti1Image(voxels, image.affine), new / "scan.nii.gz")
    draw_subject("cords", 0, fov=50.0).save(data / "cords")
    (mine / "datalist.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (mine / "labels.json").write_text(re.search(r"`(\{\"1\".*?\})`", TEXT)[1], encoding="utf-8")
    return root


def runnable():
    """Return the shell blocks that run anywhere; make has tests of its own, and so have studies."""
    texts = ("make ", "vmfseg study")
    return [block for block in blocks() if block.language == "bash" and not any(text in block.text for text in texts)]


@pytest.mark.slow
@pytest.mark.parametrize("block", [pytest.param(block, id=block.text[:40]) for block in runnable()])
def test_a_shell_block_runs(block, sandbox):
    shutil.rmtree(sandbox / "labels", ignore_errors=True)
    lines = []
    for command in block.commands:
        text = shlex.join(command).replace("/data/", f"{sandbox}/data/")
        if "training" in command or command[:2] == ["vmfseg", "train"]:
            text += f" {SMALL}" + ("" if "--network_def" in command else NARROW)
            text += "" if "/data/" in text else """ --phantom "{'subjects':8,'frames':2,'size':48}" """
        lines.append(text)
    home = sandbox / "home"
    home.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "VMFSEG_CACHE": str(sandbox / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=sandbox, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    if "segment" in block.text:
        label, scan = (nib.load(sandbox / place) for place in ("labels/scan_seg.nii.gz", "data/new/scan.nii.gz"))
        assert label.shape == scan.shape
