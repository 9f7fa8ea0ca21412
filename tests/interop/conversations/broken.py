"""Requests that cannot be read: cut short, or with lengths that lie."""

from collections.abc import Iterator

from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.api import API_VERSIONS_KEY, KafkaApi
from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations.case import Case, Script
from tests.interop.conversations.talk import Talk


def body(api: KafkaApi, rest: bytes) -> Script:
    """A request with these bytes behind its header."""

    def run(talk: Talk, version: Version) -> None:
        talk.send_bytes(api, version, b"\0" * api.is_flexible(version) + rest)
        talk.hear()

    return run


def cases() -> Iterator[Case]:
    """Yield two for each api."""
    for key, adapter in sorted(ADAPTERS.items()):
        api = adapter.api
        if key != API_VERSIONS_KEY and api.request.fields:
            yield Case(api, "no body", body(api, b""))
            yield Case(api, "lengths that lie", body(api, b"\x7f" * 8))
