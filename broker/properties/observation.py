"""Properties of what a broker shows of itself to a browser, a load balancer or Prometheus."""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from dataclasses import dataclass

from minibroker.broker.property import Kind, setting
from minibroker.protocol.types import Endpoint


@dataclass(frozen=True)
class Observation:
    """Health and metrics over HTTP: where they are shown."""

    http_listener: Endpoint | None = setting(
        "http.listener",
        Kind.ADDRESS,
        None,
        "Where /live, /ready and /metrics are served over HTTP (no host: every interface; port 0 "
        "takes a free one); without it, nowhere. Whoever reaches it can read the names of topics "
        "and groups, and change nothing.",
    )
