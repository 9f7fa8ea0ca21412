"""The broker's pages over HTTP: whether it is live, whether it is ready, and its metrics.

It serves them from before the logs are opened until after they are closed. So a health check can
tell a broker that recovers its logs from one that does not run.

A page of metrics is made by one request at a time, and at most once in `METRICS_S_MIN`: requests
that come meanwhile share it. So many requests cost the loop and the memory no more than one.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from minibroker.broker.observe.loop_lag import LoopLag
from minibroker.broker.observe.metrics.exposition import CONTENT_TYPE
from minibroker.broker.observe.metrics.pages import all_metrics, public_metrics
from minibroker.broker.observe.readiness import Readiness
from minibroker.broker.observe.sources import Sources

READY_CODE: Final = 200
NOT_READY_CODE: Final = 503
METRICS_S_MIN: Final = 1.0
STARTING: Final = Readiness(False, ("it is starting: its logs are being opened",))

MakeMetrics = Callable[[Sources | None, LoopLag], Awaitable[bytes]]


class Pages:
    """See the head of this module. `sources` is None while the broker is being made."""

    def __init__(self) -> None:
        self.sources: Sources | None = None
        self.loop_lag = LoopLag()

    def app(self) -> Starlette:
        """The pages as a web application."""
        routes = [
            Route("/live", self._live),
            Route("/ready", self._ready),
            Route("/v1/status/ready", self._ready),
            Route("/metrics", self._metrics_page(all_metrics)),
            Route("/public_metrics", self._metrics_page(public_metrics)),
        ]
        names = ", ".join(route.path for route in routes)

        async def explain(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            text = f"{request.method} {request.url.path}: {error.detail}; there are: {names}\n"
            return PlainTextResponse(text, error.status_code, error.headers)

        return Starlette(routes=routes, exception_handlers={HTTPException: explain})

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def _ready(self, request: Request) -> Response:
        sources = self.sources
        ready = STARTING
        if sources is not None:
            ready = sources.services.readiness(trio.current_time())
        status = "ready" if ready.is_ready else "not ready"
        code = READY_CODE if ready.is_ready else NOT_READY_CODE
        return JSONResponse({"status": status, "reasons": ready.reasons}, code)

    def _metrics_page(self, make: MakeMetrics) -> Callable[[Request], Awaitable[Response]]:
        shared = _SharedText(make)

        async def page(request: Request) -> Response:
            text = await shared.get(self.sources, self.loop_lag)
            return Response(text, media_type=CONTENT_TYPE)

        return page


class _SharedText:
    """The text of a page of metrics, which requests that come within a second share."""

    def __init__(self, make: MakeMetrics) -> None:
        self._make = make
        self._lock = trio.Lock()
        self._sources: Sources | None = None
        self._text = b""
        self._made_at = -math.inf

    async def get(self, sources: Sources | None, loop_lag: LoopLag) -> bytes:
        """Return the text, made anew if it is old or about another broker."""
        async with self._lock:
            now = trio.current_time()
            if sources is not self._sources or now - self._made_at >= METRICS_S_MIN:
                self._text = await self._make(sources, loop_lag)
                self._sources, self._made_at = sources, now
            return self._text
