"""The proxy's page of state: `/healthz`, `/status`, `/metrics`. Counts alone, so no token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from edgeveil.transport.http import Health
from edgeveil.transport.metrics import Metrics


def make_app(
    health: Health, metrics: Metrics, status: Callable[[], Mapping[str, Any]]
) -> web.Application:
    """The application; pass it to `edgeveil.transport.http.serve`."""

    async def show_status(_request: web.Request) -> web.Response:
        return web.json_response(dict(status()))

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", health.page),
            web.get("/status", show_status),
            web.get("/metrics", metrics.page),
        ]
    )
    return app
