"""The type of an api's adapter, and helpers that several adapters share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka.apis import KafkaApi
from minibroker.protocol.kafka.schema import Version

MESSAGE_CHARS_MAX: Final = 1000  # of an error's text


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


Item = TypeVar("Item")
OfTopic = TypeVar("OfTopic", bound=_OfTopic)


class Adapter(NamedTuple):
    """The two conversions for one Kafka api. `key` is the shared api that serves it."""

    api: KafkaApi
    key: ApiKey
    request: Callable[[Any, Version], Any]
    response: Callable[[Any, Version], Any]


class Converted(Generic[Item]):
    """An array of a message, each of whose items is converted when the codec encodes it. So a
    response over many items is converted in the same turns in which it is encoded."""

    __slots__ = ("_convert", "_items")

    def __init__(self, convert: Callable[[Item], Any], items: Sequence[Item]) -> None:
        self._convert = convert
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self._items)


def by_topic(
    make_topic: Callable[[str, Any], Any],
    make: Callable[[OfTopic], Any],
    items: Iterable[OfTopic],
) -> Converted[Any]:
    """Return the array of topics with their items. Each topic stands where its first item is: some
    clients know only the last of several entries of a topic."""
    groups: dict[str, list[OfTopic]] = {}
    for item in items:
        groups.setdefault(item.topic, []).append(item)

    def convert(group: tuple[str, list[OfTopic]]) -> Any:
        topic, its_items = group
        return make_topic(topic, Converted(make, its_items))

    return Converted(convert, [*groups.items()])


def cut_text(message: str | None) -> str | None:
    """Return an error's text, truncated since it may quote a request of any length."""
    return message and message[:MESSAGE_CHARS_MAX]
