# SPDX-License-Identifier: Apache-2.0
"""Package a bundle: as a container recipe that is built without a network, or with the code that its configs name."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

from vmfseg import __version__
from vmfseg.bundle.check import inspect_bundle
from vmfseg.model.artifact import MODEL_FILES, Model, find_bundle
from vmfseg.utils import atomic_write, read_json, sha256_file, write_json
from vmfseg.utils.io import StrPath, copy_file, refuse_existing

__all__ = ["package_bundle", "vendor_bundle"]

#: What is copied of ``models``: calibration slices are pixels of patients and stay at home.
_MODEL = (*MODEL_FILES, "quality.json", "shift.json")
#: Parts of the package that no config names, and what Python leaves behind.
_LEFT_OUT = ("cli", "serving", "__pycache__")
#: What a place that runs bundles has, or what only the left-out parts need.
_GIVEN = ("monai", "torch", "numpy", "typer")
_SERVE = ("fastapi", "uvicorn", "python-multipart")


def package_bundle(
    bundle: StrPath, folder: StrPath, wheel: StrPath | None = None, *, serve: bool = False, overwrite: bool = False
) -> list[Path]:
    """Write the folder from which a container is built.

    It holds a ``Dockerfile``, a ``README.md`` with the commands, ``requirements.txt`` with the versions that are
    installed here, ``wheels`` with the wheel of vmfseg, ``bundle/NAME`` with configs and model, and ``SHA256SUMS`` of
    all files. Slices of patients that a training keeps for int8 exports are not copied.

    Args:
        bundle: a trained bundle: folder or name below ``bundles``.
        folder: where to write.
        wheel: of this version of vmfseg; default the one in ``dist``.
        serve: let the container serve the MONAI Label REST API instead of segmenting a folder.
        overwrite: replace files that are there.

    Returns:
        The files.

    Raises:
        ValueError: if there is no wheel of this version.
        VmfError: VMF335 without a model, VMF410 to VMF420 for a bundle that is not to be trusted, VMF503 if the output
            exists.
    """
    root, target = find_bundle(bundle), Path(folder)
    model = Model.load(root)
    for finding in inspect_bundle(root):
        raise finding
    source = _find_wheel(wheel)
    refuse_existing([target], overwrite)
    name = re.sub(r"[^a-z0-9_]+", "_", (model.name or root.name).lower())
    written = [_copy(source, target / "wheels" / source.name)]
    written += [
        _copy(file, target / "bundle" / name / file.relative_to(root)) for file in _files(root, model.weights.parent)
    ]
    extra = "[serve]" if serve else ""
    fields = {
        "NAME": name,
        "VERSION": __version__,
        "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
        "WHEEL": source.name,
        "COMMAND": _command(name, serve),
        "RUN": _run(name, serve),
        "LABELS": ", ".join(f"{value} {label}" for value, label in model.labels.items()),
    }
    texts = {"Dockerfile": "Dockerfile.txt", "README.md": "README.txt", ".dockerignore": "dockerignore.txt"}
    for file, layer in texts.items():
        text = (resources.files("vmfseg.bundle") / "container" / layer).read_text(encoding="utf-8")
        for key, value in fields.items():
            text = text.replace(f"{{{key}}}", value)
        written.append(_write(target / file, text))
    lines = [f"vmfseg{extra}=={__version__}", *_pinned(_SERVE if serve else ())]
    written.append(_write(target / "requirements.txt", "\n".join(lines) + "\n"))
    sums = [f"{sha256_file(path)}  {path.relative_to(target).as_posix()}" for path in sorted(written)]
    return [*written, _write(target / "SHA256SUMS", "\n".join(sums) + "\n")]


def vendor_bundle(bundle: StrPath, output: StrPath, *, overwrite: bool = False) -> Path:
    """Copy a bundle together with the package that its configs name, so that it runs where vmfseg is not installed.

    The package lies in the bundle's own folder, which MONAI puts on the import path when it runs a config; so the
    configs stay as they are. ``metadata.json`` no longer asks for vmfseg, only for what vmfseg itself needs. Runs,
    predictions and calibration slices are not copied.

    Args:
        bundle: its folder, or the name of a bundle.
        output: folder that will hold the bundle's folder.
        overwrite: write into a folder that exists already.

    Returns:
        The new folder.

    Raises:
        VmfError: VMF330 no such bundle, VMF503 the folder exists, VMF501 and VMF502 if it cannot be written.
    """
    root = find_bundle(bundle).resolve()
    target = Path(output).expanduser() / root.name
    refuse_existing([target], overwrite and target.resolve() != root)
    for file in _files(root, root / "models"):
        copy_file(file, target / file.relative_to(root))
    note = target / "configs" / "metadata.json"
    described = read_json(note)
    needed = _needed().items()
    described["required_packages_version"] = {name: version for name, version in needed if name.lower() not in _GIVEN}
    write_json(note, described)
    package = Path(str(resources.files("vmfseg")))
    for file in sorted(path for path in package.rglob("*") if path.is_file()):
        inner = file.relative_to(package)
        if not set(inner.parts) & set(_LEFT_OUT):
            copy_file(file, target / "vmfseg" / inner)
    return target


def _find_wheel(wheel: StrPath | None) -> Path:
    found = sorted(Path("dist").glob(f"vmfseg-{__version__}-*.whl")) if wheel is None else [Path(wheel).expanduser()]
    path = found[-1] if found else None
    if path is None or not path.name.startswith(f"vmfseg-{__version__}-") or not zipfile.is_zipfile(path):
        raise ValueError(
            f"--wheel must be a wheel of vmfseg {__version__}, got {path or 'nothing'}. "
            "Make one in a copy of the repository: pip wheel --no-deps -w dist ."
        )
    return path


def _files(root: Path, models: Path) -> Iterator[Path]:
    """Yield what of a bundle goes along: configs, texts and the model."""
    for part in ("configs", "docs"):
        yield from sorted(path for path in (root / part).rglob("*") if path.is_file())
    yield from (path for path in (root / "LICENSE", *(models / name for name in _MODEL)) if path.is_file())


def _needed() -> dict[str, str]:
    """Return what vmfseg needs, in the versions that are installed here."""
    lines = [line for line in metadata.requires("vmfseg") or () if "extra ==" not in line]
    names = [match[0] for line in lines if (match := re.match(r"[\w.-]+", line))]
    return {name: metadata.version(name) for name in names}


def _pinned(more: tuple[str, ...]) -> list[str]:
    """Return the versions that are installed here, so that the container is what was tested."""
    versions = {**_needed(), **{name: metadata.version(name) for name in more}}
    return sorted(f"{name}=={version.partition('+')[0]}" for name, version in versions.items())


def _command(name: str, serve: bool) -> str:
    if serve:
        words = ["serve", f"/opt/bundle/{name}", "--studies", "/data", "--host", "0.0.0.0"]  # noqa: S104 - a container
    else:
        words = ["segment", f"/opt/bundle/{name}", "/data/input", "-o", "/data/output"]
    return ", ".join(f'"{word}"' for word in words)


def _run(name: str, serve: bool) -> str:
    if serve:
        return f'docker run --rm -p 8000:8000 -e VMFSEG_TOKEN="$TOKEN" -v "$PWD/studies:/data" {name}'
    mounts = '-v "$PWD/scans:/data/input:ro" -v "$PWD/labels:/data/output"'
    return f"docker run --rm --network none {mounts} {name}"


def _copy(source: Path, target: Path) -> Path:
    copy_file(source, target)
    return target


def _write(path: Path, text: str) -> Path:
    atomic_write(path, text)
    return path
