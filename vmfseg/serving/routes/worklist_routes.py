# SPDX-License-Identifier: Apache-2.0
"""``/vmfseg/worklist/``: the images sorted by flag and predicted Dice."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from vmfseg.serving.routes.infer import Shared
from vmfseg.serving.served_models import find_model
from vmfseg.serving.worklist import score_next, work_list

__all__ = ["router"]

router = APIRouter(prefix="/vmfseg/worklist", tags=["work list"])


@router.get("/{model}", summary="Images in the order in which to look at them")
def listing(service: Shared, model: str) -> list[dict[str, Any]]:
    """Return every image with flag, predicted Dice and whether it has a finished label.

    Images without a finished label come first, the worst on top. ``flag`` is null where an image was not scored yet.
    """
    return work_list(service.labels, find_model(service.models, model))


@router.post("/{model}", summary="Score the next image")
async def score(request: Request, service: Shared, model: str) -> dict[str, Any]:
    """Segment one image that has no score yet; return its id, or null if there is none, and the list."""
    chosen = find_model(service.models, model)

    def work() -> dict[str, Any]:
        scored = score_next(service.labels, chosen)
        return {"scored": scored, "cases": work_list(service.labels, chosen)}

    return await service.worker.run(work, request.is_disconnected)
