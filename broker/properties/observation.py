"""Properties of log lines, health and metrics."""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from dataclasses import dataclass

from minibroker.broker.config_property import Kind, setting
from minibroker.protocol.types import Endpoint


@dataclass(frozen=True)
class Observation:
    """What a broker tells of itself: the shape of log lines, and where health and metrics are."""

    log_format: str = setting(
        "log.format",
        Kind.TEXT,
        "text",
        "The shape of log lines: Kafka's, with the machine's time, or a JSON object each, with the "
        "time in UTC.",
        choices=("text", "json"),
    )

    http_listener: Endpoint | None = setting(
        "http.listener",
        Kind.ADDRESS,
        None,
        "Where /live, /ready and /metrics are served over HTTP (a port alone: 127.0.0.1; no host "
        "before the colon: every interface; port 0 takes a free one); without it, nowhere. Whoever "
        "reaches it can read the names of topics and groups, and change nothing.",
    )
