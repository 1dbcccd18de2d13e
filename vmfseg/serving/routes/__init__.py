# SPDX-License-Identifier: Apache-2.0
"""The routes, by subject."""

from . import datastore, explain, infer, learning, page, session

__all__ = ["ROUTERS"]

ROUTERS = (page.router, infer.router, session.router, datastore.router, learning.router, explain.router)
