"""The type of a scripted conversation, and how tables of them are spelled."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations.talk import Fields, Talk

# Prepares what a request needs, and returns its fields.
Request: TypeAlias = Callable[[Talk], Fields]
Script: TypeAlias = Callable[[Talk, Version], None]


class Case(NamedTuple):
    """A conversation about an api, for each of its versions from `since` on."""

    api: KafkaApi
    name: str
    script: Script
    since: Version = 0


def requests(api: KafkaApi, table: Mapping[str, Request], since: Version = 0) -> Iterator[Case]:
    """Yield a case for each row: one request."""
    for name, request in table.items():
        yield Case(api, name, _script(api, request), since)


def _script(api: KafkaApi, request: Request) -> Script:
    def run(talk: Talk, version: Version) -> None:
        talk.ask(api, version, request(talk))

    return run


def scripts(api: KafkaApi, table: Mapping[str, Script], since: Version = 0) -> Iterator[Case]:
    """Yield a case for each row: a script of its own."""
    for name, script in table.items():
        yield Case(api, name, script, since)
