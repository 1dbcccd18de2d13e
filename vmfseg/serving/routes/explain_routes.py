# SPDX-License-Identifier: Apache-2.0
"""``/vmfseg/``: results with kernel maps for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile

from vmfseg.model.foreground_box import foreground_box
from vmfseg.serving.answers import encode_map
from vmfseg.serving.names import parse_object
from vmfseg.serving.routes.infer import ImageInput, Shared, find_input, public_refusals
from vmfseg.serving.served_models import ServedModel, find_model
from vmfseg.serving.service import Service
from vmfseg.serving.worklist import remember, summarize
from vmfseg.visualize.kernel_maps import no_kernels

__all__ = ["router"]

router = APIRouter(prefix="/vmfseg", tags=["explanation"])

NOTE = (
    "The tissue of a kernel is the class in whose predicted mask most of its activation lies in this very scan. "
    "It says what the network uses the kernel for, not whether that is right."
)


@dataclass(frozen=True)
class FrameInput:
    """One frame of an image that a request names or sends.

    Attributes:
        image: id of a listed image.
        session_id: of an uploaded one.
        frame: counted from 0.
        params: as for ``/infer/``.
        file: the image itself.
    """

    image: str
    session_id: str
    frame: int
    params: dict[str, Any]
    file: UploadFile | None


def frame_input(
    image: Annotated[str, Query(description="id of a listed image")] = "",
    session_id: Annotated[str, Query(description="a session with an uploaded image")] = "",
    frame: Annotated[int, Query(description="of a cine, counted from 0")] = 0,
    params: Annotated[str, Form(description="JSON object, as for /infer/")] = "{}",
    file: Annotated[UploadFile | None, File(description="the image itself, instead of an id")] = None,
) -> FrameInput:
    """Read the parameters of a request."""
    return FrameInput(image, session_id, frame, parse_object("params", params), file)


Given = Annotated[FrameInput, Depends(frame_input)]


@router.get("/models", summary="Classes, colors and kernels of every model")
def models(service: Shared) -> dict[str, Any]:
    """Return what a viewer needs before it runs a model."""
    return {
        name: {
            **model.describe(),
            "classes": model.classes(),
            "kernels": int(model.predictor.model.network.get("num_kernels", 12)) if model.predictor.has_kernels else 0,
            "has_quality": model.predictor.quality is not None,
        }
        for name, model in service.models.items()
    }


@router.post("/segment/{model}", summary="Segment one frame and keep image and mask")
async def segment(request: Request, service: Shared, model: str, given: Given) -> dict[str, Any]:
    """Return classes, quality, shift and kernels (where the network has any); ``id`` fetches the maps.

    ``box`` is the box around the largest part of the foreground, ``[first, last + 1]`` in voxels along each axis.
    """
    return await _run(request, service, find_model(service.models, model), given)


@router.post("/explain/{model}", summary="Segment one frame and keep the maps of all kernels")
async def explain(request: Request, service: Shared, model: str, given: Given) -> dict[str, Any]:
    """Return classes, quality, shift and the tissue of every kernel; ``id`` fetches the maps.

    Status 422 if the network of the model has no kernels.
    """
    chosen = find_model(service.models, model)
    if not chosen.predictor.has_kernels:
        raise no_kernels(chosen.predictor)
    return await _run(request, service, chosen, given)


async def _run(request: Request, service: Service, model: ServedModel, given: FrameInput) -> dict[str, Any]:
    with service.workspace.folder() as folder:
        source = await find_input(service, given.image, given.session_id, given.file, folder)

        def work() -> dict[str, Any]:
            with public_refusals(service, source):
                return _result(service, model, source, given)

        return await service.worker.run(work, request.is_disconnected)


def _result(service: Service, model: ServedModel, source: ImageInput, given: FrameInput) -> dict[str, Any]:
    has_kernels = model.predictor.has_kernels
    answer = model.answer(source.path, source.name, given.params, frame=given.frame, activations=has_kernels)
    prediction = answer.prediction
    facts = {
        "model": model.name,
        "image": source.name,
        "frame": given.frame,
        "frames": answer.frames,
        "seconds": round(answer.seconds, 3),
        "classes": model.classes(),
        "quality": prediction.quality,
        "shift": prediction.quality["shift"],
        "box": foreground_box(prediction.labels),
        "note": NOTE if has_kernels else "The network of this model has no vMF kernels, so there are no kernel maps.",
    }
    if source.image and answer.frames == 1:  # the score of a cine is that of its worst frame
        remember(service.labels, source.image, model, summarize(prediction.quality))
    return service.explanations.add(prediction.scan, prediction.labels, prediction.activations, facts).facts


@router.get("/result/{result}/{name}.nii.gz", summary="image, mask, or kernel-J of a result", response_class=Response)
def result_map(service: Shared, result: str, name: str) -> Response:
    """Return a map as NIfTI on the grid of the image; kernels in 0 to 255."""
    kept = service.explanations.get(result)
    values, dtype = kept.named(name)
    return Response(encode_map(kept.scan, values, ".nii.gz", dtype), media_type="application/octet-stream")


@router.get("/result/{result}/voxel", summary="Which kernels explain a voxel")
def voxel(
    service: Shared,
    result: str,
    x: Annotated[float, Query(description="mm to the right, as in NIfTI", allow_inf_nan=False)],
    y: Annotated[float, Query(description="mm to the front", allow_inf_nan=False)],
    z: Annotated[float, Query(description="mm to the head", allow_inf_nan=False)],
) -> dict[str, Any]:
    """Return class and kernels of the voxel at a place, the strongest first."""
    return service.explanations.get(result).voxel((x, y, z))
