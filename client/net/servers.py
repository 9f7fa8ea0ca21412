"""Addresses of brokers as users write them: `HOST:PORT` or `HOST`, several joined by commas."""

from collections.abc import Sequence
from typing import Final

from minibroker.protocol.types import Endpoint

PORT_MAX: Final = 65_535
DEFAULT_PORT: Final = 9092  # of a host without one


def parse_servers(value: object) -> tuple[Endpoint, ...]:
    """Parse `HOST:PORT,HOST` or a sequence of such. Raises `ValueError`."""
    if isinstance(value, str):
        texts = [text.strip() for text in value.split(",") if text.strip()]
    elif isinstance(value, Sequence) and all(isinstance(text, str) for text in value):
        texts = list(value)
    else:
        raise ValueError(value)
    if not texts:
        raise ValueError(value)
    return tuple(_parse_endpoint(text) for text in texts)


def _parse_endpoint(text: str) -> Endpoint:
    address = text.removeprefix("PLAINTEXT://")
    if ":" not in address or address.endswith("]"):
        address = f"{address}:{DEFAULT_PORT}"
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and not host.isdecimal() and port.isdecimal() and 0 < int(port) <= PORT_MAX):
        raise ValueError(text)
    return Endpoint(host, int(port))
