# SPDX-License-Identifier: Apache-2.0
"""Server that implements the MONAI Label REST API, with a viewer for kernel maps.

Needs the extra ``serve`` (FastAPI, uvicorn).
"""

from .served_models import load_models
from .server import create_app, serve
from .service import Service, ServiceOptions
from .studies import Studies

__all__ = ["Service", "ServiceOptions", "Studies", "create_app", "load_models", "serve"]
