"""The type of an api's adapter, and helpers that several adapters share."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey
from minibroker.protocol.kafka.apis import KafkaApi
from minibroker.protocol.kafka.schema import Version

MESSAGE_CHARS_MAX: Final = 1000  # of an error's text


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


Item = TypeVar("Item")
OfTopic = TypeVar("OfTopic", bound=_OfTopic)


class Array(NamedTuple):
    """The array of a Kafka request whose elements become those of a message's field one by one, so
    that a long one can be converted in parts. `inner` is the array in each element that becomes
    elements instead, if there is one."""

    name: str
    field: str
    inner: str = ""


class Adapter(NamedTuple):
    """The two conversions for one Kafka api. `key` is the shared api that serves it."""

    api: KafkaApi
    key: ApiKey
    request: Callable[[Any, Version], Any]
    response: Callable[[Any, Version], Any]
    array: Array | None = None

    def request_in_turns(self, asked: Any, version: Version) -> Generator[None, None, Any]:
        """Convert a request with many elements, with pauses."""
        array = self.array
        if array is None or getattr(asked, array.name) is None:
            return self.request(asked, version)
        converted: list[Any] = []
        for part in _parts(getattr(asked, array.name), array.inner):
            message = self.request(asked._replace(**{array.name: part}), version)
            converted += getattr(message, array.field)
            yield
        whole: Any = self.request(asked._replace(**{array.name: []}), version)
        values = {array.field: tuple(converted)}
        # Messages of the hot path are named tuples, the others dataclasses.
        return whole._replace(**values) if hasattr(whole, "_replace") else replace(whole, **values)


def _parts(elements: Sequence[Any], inner: str) -> Iterator[list[Any]]:
    """Yield the elements in parts of a few hundred. A long inner array is divided, too."""
    part: list[Any] = []
    size = 0
    for element in elements:
        nested = getattr(element, inner) if inner else ()
        for start in range(0, max(1, len(nested)), ELEMENTS_AT_ONCE):
            some = nested[start : start + ELEMENTS_AT_ONCE]
            part.append(element._replace(**{inner: some}) if inner else element)
            size += 1 + len(some)
            if size >= ELEMENTS_AT_ONCE:
                yield part
                part, size = [], 0
    if part:
        yield part


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
