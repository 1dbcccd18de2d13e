# SPDX-License-Identifier: Apache-2.0
"""``/vmfseg/``: which kernels explain a scan. Routes of our own; the page uses them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile

from vmfseg.serving.answers import encode_map
from vmfseg.serving.models import ServedModel, find_model
from vmfseg.serving.names import parse_object
from vmfseg.serving.routes.infer import ImageInput, Shared, find_input, public_refusals
from vmfseg.serving.service import Service

__all__ = ["router"]

router = APIRouter(prefix="/vmfseg", tags=["explanation"])

NOTE = (
    "The tissue of a kernel is the class in whose predicted mask most of its activation lies in this very scan. "
    "It says what the network uses the kernel for, not whether that is right."
)


@router.get("/models", summary="Classes, colors and kernels of every model")
def models(service: Shared) -> dict[str, Any]:
    """Return what a viewer needs before it runs a model."""
    return {
        name: {
            **model.describe(),
            "classes": model.classes(),
            "kernels": int(model.predictor.spec.network.get("num_kernels", 12)),
            "has_quality": model.predictor.quality is not None,
        }
        for name, model in service.models.items()
    }


@router.post("/explain/{model}", summary="Segment one frame and keep the maps of all kernels")
async def explain(
    request: Request,
    service: Shared,
    model: str,
    image: Annotated[str, Query(description="id of a listed image")] = "",
    session_id: Annotated[str, Query(description="a session with an uploaded image")] = "",
    frame: Annotated[int, Query(description="of a cine, counted from 0")] = 0,
    params: Annotated[str, Form(description="JSON object, as for /infer/")] = "{}",
    file: Annotated[UploadFile | None, File(description="the image itself, instead of an id")] = None,
) -> dict[str, Any]:
    """Return classes, quality, shift and what every kernel stands for; ``id`` fetches the maps."""
    chosen, wanted = find_model(service.models, model), parse_object("params", params)
    with service.workspace.folder() as folder:
        source = await find_input(service, image, session_id, file, folder)

        def work() -> dict[str, Any]:
            with public_refusals(service, source):
                return _explain(service, chosen, source, wanted, frame)

        return await service.worker.run(work, request.is_disconnected)


def _explain(
    service: Service, model: ServedModel, source: ImageInput, params: dict[str, Any], frame: int
) -> dict[str, Any]:
    answer = model.answer(source.path, source.name, params, frame=frame, activations=True)
    prediction = answer.prediction
    maps = prediction.activations
    if maps is None:
        raise ValueError("activations must be kept to explain a scan, got none.")
    facts = {
        "model": model.name,
        "image": source.name,
        "frame": frame,
        "frames": answer.frames,
        "seconds": round(answer.seconds, 3),
        "classes": model.classes(),
        "quality": prediction.quality,
        "shift": prediction.quality["shift"],
        "note": NOTE,
    }
    return service.explanations.add(prediction.scan, prediction.labels, maps, facts).facts


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
