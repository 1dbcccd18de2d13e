# SPDX-License-Identifier: Apache-2.0
"""``/datastore/`` and ``/session/``: images, labels and uploaded images."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from fastapi.responses import FileResponse

from vmfseg.data.reader import read_volume
from vmfseg.model.scan import Scan
from vmfseg.serving.answers import encode_map
from vmfseg.serving.label_store import FINAL
from vmfseg.serving.names import check_plain, parse_object, safe_stem
from vmfseg.serving.routes.infer import ImageInput, Shared, public_refusals, status
from vmfseg.serving.service import Service
from vmfseg.serving.workspace import keep_upload
from vmfseg.utils import VmfError, sha256_file

__all__ = ["router", "sessions"]

router = APIRouter(prefix="/datastore", tags=["datastore"])
sessions = APIRouter(prefix="/session", tags=["session"])

_BINARY = "application/octet-stream"
Image = Annotated[str, Query(description="id of an image")]
Tag = Annotated[str, Query(description="final, original, or another plain name")]
Info = Annotated[str, Form(description="JSON object to remember")]


class Listing(str, Enum):
    """What of the datastore is listed."""

    train = "train"
    stats = "stats"
    all = "all"


@router.get("/", summary="List images and labels", response_model=None)
def listing(service: Shared, output: Listing | None = None) -> dict[str, Any] | list[dict[str, str]]:
    """Return counts (``stats``), everything (``all``), or pairs of image and finished label (``train``)."""
    if output is Listing.all:
        return {
            "name": "studies",
            "description": "",
            "images_dir": ".",
            "labels_dir": "labels",
            "objects": _present(service, _entry),
        }
    if output is Listing.train:
        return [pair for pair in _present(service, _pair).values() if pair]
    return status(service)


def _present(service: Service, describe: Callable[[Service, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Describe all images but those that are removed meanwhile, by another client or in the folder."""
    found = {}
    for image in service.studies.ids():
        try:
            found[image] = describe(service, image)
        except VmfError as error:
            if error.code not in ("VMF181", "VMF182"):  # no such image, no such label
                raise
    return found


def _pair(service: Service, image: str) -> dict[str, str]:
    label, root = service.labels.of_image(image).get(FINAL), service.studies.root
    if label is None:
        return {}
    path = service.studies.get(image).path
    return {"image": path.relative_to(root).as_posix(), "label": label.path.relative_to(root).as_posix()}


def _entry(service: Service, image: str) -> dict[str, Any]:
    labels = service.labels.of_image(image)
    return {
        "image": {"ext": service.studies.get(image).suffix, "info": service.studies.info(image)},
        "labels": {
            tag: {"ext": label.suffix, "info": service.labels.info(image, tag)} for tag, label in labels.items()
        },
    }


@router.put("/", summary="Add an image", include_in_schema=False)
@router.put("/image", summary="Add an image")
def add_image(
    service: Shared,
    file: Annotated[UploadFile, File(description="the image")],
    image: Annotated[str | None, Query(description="id for it; default its file name")] = None,
    params: Info = "{}",
) -> dict[str, str]:
    """Check an image and add it to the folder of studies. An image that is there is never replaced."""
    info = parse_object("params", params)
    name = check_plain("image", image) if image else None
    with service.workspace.folder() as folder:
        upload = keep_upload("image", file.filename, file.file, folder)
        with public_refusals(service, ImageInput(upload.path, upload.name)):
            read_volume(upload.path)
        exact = name is not None
        return {"image": service.studies.add(name or upload.stem, upload.suffix, upload.path, info, exact=exact)}


@router.delete("/", summary="Remove an image", include_in_schema=False)
@router.delete("/image", summary="Remove an image that was uploaded here")
def remove_image(service: Shared, id: Image) -> dict[str, Any]:  # noqa: A002 - MONAI Label's name of the parameter
    """Take an uploaded image and its labels out of the datastore; the files are kept in ``.vmfseg``."""
    study = service.studies.get(id)
    tags = list(service.labels.of_image(study.id))
    service.studies.remove(study.id) if not tags else _remove_with_labels(service, study.id, tags)
    return {}


def _remove_with_labels(service: Service, image: str, tags: list[str]) -> None:
    if service.studies.info(image).get("uploaded"):
        for tag in tags:
            service.labels.remove(image, tag)
    service.studies.remove(image)


@router.head("/image", summary="Check whether an image is there")
def check_image(service: Shared, image: Image, check_sum: str | None = None) -> Response:
    """Answer 200 or 404; with ``check_sum`` (SHA256, or SHA256:...) the content must agree too."""
    study = service.studies.get(image)
    if check_sum:
        kind, _, digest = check_sum.rpartition(":")
        same = study.path.is_file() and kind.upper() in ("", "SHA256") and sha256_file(study.path) == digest.lower()
        if not same:
            raise VmfError("VMF181", subject=image, rule="there is no image with this checksum", fix="upload it")
    return Response()


@router.get("/image", summary="Download an image", response_class=FileResponse)
def get_image(service: Shared, image: Image) -> Response:
    """Return the file; of a DICOM series, a NIfTI file made from it."""
    study = service.studies.get(image)
    if study.path.is_file():
        name = f"{safe_stem(study.id.removesuffix(study.suffix))}{study.suffix}"
        return FileResponse(study.path, media_type=_BINARY, filename=name)
    with public_refusals(service, ImageInput(study.path, study.id)):
        scan = Scan.open(study.path)
        frames = np.stack([scan.frame(number)[0].numpy() for number in range(scan.num_frames)], axis=-1)
        content = encode_map(scan, frames.reshape(scan.shape), ".nii.gz", "float32")
    return _attachment(content, f"{safe_stem(study.id)}.nii.gz")


