# SPDX-License-Identifier: Apache-2.0
"""Errors as HTTP responses: code and fix as on the command line, a status, and no path of the server.

=====================  =======================================================================================
code                   meaning                                                                          status
=====================  =======================================================================================
VMF180 to VMF183       no such model, image, label, session                                                404
VMF184, VMF185         name or request that cannot be used                                            400, 422
VMF186, VMF187         no such strategy; no training                                                       404
VMF188, VMF189         no or wrong token; another site's page or host name                            401, 403
VMF190, VMF191         upload too large; body too slow                                                413, 408
VMF192 to VMF194       no such route, method, content type                                       404, 405, 415
VMF195                 a host that others can reach needs a token (when starting)                            -
VMF196, VMF197         there is such an image already; what is not offered                            409, 501
VMF198                 only uploaded images can be removed                                                 403
VMF2nn                 data refused, as by the reader                                                      422
VMF3nn, VMF4nn         the server's own bundle is at fault                                                 500
VMF354                 kernel maps of a model without kernels                                              422
VMF501                 the server's disk is full                                                           507
VMF512                 the image does not fit into the memory                                               413
VMF562                 too many wrong tokens (Retry-After)                                                 429
VMF540 to VMF542       queue full, a training runs already, too many sessions (Retry-After)           503, 429
=====================  =======================================================================================
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error

__all__ = ["Refusal", "as_refusal", "public_error", "refusal_response", "status_of"]

logger = logging.getLogger("vmfseg.serving")

_STATUS = {
    "VMF180": 404, "VMF181": 404, "VMF182": 404, "VMF183": 404, "VMF186": 404, "VMF187": 404, "VMF188": 401,
    "VMF189": 403, "VMF190": 413, "VMF191": 408, "VMF192": 404, "VMF193": 405, "VMF194": 415, "VMF196": 409,
    "VMF197": 501, "VMF198": 403, "VMF199": 404, "VMF354": 422, "VMF501": 507, "VMF502": 500, "VMF503": 409,
    "VMF512": 413, "VMF540": 503, "VMF541": 429, "VMF542": 503, "VMF562": 429,
}  # fmt: skip
_BY_KIND = {"1": 400, "2": 422, "3": 500, "4": 500, "5": 503}
_RETRY = {"VMF540": 5, "VMF541": 60, "VMF542": 60, "VMF562": 60}
_ABSOLUTE = re.compile(r"(?<![\w.~-])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:;,'\"()<>]+[/\\])*([^\s/\\:;,'\"()<>]*)")


class Refusal(HTTPException):
    """A :class:`VmfError` with its HTTP status. FastAPI lets it pass where it rewrites other errors.

    Args:
        error: what is refused.
        status: when it differs from :func:`status_of`.
        retry_after: seconds.
    """

    def __init__(self, error: VmfError, status: int | None = None, retry_after: int | None = None) -> None:
        super().__init__(status or status_of(error), error.render())
        self.error = error
        self.retry_after = retry_after if retry_after is not None else _RETRY.get(error.code)


def status_of(error: VmfError) -> int:
    """Return the HTTP status of an error.

    Example:
        >>> status_of(VmfError("VMF213", rule="the file is empty"))
        422
    """
    return _STATUS.get(error.code, _BY_KIND.get(error.code[3:4], 500))


def public_error(error: VmfError, roots: Iterable[Path] = (), names: Mapping[str, str] | None = None) -> VmfError:
    """Return an error without any path of the server.

    Args:
        error: as it was raised.
        roots: folders of the server; what lies in them is named relative to them.
        names: what a client calls the files, by path.

    Example:
        >>> error = VmfError("VMF213", subject="/srv/studies/a.nii.gz", rule="the file is empty", fix="copy again")
        >>> public_error(error).subject
        'a.nii.gz'
    """

    def clean(text: str) -> str:
        for path, name in (names or {}).items():
            text = text.replace(path, name)
        for root in roots:
            text = text.replace(f"{root}/", "").replace(str(root), "the server's folder")
        return text if own else _ABSOLUTE.sub(lambda match: match[1] or "/", text)

    own = error.code.startswith(("VMF18", "VMF19", "VMF54"))  # these name routes and what a client sent, no files
    fields = {key: clean(text) for key, text in error.as_dict().items() if key != "code"}
    return VmfError(error.code, **fields)


def as_refusal(error: BaseException, roots: Iterable[Path] = ()) -> Refusal:
    """Turn whatever was raised into a refusal that may be shown; what is our own fault is logged with its traceback."""
    if isinstance(error, Refusal):
        return Refusal(public_error(error.error, roots), error.status_code, error.retry_after)
    found = find_vmf_error(error)
    if found is not None:
        return Refusal(public_error(found, roots))
    if isinstance(error, MemoryError):
        return Refusal(VmfError("VMF532", fix="send a smaller image, or one frame"), 503)
    if isinstance(error, ValueError):
        return Refusal(public_error(VmfError("VMF100", rule=str(error)), roots))
    logger.error("unforeseen %s", type(error).__name__, exc_info=error)
    rule = f"unforeseen error ({type(error).__name__})"
    return Refusal(VmfError("VMF900", rule=rule, fix="report it with the server's log"), 500)


def refusal_response(refusal: Refusal) -> JSONResponse:
    """Return the JSON that a client gets: the fields of the error, and as ``detail`` the text of the command line."""
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    if refusal.status_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = {**refusal.error.as_dict(), "detail": refusal.error.render()}
    return JSONResponse(body, refusal.status_code, headers)
