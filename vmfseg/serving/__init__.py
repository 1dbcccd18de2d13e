# SPDX-License-Identifier: Apache-2.0
"""MONAI Label-compatible server, with a viewer in the browser.

Needs the extra ``serve`` (FastAPI, uvicorn).
"""

from .image_index import ImageIndex
from .served_models import load_models
from .server import create_app, serve
from .service import Service, ServiceOptions

__all__ = ["ImageIndex", "Service", "ServiceOptions", "create_app", "load_models", "serve"]
