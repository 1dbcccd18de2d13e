# SPDX-License-Identifier: Apache-2.0
"""``/activelearning/``, ``/vmfseg/worklist/`` and ``/train/``: what to label next, and training on the labels."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.concurrency import run_in_threadpool

from vmfseg.serving.routes.infer import Shared
from vmfseg.serving.served_models import find_model
from vmfseg.serving.strategies import check_strategy, next_by_chance, next_by_quality
from vmfseg.serving.worklist import score_next, work_list
from vmfseg.utils.errors import printable

__all__ = ["router", "worklist"]

router = APIRouter(tags=["learning"])
worklist = APIRouter(prefix="/vmfseg/worklist", tags=["work list"])

Params = Annotated[dict[str, Any] | None, Body(description="JSON object")]


@router.post("/activelearning/{strategy}", summary="The image to label next")
async def next_sample(request: Request, service: Shared, strategy: str, params: Params = None) -> dict[str, Any]:
    """Return an image without a finished label, or nothing if there is none.

    ``random`` takes any; ``quality`` takes the one that the model (``params.model``, default the first) expects to
    segment worst, among those scored so far.
    """
    given, name = params or {}, check_strategy(strategy)
    if name == "quality":
        model = find_model(service.models, str(given.get("model") or next(iter(service.models))))
        found = await service.worker.run(lambda: next_by_quality(service.labels, model), request.is_disconnected)
    else:
        found = await run_in_threadpool(next_by_chance, service.labels)
    if found is None:
        return {}
    image, facts = found
    return await run_in_threadpool(
        _handed_out, service, image, name, facts, printable(str(given.get("client_id") or ""))[:80]
    )


def _handed_out(service: Shared, image: str, strategy: str, facts: dict[str, Any], client: str) -> dict[str, Any]:
    study, info = service.studies.get(image), service.studies.info(image)
    shown = info.get("strategy")
    shown = shown if isinstance(shown, dict) else {}
    note = {**shown, strategy: {"ts": int(time.time()), "client_id": client}}
    info = service.studies.update_info(image, {"strategy": note})
    return {**info, "id": image, "path": study.path.name, **facts}


@router.get("/train/", summary="The training that runs, or the last one")
def train_status(
    service: Shared,
    check_if_running: Annotated[bool, Query(description="404 unless one runs now")] = False,
    all: Annotated[bool, Query(description="accepted for MONAI Label's client")] = False,  # noqa: A002
) -> dict[str, Any]:
    """Return the task with the last lines of its log."""
    return service.training.status(running_only=check_if_running)


@router.post("/train/", summary="Train the first model", include_in_schema=False)
def train_default(service: Shared, params: Params = None) -> dict[str, Any]:
    """Train the first model; options may stand below its name, as in MONAI Label."""
    name = next(iter(service.models))
    given = params or {}
    below = given.get(name)
    task = service.training.start(service.models[name], below if isinstance(below, dict) else given)
    return {name: {"result": task, "detail": ""}}


@router.post("/train/{model}", summary="Train a model on the finished labels")
def train_model(service: Shared, model: str, params: Params = None) -> dict[str, Any]:
    """Begin a training in a process of its own; its model is served as soon as it is ready."""
    return service.training.start(find_model(service.models, model), params or {})


@router.delete("/train/", summary="Stop the training")
def train_stop(service: Shared) -> dict[str, Any]:
    """End the training that runs; the model stays as it was."""
    return service.training.stop()


@worklist.get("/{model}", summary="Images in the order in which to look at them")
def listing(service: Shared, model: str) -> list[dict[str, Any]]:
    """Return every image with flag, predicted Dice and whether it has a finished label.

    Images without a finished label come first, the worst on top. ``flag`` is null where an image was not scored yet.
    """
    return work_list(service.labels, find_model(service.models, model))


@worklist.post("/{model}", summary="Score the next image")
async def score(request: Request, service: Shared, model: str) -> dict[str, Any]:
    """Segment one image that has no score yet; return its id, or null if there is none, and the list."""
    chosen = find_model(service.models, model)

    def work() -> dict[str, Any]:
        scored = score_next(service.labels, chosen)
        return {"scored": scored, "cases": work_list(service.labels, chosen)}

    return await service.worker.run(work, request.is_disconnected)
