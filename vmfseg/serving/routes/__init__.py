# SPDX-License-Identifier: Apache-2.0
"""Routes of the REST API."""

from . import datastore, explain_routes, infer, learning, page, worklist_routes

__all__ = ["ROUTERS"]

ROUTERS = (
    page.router,
    infer.router,
    datastore.sessions,
    datastore.router,
    learning.router,
    worklist_routes.router,
    explain_routes.router,
)
