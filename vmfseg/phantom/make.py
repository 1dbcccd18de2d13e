# SPDX-License-Identifier: Apache-2.0
"""Make a phantom data set: subjects in parallel, the folder in one step."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from vmfseg import __version__
from vmfseg.phantom.heart_scene import Convention
from vmfseg.phantom.release_layout import write_csv, write_subject, write_tissues
from vmfseg.phantom.subjects import write_drawn_subject, write_drawn_table
from vmfseg.phantom.vendors import CORD_SITES, HEART_CENTERS
from vmfseg.utils import VmfError, check_choice, read_json, write_json
from vmfseg.utils.locks import locked_folder

__all__ = ["GENERATORS", "PHANTOM_FILE", "PhantomDefaults", "make_phantom"]

#: The file that says what a phantom holds; it is there if and only if the phantom is complete.
PHANTOM_FILE = "phantom.json"
_FORMAT = "vmfseg-phantom-1"
#: Of each phantom, raised whenever the same parameters give other voxels.
GENERATORS = {"mnms": 1, "scgm": 1, "hearts": 2, "cords": 1}
_MAX_CORDS = 80


@dataclass(frozen=True)
class PhantomDefaults:
    """The scale of a phantom if nothing else is asked for.

    Args:
        subjects: number of subjects, spread over the vendors (hearts) or sites (cords) in turn.
        frames: frames of a cine; clinical ones have 25 to 30.
        size: largest in-plane matrix; ``None`` keeps the protocol's own.
        workers: processes.
    """

    subjects: int = 24
    frames: int = 8
    size: int | None = None
    workers: int = 2


_DEFAULTS = PhantomDefaults()


def make_phantom(
    out: str | os.PathLike[str],
    dataset: str = "mnms",
    subjects: int = _DEFAULTS.subjects,
    seed: int = 0,
    size: int | None = _DEFAULTS.size,
    frames: int = _DEFAULTS.frames,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    workers: int = _DEFAULTS.workers,
    papillary: Convention = "cavity",
) -> Path:
    """Make a multi-vendor phantom in the layout of the real release, or drawn subjects with a table.

    A subject depends on ``seed``, its number, ``size`` and ``frames`` and on nothing else: subject 17 is the same in
    a phantom of 20 and of 200. The folder appears when it is complete; a complete phantom with the same parameters is
    kept as it is.

    Args:
        out: the folder to make.
        dataset: ``"mnms"`` for beating hearts, ``"scgm"`` for spinal cords, in the layout of the release. ``"hearts"``
            and ``"cords"``: subjects of :func:`~vmfseg.phantom.draw_subject`, each on a scanner of its own, and a table
            ``datalist.csv`` in which every second one is for validation.
        subjects: number of subjects; at most 80 cords, the size of the real release.
        seed: seed of the phantom.
        size: largest in-plane matrix. A scanner with a finer one covers the same field of view with ``size`` voxels.
        frames: frames of a cine (hearts only).
        overwrite: replace another phantom. A folder that is no phantom is never replaced.
        progress: called as ``progress(done, subjects)`` after every subject.
        workers: processes; the result does not depend on it.
        papillary: of drawn hearts: papillary muscles and trabeculae belong to the ``"cavity"`` or the ``"wall"``.

    Returns:
        The folder.

    Raises:
        ValueError: if an argument is out of range.
        VmfError: VMF503 if ``out`` holds something else, VMF501 or VMF502 if it cannot be written.

    Example:
        >>> import tempfile
        >>> folder = make_phantom(tempfile.mkdtemp() + "/cords", "scgm", subjects=1, size=50, workers=1)
        >>> sorted(p.name for p in (folder / "train").iterdir())[:2]
        ['site1-sc01-image.nii.gz', 'site1-sc01-levels.txt']
    """
    check_choice("dataset", dataset, tuple(GENERATORS))
    check_choice("papillary", papillary, ("cavity", "wall") if dataset == "hearts" else ("cavity",))
    most = _MAX_CORDS if dataset == "scgm" else 10_000
    _check_range("subjects", subjects, 1, most, "The real release is smaller still.")
    _check_range("frames", frames, 2, 60, "A beat needs at least end-diastole and end-systole.")
    _check_range("workers", workers, 1, 256, "Use the number of cores.")
    if size is not None:
        _check_range("size", size, 32, 4096, "Leave it out for the protocols' own matrices.")
    drawn = dataset in ("hearts", "cords")
    parameters = {
        "format": _FORMAT, "generator": GENERATORS[dataset], "dataset": dataset, "subjects": subjects,
        "seed": int(seed), "size": None if drawn else size, "frames": frames if dataset == "mnms" else None,
        **({} if papillary == "cavity" else {"papillary": papillary}),
    }  # fmt: skip
    target = Path(out)
    if _is_there(target, parameters, overwrite):
        return target
    with _new_folder(target, parameters) as folder:
        write: Callable[..., dict[str, Any]] = write_drawn_subject if drawn else write_subject
        extra = (papillary,) if drawn else (frames, size)
        jobs = [(folder, dataset, index, int(seed), *extra) for index in range(subjects)]
        rows = []
        for row in _run(write, jobs, min(workers, subjects)):
            rows.append(row)
            if progress is not None:
                progress(len(rows), subjects)
        rows.sort(key=lambda row: int(row["index"]))
        if dataset == "mnms":
            for name in ("Training/Labeled", "Training/Unlabeled", "Validation", "Testing"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            write_csv(folder, rows)
        summary = {**parameters, "vmfseg": __version__, "rows": rows}
        if drawn:
            write_drawn_table(folder, dataset, rows)
        else:
            write_tissues(folder)
            protocols = HEART_CENTERS if dataset == "mnms" else CORD_SITES
            summary["protocols"] = [asdict(protocol) for protocol in protocols]
        write_json(folder / PHANTOM_FILE, summary)
    return target


def _check_range(name: str, value: int, low: int, high: int, cure: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r}. {cure}")


def _run(write: Callable[..., dict[str, Any]], jobs: list[tuple[Any, ...]], workers: int) -> Iterator[dict[str, Any]]:
    if workers == 1:
        for job in jobs:
            yield write(*job)
        return
    # forked workers need not import anything again; elsewhere they start from scratch
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    # one thread each: BLAS threads of several workers get in each other's way
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        futures = [pool.submit(write, *job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker() -> None:
    """Take one thread, and leave Ctrl-C to the parent, which ends its workers; a worker alone ends by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threadpool_limits(1)


