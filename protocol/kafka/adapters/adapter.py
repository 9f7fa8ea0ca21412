"""What an adapter of one api is, and what several of them need."""

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka.apis import KafkaApi
from minibroker.protocol.kafka.schema import Version

MESSAGE_CHARS_MAX: Final = 1000  # of the text of an error

OfTopic = TypeVar("OfTopic")


class Adapter(NamedTuple):
    """How an api of Kafka's is served. `key` is the api of ours that does it."""

    api: KafkaApi
    key: ApiKey
    request: Callable[[Any, Version], Any]
    response: Callable[[Any, Version], Any]


def by_topic(items: Iterable[OfTopic]) -> Iterable[tuple[str, list[OfTopic]]]:
    """Neighbours of one topic together: the order of a request, and so of its answer, stays."""
    for topic, group in groupby(items, attrgetter("topic")):
        yield topic, list(group)


def cut_text(message: str | None) -> str | None:
    """The text of an error, which may quote a request of any length."""
    return message and message[:MESSAGE_CHARS_MAX]
