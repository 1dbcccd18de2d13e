# SPDX-License-Identifier: Apache-2.0
"""``/session/``: an uploaded image that several requests use."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Response, UploadFile
from fastapi.responses import FileResponse

from vmfseg.serving.names import safe_stem
from vmfseg.serving.routes.infer import Shared
from vmfseg.utils import VmfError

__all__ = ["router"]

router = APIRouter(prefix="/session", tags=["session"])


@router.put("/", summary="Keep an image for several requests")
def create(
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


@router.get("/{session_id}", summary="Get a session, or its image", response_model=None)
def get(service: Shared, session_id: str, update_ts: bool = False, image: bool = False) -> Response | dict[str, Any]:
    """Return what is known about a session; with ``image`` the file itself."""
    session = service.sessions.get(session_id, touch=update_ts)
    if not image:
        return session.describe()
    if session.image.is_dir():
        raise VmfError("VMF197", subject="image", rule="a series is not sent back", fix="you have its files")
    return FileResponse(session.image, media_type="application/octet-stream", filename=safe_stem(session.name))


@router.delete("/{session_id}", summary="End a session")
def remove(service: Shared, session_id: str) -> dict[str, Any]:
    """Remove a session and its image."""
    return service.sessions.remove(session_id).describe()
