# SPDX-License-Identifier: Apache-2.0
"""Routes of the REST API."""

from . import datastore, explain_routes, infer, learning, page

__all__ = ["ROUTERS"]

ROUTERS = (
    page.router,
    infer.router,
    datastore.sessions,
    datastore.router,
    learning.router,
    learning.worklist,
    explain_routes.router,
)
