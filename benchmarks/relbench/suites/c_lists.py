# SPDX-License-Identifier: Apache-2.0
"""Suite C: lists, configs and options that cannot work are refused by name before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.relbench.meeting import Fault, case
from benchmarks.relbench.scans import folder_of_pairs, write_lists
from benchmarks.relbench.suites.b_pairs import VERIFY
from benchmarks.relbench.tools.base import Job, Wanted
from benchmarks.relbench.tools.monai_verbs import plain_bundle
from benchmarks.relbench.verdict import Case

__all__ = ["TINY", "cases", "training", "training_scene"]

#: A network and a schedule that take a second.
TINY = {
    "dataset": "folder", "dataset_dir": ".", "target_domain": "C", "network_def::channels": "[4, 8, 8]",
    "network_def::hidden_channels": 4, "network_def::num_kernels": 4, "image_size": 16, "pixdim": 4.0, "batch_size": 4,
    "unlabeled_batch_size": 2, "max_iterations": 8, "epoch_length": 1, "selection": "last", "labeled_fraction": 0.5,
    "calibration::stage::max_volumes": 2, "device": "cpu",
}  # fmt: skip


def training(bundle: str = "HOME/vmfnet_mnms", plain: dict[str, Any] | None = None, **changes: Any) -> Job:
    """Ask for a training of seconds."""
    values = {**TINY, **changes}
    flags = tuple(f"--{key}={value}" for key, value in values.items())
    return Job("train", (bundle, "-o", "out", *flags), {} if plain is None else plain)


def training_scene(place: Path) -> None:
    """Scans of three domains, the bundle of vmfseg and one of MONAI's classes alone."""
    from vmfseg.bundle.compile import write_bundle

    folder_of_pairs(place)
    write_bundle("vmfnet_mnms", place)
    plain_bundle(place)


def _listed(
    name: str, damage: Callable[[Path], object], code: str, cause: str, file: str = r"scans\.(csv|json)|s1",
    plain: bool = True, status: int = 3,
) -> Case:  # fmt: skip
    asked = VERIFY if plain else Job(VERIFY.verb, VERIFY.words, None)
    return case("C", name, "T80", Fault(folder_of_pairs, damage, asked, Wanted(cause, file, code, status)))


def _rows(place: Path) -> list[dict[str, str]]:
    return json.loads((place / "plain" / "datalist.json").read_text())["training"]  # type: ignore[no-any-return]


def _edited(change: Callable[[list[dict[str, str]]], object]) -> Callable[[Path], object]:
    def damage(place: Path) -> None:
        rows = _rows(place)
        change(rows)
        write_lists(place, rows)

    return damage


def _text(change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda place: (place / "scans.csv").write_text(change((place / "scans.csv").read_text()), newline="")


def _broken_list(place: Path) -> None:
    (place / "labels.json").write_text("{")
    (place / "plain" / "datalist.json").write_text("{")


def _config(name: str, key: str, value: object, plain: tuple[str, object], code: str, cause: str) -> Case:
    """Set one entry of both bundles' configs."""

    def damage(place: Path) -> None:
        for file, (entry, content) in (("vmfnet_mnms/configs/train.json", (key, value)), ("plain/train.json", plain)):
            config = json.loads((place / file).read_text())
            node = config
            *parents, last = entry.split("::")
            for parent in parents:
                node = node[parent]
            node[last] = content
            (place / file).write_text(json.dumps(config))

    job = training("vmfnet_mnms")
    job = Job("train", (*job.words, "--trust"), {})
    wanted = Wanted(cause, r"train\.json|network_def|\boptimizer\b|\bloss\b|\blr\b|learning_rate", code, 4)
    return case("C", name, "T80", Fault(training_scene, damage, job, wanted, recovery=False))


def _option(
    name: str, code: str, cause: str, file: str, status: int, plain: dict[str, Any] | None, **options: Any
) -> Case:
    """Give one option that cannot work."""
    job = training(**options)
    asked = Job(job.verb, job.words, plain)
    wanted = Wanted(cause, file, code, status)
    return case("C", name, "T80", Fault(training_scene, lambda place: None, asked, wanted, recovery=False))


def cases() -> list[Case]:
    """Return the 20 cases."""
    return [
        _listed("missing-file", lambda p: (p / "s1.nii.gz").unlink(), "VMF281", "exist|no such file"),
        _listed("listed-twice", _edited(lambda rows: rows.append(dict(rows[1]))), "VMF284", "twice|duplicate"),
        _listed("unknown-key", _edited(lambda rows: [row.update(imgae=row.pop("image")) for row in rows]),
                "VMF28[259]", "imgae|['\"`]image['\"`]|column"),
        _listed("not-json", _broken_list, "VMF301", "JSON|Expecting", r"labels\.json|datalist\.json", status=4),
        _listed("way-out-of-the-folder", _edited(lambda rows: rows[1].update(image="../../s1.nii.gz")), "VMF283",
                r"inside|outside|leave|escape|exist|no such file", plain=True),
        _listed("no-domain", _text(lambda t: t.replace("domain", "color")), "VMF285|VMF289", "domain", plain=False),
        _listed("header-only-table", _text(lambda t: t.splitlines()[0] + "\n"), "VMF2(78|80|85|95|87)",
                "no rows?|empty|no images?|no scans?|only a header", plain=False),
        _listed("too-many-cells", _text(lambda t: t.replace(",A\n", ",A,x,y\n", 1)), "VMF278", "cells|columns",
                plain=False),
        _listed("field-of-200-kB", _text(lambda t: t + "s9.nii.gz," + "x" * 200_000 + ",A\n"), "VMF2[78]\\d",
                "too (large|long)|(larger|longer|more) than|limit", plain=False),
        _listed("not-utf-8", lambda p: (p / "scans.csv").write_bytes(b"image,label,domain\n\xff\xfe.nii.gz,,A\n"),
                "VMF278|VMF281", "UTF-8|encod|decode|not exist", plain=False),
        _config("reference-to-nothing", "train::optimizer::lr", "@nothing", ("learning_rate", "@nothing"), "VMF311",
                r"[@'\"`]nothing\b"),
        _config("class-that-does-not-exist", "train::loss::_target_", "monai.losses.DiceLos",
                ("loss::_target_", "monai.losses.DiceLos"), "VMF312", "DiceLos"),
        _config("unknown-argument", "train::loss::wait", 1, ("loss::wait", 1), "VMF316", r"\bwait\b"),
        _config("circle", "train::optimizer::lr", "@train::optimizer::lr", ("learning_rate", "@learning_rate"),
                "VMF313", "circ|cycl|recurs|to itself"),
        _config("value-of-a-wrong-type", "learning_rate", "ten", ("learning_rate", "ten"), "VMF315|VMF100",
                r"\bten\b|learning.rate|\blr\b|'str'"),
        _option("misspelt-key", "VMF110", "did you mean|no such|unknown|not defined|unrecogni[sz]ed", "learning_rat", 2,
                {"learning_rat": 0.1}, learning_rat=0.1),
        _option("fraction-of-3", "VMF100", r"0\.05|between|at most 1", "labeled_fraction", 2, None, labeled_fraction=3),
        _option("minus-5-iterations", "VMF1..", "-5|positive|at least 1", "max_iterations|max_epochs", 2,
                {"max_epochs": -5}, max_iterations=-5),
        _option("device-banana", "VMF1..", "banana", "device", 2, {"device": "banana"}, device="banana"),
        _option("unknown-domain", "VMF290", "sitC", "sitC|target_domain|domain", 3, None,
                target_domain="sitC"),
    ]  # fmt: skip
