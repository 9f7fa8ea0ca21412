"""Addresses of brokers as users write them: `HOST:PORT`, several joined by commas."""

from collections.abc import Sequence
from typing import Final

from minibroker.protocol.types import Endpoint

PORT_MAX: Final = 65_535


def parse_servers(value: object) -> tuple[Endpoint, ...]:
    """Parse `HOST:PORT,HOST:PORT` or a sequence of such. Raises `ValueError`."""
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
    host, separator, port = text.removeprefix("PLAINTEXT://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and separator and port.isdecimal() and 0 < int(port) <= PORT_MAX):
        raise ValueError(text)
    return Endpoint(host, int(port))