def _is_there(target: Path, parameters: dict[str, Any], overwrite: bool) -> bool:
    """Say whether ``target`` holds this very phantom; refuse it if it holds anything that may not be replaced."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    known = _read_summary(target)
    if known is None:
        raise VmfError(
            "VMF503",
            subject=str(target),
            rule="the output exists and is no phantom, so it is not replaced",
            fix="choose another output folder",
        )
    differing = [key for key, value in parameters.items() if known.get(key) != value]
    missing = [] if differing else [name for name, size in _files(known) if not _has_size(target / name, size)]
    if not differing and not missing:
        return True
    if overwrite:
        return False
    found = (
        ", ".join(f"{key} {known.get(key)} instead of {parameters[key]}" for key in differing)
        or f"{len(missing)} files missing or changed, first {missing[0]}"
    )
    raise VmfError(
        "VMF503",
        subject=str(target),
        rule="another phantom is there" if differing else "the phantom there is damaged",
        found=found,
        fix="pass --overwrite (overwrite=True) or choose another output folder",
    )


def _read_summary(target: Path) -> dict[str, Any] | None:
    with suppress(VmfError):
        summary = read_json(target / PHANTOM_FILE)
        if isinstance(summary, dict) and summary.get("format") == _FORMAT:
            return summary
    return None


def _files(summary: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for row in summary.get("rows", []):
        yield from row.get("files", {}).items()


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _remove_partial(target: Path) -> None:
    """Remove what processes left that were killed while they made this phantom; those alive hold their folder."""
    found = target.parent.iterdir() if target.parent.is_dir() else ()
    for folder in [path for path in found if path.name.startswith(f".{target.name}.partial-")]:
        with suppress(VmfError), locked_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _new_folder(target: Path, parameters: dict[str, Any]) -> Iterator[Path]:
    """Yield a folder beside ``target`` that takes its place when the block ends well, and vanishes otherwise."""
    mark = uuid.uuid4().hex[:8]
    folder, old = (target.parent / f".{target.name}.{word}-{mark}" for word in ("partial", "old"))
    try:
        _remove_partial(target)
        folder.mkdir(parents=True)
        with locked_folder(folder):
            yield folder
        if target.exists():
            os.rename(target, old)
        os.rename(folder, target)
    except OSError as error:
        if old.exists() and not target.exists():
            os.rename(old, target)
        if target.exists() and _is_there(target, parameters, overwrite=False):
            return  # another process made the same phantom meanwhile
        raise VmfError(
            "VMF502",
            subject=str(target),
            rule="the output folder cannot be made; what was there is unchanged",
            found=error.strerror or type(error).__name__,
            fix="check the permissions or choose another output folder",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
