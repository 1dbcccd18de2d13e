# SPDX-License-Identifier: Apache-2.0
"""Suite G: the same input gives the same bytes, however it comes; leaks between parts of a data set are found."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.relbench.meeting import Fault, case, summary
from benchmarks.relbench.scans import AFFINE, array_of, folder_of_pairs, rewrite, write_lists, write_scan
from benchmarks.relbench.suites.a_images import good_scan, segment
from benchmarks.relbench.suites.b_pairs import VERIFY
from benchmarks.relbench.suites.c_lists import training, training_scene
from benchmarks.relbench.suites.f_crashes import PHANTOM, undisturbed
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.verdict import Case, Verdict, no_counterpart

__all__ = ["cases"]


def _trained(name: str, threat: str, job: Job, equal: bool = True) -> Case:
    """Compare a training with the plain one."""

    def probe(tool: Tool, place: Path) -> Verdict:
        expected, _ = undisturbed(tool, place, training_scene, training(plain={}))
        training_scene(place)
        outcome = tool.run(job, place)
        assert outcome is not None
        same = outcome.code == 0 and (tool.digest(job, place) == expected) is equal
        return Verdict(recovers=same, note=summary(outcome))

    return Case("G", name, threat, probe, quick=False)


def _same(name: str, threat: str, scene: Callable[[Path], object], one: Job, other: Job, *names: str) -> Case:
    """Compare two ways to one result, voxel by voxel."""

    def probe(tool: Tool, place: Path) -> Verdict:
        if tool.call(one, place) is None:
            return no_counterpart()
        scene(place)
        maps = []
        for job, wanted in zip((one, other), names, strict=True):
            outcome = tool.run(job, place)
            found = [path for path in (place / "out").rglob("*.nii*") if path.name.startswith(wanted)]
            if outcome is None or outcome.code != 0 or not found:
                return Verdict(recovers=False, note=summary(outcome) if outcome else "")
            maps.append(nib.load(found[0]).get_fdata())  # type: ignore[attr-defined]
            for path in (place / "out").rglob("*"):
                if path.is_file():
                    path.unlink()
        equal = maps[0].shape == maps[1].shape and bool((maps[0] == maps[1]).all())
        return Verdict(recovers=equal, note="" if equal else f"shapes {maps[0].shape} and {maps[1].shape}")

    return Case("G", name, threat, probe)


def _turned(codes: str) -> Case:
    """Segment a scan and the same scan stored in another orientation; the labels must be the same in space."""

    def probe(tool: Tool, place: Path) -> Verdict:
        plain = nib.Nifti1Image(array_of(), AFFINE)
        turn = nib.orientations.ornt_transform(
            nib.io_orientation(AFFINE),
            nib.orientations.axcodes2ornt(tuple(codes)),  # type: ignore[attr-defined]
        )
        turned = plain.as_reoriented(turn)
        write_scan(place / "plain.nii.gz", array_of())
        write_scan(place / "turned.nii.gz", np.asarray(turned.dataobj), turned.affine)
        job = Job(
            "segment", ("plain.nii.gz", "turned.nii.gz", "-o", "out"), {"images": ["plain.nii.gz", "turned.nii.gz"]}
        )
        outcome = tool.run(job, place)
        found = {name: place / "out" / f"{name}_seg.nii.gz" for name in ("plain", "turned")}
        if outcome is None or outcome.code != 0 or not all(path.exists() for path in found.values()):
            return Verdict(recovers=False, note=summary(outcome) if outcome else "")
        one, other = (nib.load(path) for path in found.values())  # type: ignore[attr-defined]
        verdict = Verdict(recovers=bool((one.as_reoriented(turn).get_fdata() == other.get_fdata()).all()))
        if not np.allclose(other.affine, turned.affine, atol=1e-3):
            verdict.gates.add("wrong geometry")
        return verdict

    return Case("G", f"stored-as-{codes}", "T125", probe)


def _cine(place: Path) -> None:
    frames = [array_of(number=k) for k in range(3)]
    write_scan(place / "cine.nii.gz", np.stack(frames, axis=-1))
    write_scan(place / "frame.nii.gz", frames[1])


def _frame() -> Case:
    def probe(tool: Tool, place: Path) -> Verdict:
        _cine(place)
        job = Job("segment", ("cine.nii.gz", "frame.nii.gz", "-o", "out"), {"images": ["cine.nii.gz", "frame.nii.gz"]})
        outcome = tool.run(job, place)
        whole, single = (place / "out" / f"{name}_seg.nii.gz" for name in ("cine", "frame"))
        if outcome is None or outcome.code != 0 or not whole.exists() or not single.exists():
            return Verdict(recovers=False, note=summary(outcome) if outcome else "")
        one, other = (nib.load(path).get_fdata() for path in (whole, single))  # type: ignore[attr-defined]
        return Verdict(recovers=one.ndim == 4 and bool((one[..., 1] == other).all()), note=f"shape {one.shape}")

    return Case("G", "frame-of-a-cine", "T40", probe)


def _leak(name: str, threat: str, damage: Callable[[Path], object], code: str, cause: str) -> Case:
    job = Job("verify", VERIFY.words, None)
    return case("G", name, threat, Fault(folder_of_pairs, damage, job, Wanted(cause, r"s\d|scans\.csv", code)))


def _copied(place: Path) -> None:
    (place / "s3.nii.gz").write_bytes((place / "s0.nii.gz").read_bytes())


def _packed_again(place: Path) -> None:
    _copied(place)
    rewrite(place / "s3.nii.gz", lambda data: gzip.compress(gzip.decompress(data), 1, mtime=1))


def _two_domains(place: Path) -> None:
    rows = [
        {"image": f"s{k}.nii.gz", "label": f"s{k}_gt.nii.gz", "domain": domain, "subject": f"p{k // 3}"}
        for k, domain in enumerate("AABBCC")
    ]
    write_lists(place, rows)


def _twice(name: str, threat: str, scene: Callable[[Path], object], one: Job, other: Job) -> Case:
    """Compare all files of two runs of a job."""

    def probe(tool: Tool, place: Path) -> Verdict:
        if tool.call(one, place) is None:
            return no_counterpart()
        digests = []
        for number, job in enumerate((one, other)):
            folder = place / str(number) / "work"
            folder.mkdir(parents=True)
            scene(folder)
            outcome = tool.run(job, folder)
            assert outcome is not None
            digests.append(tool.digest(job, folder) if outcome.code == 0 else f"{number} {summary(outcome)}")
        return Verdict(
            recovers=digests[0] == digests[1] != "", note="" if digests[0] == digests[1] else str(digests)[:150]
        )

    return Case("G", name, threat, probe)


def cases() -> list[Case]:
    """Return the 15 cases."""
    pair = Job("segment", ("s0.nii.gz", "s1.nii.gz", "-o", "out"), {"images": ["s0.nii.gz", "s1.nii.gz"]})
    one = segment("scan.nii.gz", "--batch-size", "1").having(batch=1)
    phantom = Job("phantom", (*PHANTOM.words[:-1], "2"), None)
    copied = "same (voxels|scan|content)|duplicate|identical|copy of"
    return [
        _trained("trained-twice", "T122", training(plain={})),
        _trained("two-workers", "T123", training(plain={"num_workers": 2}, num_workers=2)),
        _trained("another-seed-another-model", "T122", training(plain={"seed": 1}, seed=1), equal=False),
        _same("batch-of-one", "T124", good_scan, segment(), one, "scan", "scan"),
        _same("alone-and-among-others", "T124", folder_of_pairs, segment("s1.nii.gz"), pair, "s1", "s1"),
        *[_turned(codes) for codes in ("LAS", "PSR", "SRA", "RPI")],
        _frame(),
        _twice("verified-twice", "T122", folder_of_pairs, VERIFY, VERIFY),
        _twice("phantom-with-two-workers", "T123", lambda place: None, PHANTOM, phantom),
        _leak("same-scan-under-two-names", "T82", _copied, "VMF260", copied),
        _leak("same-scan-packed-again", "T82", _packed_again, "VMF260", copied),
        _leak("subject-in-two-domains", "T81", _two_domains, "VMF284", r"\bA\b.*\bB\b|(two|one) domains?"),
    ]  # fmt: skip