@router.get("/image/info", summary="What is known about an image")
def image_info(service: Shared, image: Image) -> dict[str, Any]:
    """Return file name, time and what clients added."""
    return service.studies.info(image)


@router.put("/image/info", summary="Remember something about an image")
def put_image_info(service: Shared, image: Image, info: Info = "{}") -> dict[str, Any]:
    """Add the given keys; ``uploaded``, ``labels`` and ``name`` are the server's own."""
    study = service.studies.get(image)
    own = ("uploaded", "labels", "name", "quality")
    added = {key: value for key, value in parse_object("info", info).items() if key not in own}
    return service.studies.update_info(study.id, added)


@router.put("/label", summary="Save a label")
def save_label(
    service: Shared,
    image: Image,
    label: Annotated[UploadFile, File(description="the label map, on the grid of the image")],
    tag: Tag = FINAL,
    params: Info = "{}",
) -> dict[str, str]:
    """Check a label and save it. An earlier one of the same tag is kept as a version.

    A label of one frame of a cine needs ``frame`` in ``params`` (counted from 0); the frames saved before stay.
    """
    info = parse_object("params", params)
    study, name = service.studies.get(image), check_plain("tag", tag or FINAL)
    with service.workspace.folder() as folder:
        upload = keep_upload("label", label.filename, label.file, folder)
        with public_refusals(service, ImageInput(upload.path, upload.name)):
            saved = service.labels.save(study.id, name, upload.path, upload.suffix, info)
    return {"image": study.id, "label": saved.image}


@router.delete("/label", summary="Remove a label")
def remove_label(service: Shared, id: Image, tag: Tag) -> dict[str, Any]:  # noqa: A002 - MONAI Label's name
    """Take a label out of the datastore; the file is kept in ``.vmfseg``."""
    service.labels.remove(id, tag)
    return {}


@router.head("/label", summary="Check whether a label is there")
def check_label(service: Shared, image: Image, tag: Tag) -> Response:
    """Answer 200 or 404."""
    service.labels.get(image, tag)
    return Response()


@router.get("/label", summary="Download a label", response_class=FileResponse)
def get_label(service: Shared, label: Image, tag: Tag = FINAL) -> Response:
    """Return the newest label of an image and tag."""
    found = service.labels.get(label, tag)
    name = f"{safe_stem(found.image)}{found.suffix}"
    return FileResponse(found.path, media_type=_BINARY, filename=name)


@router.get("/label/info", summary="What is known about a label")
def label_info(service: Shared, label: Image, tag: Tag = FINAL) -> dict[str, Any]:
    """Return file name, time, version and what clients added."""
    return service.labels.info(label, tag)


@router.put("/label/info", summary="Remember something about a label")
def put_label_info(service: Shared, label: Image, tag: Tag = FINAL, info: Info = "{}") -> dict[str, Any]:
    """Add the given keys; ``version`` and ``name`` are the server's own."""
    added = {key: value for key, value in parse_object("info", info).items() if key not in ("version", "name")}
    return service.labels.update_info(label, tag, added)


@router.put("/updatelabelinfo", include_in_schema=False)
def update_label_info(service: Shared, label: Image, tag: Tag = FINAL, params: Info = "{}") -> dict[str, Any]:
    """The older name of the same."""
    return put_label_info(service, label, tag, params)


@sessions.put("/", summary="Keep an image for several requests")
def create_session(
    service: Shared,
    files: Annotated[list[UploadFile], File(description="one image, or all files of a DICOM series")],
    expiry: Annotated[int, Query(description="seconds without use; 0 for the server's own limit")] = 0,
    uncompress: Annotated[bool, Query(description="not offered: send the files themselves")] = False,
) -> dict[str, Any]:
    """Return the id of a new session."""
    if uncompress:
        fix = "send the files of the series themselves"
        raise VmfError("VMF197", subject="uncompress", rule="archives are not unpacked", fix=fix)
    session = service.sessions.add([(file.filename, file.file) for file in files], expiry)
    return {"session_id": session.id, "session_info": session.describe()}


@sessions.get("/{session_id}", summary="Get a session, or its image", response_model=None)
def get_session(
    service: Shared, session_id: str, update_ts: bool = False, image: bool = False
) -> Response | dict[str, Any]:
    """Return what is known about a session; with ``image`` the file itself."""
    session = service.sessions.get(session_id, touch=update_ts)
    if not image:
        return session.describe()
    if session.image.is_dir():
        raise VmfError("VMF197", subject="image", rule="a series is not sent back", fix="you have its files")
    return FileResponse(session.image, media_type=_BINARY, filename=safe_stem(session.name))


@sessions.delete("/{session_id}", summary="End a session")
def end_session(service: Shared, session_id: str) -> dict[str, Any]:
    """Remove a session and its image."""
    return service.sessions.remove(session_id).describe()


def _attachment(content: bytes, name: str) -> Response:
    return Response(content, media_type=_BINARY, headers={"Content-Disposition": f'attachment; filename="{name}"'})
