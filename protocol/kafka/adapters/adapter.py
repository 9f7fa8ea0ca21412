"""The type of an api's adapter, and helpers that several adapters share."""

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka.apis import KafkaApi
from minibroker.protocol.kafka.schema import Version

MESSAGE_CHARS_MAX: Final = 1000  # of an error's text

OfTopic = TypeVar("OfTopic")


class Adapter(NamedTuple):
    """The two conversions for one Kafka api. `key` is the shared api that serves it."""

    api: KafkaApi
    key: ApiKey
    request: Callable[[Any, Version], Any]
    response: Callable[[Any, Version], Any]


def by_topic(items: Iterable[OfTopic]) -> Iterable[tuple[str, list[OfTopic]]]:
    """Group adjacent items of one topic; the order of the request is kept."""
    for topic, group in groupby(items, attrgetter("topic")):
        yield topic, list(group)


def cut_text(message: str | None) -> str | None:
    """Return an error's text, truncated since it may quote a request of any length."""
    return message and message[:MESSAGE_CHARS_MAX]
