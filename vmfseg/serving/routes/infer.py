# SPDX-License-Identifier: Apache-2.0
"""``/info/`` and ``/infer/``: models, and segmentation of a listed or uploaded image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from vmfseg import __version__
from vmfseg.serving.answers import encode_map, multipart, result_name
from vmfseg.serving.http_errors import Refusal, public_error
from vmfseg.serving.label_store import ORIGINAL
from vmfseg.serving.names import check_plain, parse_object
from vmfseg.serving.served_models import ServedModel, find_model
from vmfseg.serving.service import Service, service_of
from vmfseg.serving.store_training import OPTIONS
from vmfseg.serving.strategies import STRATEGIES
from vmfseg.serving.workspace import keep_upload
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error

__all__ = ["ImageInput", "find_input", "public_refusals", "router"]

router = APIRouter(tags=["inference"])

Shared = Annotated[Service, Depends(service_of)]


class Output(str, Enum):
    """What an answer holds."""

    image = "image"
    json = "json"
    all = "all"
    dicom_seg = "dicom_seg"


@dataclass(frozen=True)
class ImageInput:
    """An image of a request.

    Attributes:
        path: where it lies.
        name: what the client calls it.
        image: its id, if it is one of the studies.
    """

    path: Path
    name: str
    image: str = ""


@router.get("/info/", summary="Models, labels, strategies and the state of the datastore")
def info(service: Shared) -> dict[str, Any]:
    """Return what clients show when they connect."""
    models = {name: model.describe() for name, model in service.models.items()}
    labels = dict.fromkeys(label for model in service.models.values() for label in model.labels)
    trainers = {
        name: {"description": "train on the labels of the datastore", "config": {"pretrained": True, "val_split": 0.2}}
        for name in models
    }
    for trainer in trainers.values():
        trainer["options"] = sorted(OPTIONS)
    return {
        "name": "vmfseg",
        "description": "MONAI Label-compatible server of vmfseg",
        "version": __version__,
        "labels": list(labels),
        "models": models,
        "trainers": trainers,
        "strategies": STRATEGIES,
        "scoring": {},
        "train_stats": service.training.stats,
        "datastore": status(service),
    }


def status(service: Service) -> dict[str, Any]:
    """Return how many images there are and how many are labelled, by tag."""
    tags: dict[str, int] = {}
    images = service.studies.ids()
    for image in images:
        for tag in service.labels.of_image(image):
            tags[tag] = tags.get(tag, 0) + 1
    return {"total": len(images), "completed": tags.get("final", 0), "label_tags": tags}


@router.post("/infer/{model}", summary="Segment an image", response_class=Response)
async def infer(
    request: Request,
    service: Shared,
    model: str,
    image: Annotated[str, Query(description="id of a listed image")] = "",
    session_id: Annotated[str, Query(description="a session with an uploaded image")] = "",
    output: Annotated[Output | None, Query(description="all (default), image, or json")] = None,
    params: Annotated[
        str,
        Form(
            description="JSON object: result_extension (.nii.gz, .nii, .nrrd), result_dtype (uint8), frames (of a"
            " cine), save_label (keep the result in the datastore), label_tag (original), nan_to"
        ),
    ] = "{}",
    file: Annotated[UploadFile | None, File(description="the image itself, instead of an id")] = None,
    label: Annotated[UploadFile | None, File(description="not used by these models")] = None,
) -> Response:
    """Segment an image that is listed, kept in a session, or sent along.

    The label map has the grid of the image. ``params`` of the answer name the classes, and say how far to trust the
    result (``quality``) and whether the scanner is new to the model (``quality.shift``).
    """
    chosen, wanted = find_model(service.models, model), parse_object("params", params)
    if output is Output.dicom_seg:
        fix = "use output=image and convert, or open the result in 3D Slicer"
        raise VmfError("VMF197", subject="output", rule="DICOM SEG is not offered", fix=fix)
    with service.workspace.folder() as folder:
        source = await find_input(service, image, session_id, file, folder)

        def work() -> Response:
            with public_refusals(service, source):
                return _answer(service, chosen, source, wanted, output or Output.all, folder)

        return await service.worker.run(work, request.is_disconnected)


async def find_input(
    service: Service, image: str, session_id: str, file: UploadFile | None, folder: Path
) -> ImageInput:
    """Return the image that a request is about; an upload is put into ``folder``.

    Raises:
        VmfError: VMF181, VMF183, VMF184, VMF185, VMF205.
    """
    if file is not None:
        upload = await run_in_threadpool(keep_upload, "image", file.filename, file.file, folder)
        return ImageInput(upload.path, upload.name)
    if session_id:
        session = service.sessions.get(session_id)
        return ImageInput(session.image, session.name)
    if image:
        study = await run_in_threadpool(service.studies.get, image)
        return ImageInput(study.path, study.id, study.id)
    raise VmfError(
        "VMF185", subject="image", rule="an image is needed", found="no image, session_id or file", fix="send one"
    )


class public_refusals:  # noqa: N801 - used like a function
    """Context in which errors name an image as the client does."""

    def __init__(self, service: Service, source: ImageInput) -> None:
        self.service, self.source = service, source

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        found = None if error is None or isinstance(error, Refusal) else find_vmf_error(error)
        if found is not None:
            names = {str(self.source.path): self.source.name, self.source.path.name: Path(self.source.name).name}
            raise Refusal(public_error(found, self.service.roots, names)) from error


def _answer(
    service: Service, model: ServedModel, source: ImageInput, params: dict[str, Any], output: Output, folder: Path
) -> Response:
    extension = str(params.get("result_extension") or ".nii.gz")
    extension = extension if extension.startswith(".") else f".{extension}"
    dtype = str(params.get("result_dtype") or "uint8")
    answer = model.answer(source.path, source.name, params)
    prediction = answer.prediction
    told: dict[str, Any] = {
        "label_names": model.labels,
        "latencies": {"total": round(answer.seconds, 3)},
        "model": model.name,
        "quality": prediction.quality,
    }
    saves = bool(params.get("save_label")) and bool(source.image)
    if output is Output.json and not saves:
        return JSONResponse(told)
    content = encode_map(prediction.scan, prediction.labels, extension, dtype)
    if saves:
        tag = check_plain("label_tag", str(params.get("label_tag") or ORIGINAL))
        place = folder / f"label{extension}"
        place.write_bytes(content)
        light = prediction.quality["light"]
        service.labels.save(source.image, tag, place, extension, {"model": model.name, "light": light})
        told["label"], told["tag"] = source.image, tag
    if output is Output.json:
        return JSONResponse(told)
    filename = result_name(source.name, extension)
    if output is Output.image:
        headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)
    body, kind = multipart(told, content, filename)
    return Response(body, media_type=kind)
