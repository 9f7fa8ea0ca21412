"""The type of an api's adapter, and helpers that several adapters share."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.schema import Version

MESSAGE_CHARS_MAX: Final = 1000  # of an error's text


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


class _OfTopicId(_OfTopic, Protocol):
    @property
    def topic_id(self) -> bytes: ...


Item = TypeVar("Item")
OfTopic = TypeVar("OfTopic", bound=_OfTopic)
OfTopicId = TypeVar("OfTopicId", bound=_OfTopicId)


class Array(NamedTuple):
    """The array of a Kafka request whose elements become those of a message's field one by one, so
    that a long one can be converted in parts. `inner` is the array in each element that may be
    long, too: its elements become those of the message's field, or, if it is `kept`, of the field
    of that name in each of these."""

    name: str
    field: str
    inner: str = ""
    kept: str = ""


class Adapter(NamedTuple):
    """The two conversions for one Kafka api. `key` is the shared api that serves it.

    A request with many elements is converted by the elements of `array` and of the arrays that are
    `also` long, or by `in_turns`.
    """

    api: KafkaApi
    key: ApiKey
    request: Callable[[Any, Version], Any]
    response: Callable[[Any, Version], Any]
    array: Array | None = None
    in_turns: Callable[[Any, Version], Generator[None, None, Any]] | None = None
    also: tuple[Array, ...] = ()

    def request_in_turns(self, asked: Any, version: Version) -> Generator[None, None, Any]:
        """Convert a request with many elements, with pauses."""
        if self.in_turns is not None:
            return (yield from self.in_turns(asked, version))
        array = self.array
        if array is None or getattr(asked, array.name) is None:
            return self.request(asked, version)
        arrays = (array, *self.also)
        bare = asked._replace(**{one.name: [] for one in arrays})
        values: dict[str, tuple[Any, ...]] = {}
        for one in arrays:
            values[one.field] = yield from self._converted(one, asked, bare, version)
        whole: Any = self.request(bare, version)
        # Messages of the hot path are named tuples, the others dataclasses.
        return whole._replace(**values) if hasattr(whole, "_replace") else replace(whole, **values)

    def _converted(
        self, array: Array, asked: Any, bare: Any, version: Version
    ) -> Generator[None, None, tuple[Any, ...]]:
        converted: list[Any] = []
        for part, continues in _parts(getattr(asked, array.name), array.inner):
            message = self.request(bare._replace(**{array.name: part}), version)
            some = getattr(message, array.field)
            if continues and array.kept:
                joined = getattr(converted[-1], array.kept) + getattr(some[0], array.kept)
                converted[-1] = replace(converted[-1], **{array.kept: joined})
                some = some[1:]
            converted += some
            yield
        return tuple(converted)


def _parts(elements: Sequence[Any], inner: str) -> Iterator[tuple[list[Any], bool]]:
    """Yield the elements in parts of a few hundred. A long inner array is divided, too: then the
    first element of a part continues the last one of the part before, which is the second value."""
    part: list[Any] = []
    size = 0
    continues = False
    for element in elements:
        nested = getattr(element, inner) if inner else ()
        for start in range(0, max(1, len(nested)), ELEMENTS_AT_ONCE):
            some = nested[start : start + ELEMENTS_AT_ONCE]
            if not part:
                continues = start > 0
            part.append(element._replace(**{inner: some}) if inner else element)
            size += 1 + len(some)
            if size >= ELEMENTS_AT_ONCE:
                yield part, continues
                part, size = [], 0
    if part:
        yield part, continues


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
    items: Sequence[OfTopic],
) -> Converted[Any] | list[Any]:
    """Return the array of topics with their items. Each topic stands where its first item is: some
    clients know only the last of several entries of a topic. A few items are converted at once."""
    groups: dict[str, list[OfTopic]] = {}
    for item in items:
        if (topic := item.topic) in groups:
            groups[topic].append(item)
        else:
            groups[topic] = [item]

    if len(items) <= ELEMENTS_AT_ONCE:
        return [make_topic(topic, [*map(make, own)]) for topic, own in groups.items()]

    def convert(group: tuple[str, list[OfTopic]]) -> Any:
        topic, its_items = group
        return make_topic(topic, Converted(make, its_items))

    return Converted(convert, [*groups.items()])


def by_topic_id(
    make_topic: Callable[[str, bytes, Any], Any],
    make: Callable[[OfTopicId], Any],
    items: Sequence[OfTopicId],
) -> Converted[Any] | list[Any]:
    """As `by_topic`, for an array that has topic ids in newer versions. A topic whose id is unknown
    has no name."""
    if len(items) == 1:  # as in most requests
        only = items[0]
        return [make_topic(only.topic, only.topic_id, [make(only)])]
    groups: dict[str | bytes, list[OfTopicId]] = {}
    for item in items:
        if (topic := item.topic or item.topic_id) in groups:
            groups[topic].append(item)
        else:
            groups[topic] = [item]

    if len(items) <= ELEMENTS_AT_ONCE:
        return [
            make_topic(own[0].topic, own[0].topic_id, [*map(make, own)]) for own in groups.values()
        ]

    def convert(its_items: list[OfTopicId]) -> Any:
        first = its_items[0]
        return make_topic(first.topic, first.topic_id, Converted(make, its_items))

    return Converted(convert, [*groups.values()])


def all_at_once(turns: Generator[None, None, Item]) -> Item:
    """Run a conversion in turns to its result without a pause."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            converted: Item = end.value
            return converted


def host_text(host: str) -> str:
    """Return a member's host as Kafka spells it, which takes it from Java."""
    return f"/{host}" if host and not host.startswith("/") else host


def cut_text(message: str | None) -> str | None:
    """Return an error's text, truncated since it may quote a request of any length."""
    return message and message[:MESSAGE_CHARS_MAX]
