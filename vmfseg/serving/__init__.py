# SPDX-License-Identifier: Apache-2.0
"""A server in the language of MONAI Label's clients, with a page to look at what the kernels see.

Needs the extra ``serve`` (FastAPI, uvicorn).
"""

from .app import create_app
from .models import load_models
from .run import serve
from .service import Service, ServiceOptions
from .studies import Studies

__all__ = ["Service", "ServiceOptions", "Studies", "create_app", "load_models", "serve"]
