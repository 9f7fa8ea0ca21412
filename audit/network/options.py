"""The options of `format("minibroker")`, and the arithmetic of offsets; no Spark in here.

The names are those of Spark's source and sink for Kafka: a program switches by changing the word in
`format(...)`. Options of the client (timeouts, request sizes) have the prefix `kafka.` and are
passed to it. An unknown option is refused, and the error suggests the nearest name.

Offsets are a mapping by partition, in which EARLIEST and LATEST stand for values not known yet. In
Spark's checkpoint they are JSON, `{"topic": {"0": 17}}`. Spark compares that as text, so topics and
partitions are always written in order.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

from minibroker.client.errors import ConfigError
from minibroker.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    read_options,
)
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from minibroker.protocol.types import TopicPartition

EARLIEST: Final = EARLIEST_TIMESTAMP  # -2, as in Spark's JSON
LATEST: Final = LATEST_TIMESTAMP  # -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
# Records per poll: one Arrow batch.
POLL_RECORDS: Final = 10_000

CLIENT_PREFIX: Final = "kafka."
_READ: Final = (
    "subscribe",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "includeHeaders",
)
_BATCH: Final = (
    *_READ,
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
)
_STREAM: Final = (*_READ, "maxOffsetsPerTrigger")
# Spark passes its own options to a stream's sink, too.
_SINK: Final = ("topic", "checkpointLocation", "queryName")
_SERVERS: Final = "bootstrap.servers"
# The client's options that an option or a promise of the source replaces, and why.
_SETTLED_FOR_READING: Final = {
    "auto.offset.reset": "startingOffsets and failOnDataLoss say where reading begins",
}

Offsets: TypeAlias = dict[TopicPartition, int]


@dataclass(frozen=True)
class ReadOptions:
    """The options of a source. `starting` and `ending` are offsets, or EARLIEST or LATEST for all.

    `client` is for a `Consumer`; `split` is the least number of tasks, `limit` the most records of
    a micro-batch; 0 means unset. `assigned` are the only partitions of the topics that are read,
    None: all. `starting_times` and `ending_times`, in ms, override the offsets; None: unset. If a
    partition has no record as late as its starting time, reading begins at its end with
    `at_end_without_record`, and fails otherwise.
    """

    client: Mapping[str, str]
    topics: tuple[str, ...]
    starting: Offsets | int
    ending: Offsets | int
    fails_on_data_loss: bool
    split: int
    limit: int
    assigned: frozenset[TopicPartition] | None = None
    starting_times: Offsets | int | None = None
    ending_times: Offsets | int | None = None
    at_end_without_record: bool = False
    has_headers: bool = True


@dataclass(frozen=True)
class WriteOptions:
    """The options of a sink. `client` is for a `Producer`; `topic` is None if a column has it."""

    client: Mapping[str, str]
    topic: str | None


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read`. Raises ValueError, whose text is for the user."""
    return _read_options(given, _BATCH, "earliest")


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.readStream`. Raises ValueError."""
    return _read_options(given, _STREAM, "latest")


def sink_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write` and `df.writeStream`. Raises ValueError."""
    options, client = _sort(given, _SINK, "sink")
    _check_client(ProducerOptions, client)
    for name, wanted in {"acks": ("all", "-1"), "enable.idempotence": ("true",)}.items():
        if name in client and client[name].lower() not in wanted:
            raise ValueError(f"{CLIENT_PREFIX}{name} is {wanted[0]} in the sink: it loses nothing")
    return WriteOptions(client | {"acks": "all", "enable.idempotence": "true"}, options["topic"])


def _read_options(given: Mapping[str, str], known: tuple[str, ...], start: str) -> ReadOptions:
    options, client = _sort(given, known, "source")
    _check_client(ConsumerOptions, client)
    for name, reason in _SETTLED_FOR_READING.items():
        if name in client:
            raise ValueError(f"{CLIENT_PREFIX}{name} cannot be set: {reason}")
    topics, assigned = _chosen(options["subscribe"], options["assign"])
    fails_on_data_loss = _is_true("failOnDataLoss", options["failOnDataLoss"])
    reset = "none" if fails_on_data_loss else "earliest"
    settled = {"auto.offset.reset": reset}
    starting = parse_offsets("startingOffsets", options["startingOffsets"] or start)
    ending = parse_offsets("endingOffsets", options.get("endingOffsets") or "latest")
    if "endingOffsets" in known:
        _refuse("startingOffsets", starting, LATEST)
        _refuse("endingOffsets", ending, EARLIEST)
    return ReadOptions(
        {"max.poll.records": str(POLL_RECORDS)} | client | settled,
        tuple(sorted(set(topics))),
        starting,
        ending,
        fails_on_data_loss,
        _count("minPartitions", options["minPartitions"]),
        _count("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger")),
        assigned,
        _times(options, "starting"),
        _times(options, "ending"),
        _is_latest(options["startingOffsetsByTimestampStrategy"]),
        _is_true("includeHeaders", options["includeHeaders"]),
    )


def _chosen(
    subscribe: str | None, assign: str | None
) -> tuple[list[str], frozenset[TopicPartition] | None]:
    """Return the topics, and the only partitions of them that are read; None: all."""
    if subscribe is not None and assign is not None:
        raise ValueError("subscribe and assign are both there: leave one out")
    if assign is None:
        topics = [topic.strip() for topic in (subscribe or "").split(",")]
        if not all(topics):
            raise ValueError("subscribe is missing: name a topic, or several separated by commas")
        return topics, None
    try:
        names = frozenset(
            TopicPartition(topic, partition)
            for topic, partitions in json.loads(assign).items()
            for partition in partitions
        )
        if not names or any(type(each.partition) is not int for each in names):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f'assign is JSON like {{"topic": [0, 1]}}, not {assign!r}') from None
    return [name.topic for name in names], names


def _times(options: Mapping[str, str | None], which: str) -> Offsets | int | None:
    """Return the times at which reading starts or ends, for all partitions or by partition."""
    if text := options.get(f"{which}Timestamp"):
        if not text.isdecimal():
            raise ValueError(f"{which}Timestamp is a number of ms since 1970, not {text!r}")
        return int(text)
    name = f"{which}OffsetsByTimestamp"
    text = options.get(name)
    if text is None:
        return None
    try:
        times = from_json(json.loads(text))
        if min(times.values()) < 0:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f'{name} is JSON with ms since 1970, like {{"topic": {{"0": 1700000000000}}}},'
            f" not {text!r}"
        ) from None
    return times


def _is_latest(strategy: str | None) -> bool:
    """Whether reading begins at the end if no record is as late as a starting time."""
    if strategy not in (None, "error", "latest"):
        raise ValueError(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    return strategy == "latest"


def _is_true(name: str, text: str | None) -> bool:
    """Parse an option that is true by default."""
    small = (text or "true").lower()
    if small not in ("true", "false"):
        raise ValueError(f"{name} is true or false, not {small!r}")
    return small == "true"


def _sort(
    given: Mapping[str, str], known: tuple[str, ...], what: str
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return our options, None if not given, and the client's. Spark writes names in lower case."""
    names = {name.lower(): name for name in known}
    options: dict[str, str | None] = dict.fromkeys(known)
    client = {}
    for name, value in given.items():
        small = name.lower()
        if small.startswith(CLIENT_PREFIX):
            client[small.removeprefix(CLIENT_PREFIX)] = value
        elif small == _SERVERS:
            client[_SERVERS] = value
        elif small in names:
            options[names[small]] = value
        else:
            near = get_close_matches(small, list(names), n=1)
            meant = f"; the nearest is {names[near[0]]!r}" if near else ""
            raise ValueError(
                f"the minibroker {what} has no option {name!r}{meant}"
                f" (options of the client begin with {CLIENT_PREFIX!r})"
            )
    return options, client


def _check_client(kind: type[ClientOptions], client: Mapping[str, str]) -> None:
    """Raise ValueError for an option that the client does not have, or a value it refuses."""
    try:
        read_options(kind, client, {})
    except ConfigError as error:
        raise ValueError(f"of the options with {CLIENT_PREFIX!r} in front: {error}") from None


def _count(name: str, text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} is a number of at least 1, not {text!r}")
    return int(text)


def _refuse(name: str, offsets: Offsets | int, sentinel: int) -> None:
    """Raise ValueError for a batch that begins at the latest offsets or ends at the earliest."""
    found = set(offsets.values()) if isinstance(offsets, dict) else {offsets}
    if sentinel in found:
        word = next(word for word, value in _WORDS.items() if value == sentinel)
        raise ValueError(f"{name} of a batch cannot be {word} ({sentinel})")


def parse_offsets(name: str, text: str) -> Offsets | int:
    """Parse `earliest`, `latest`, or JSON with an offset, -1 or -2 for each partition."""
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f'{name} is earliest, latest or JSON like {{"topic": {{"0": 17, "1": -2}}}}'
            f" (-2 is the earliest, -1 the latest), not {text!r}"
        ) from None


def from_json(decoded: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Parse offsets from `{"topic": {"0": 17}}`. Raises TypeError, AttributeError, ValueError."""
    offsets = {}
    for topic, partitions in decoded.items():
        for partition, offset in partitions.items():
            if type(offset) is not int or offset < EARLIEST:
                raise ValueError(f"{offset!r} is no offset")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the offsets as the JSON value that Spark stores, in order."""
    decoded: dict[str, dict[str, int]] = {}
    for name in sorted(offsets):
        decoded.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    return decoded


def spread(name: str, asked: Offsets | int, partitions: Iterable[TopicPartition]) -> Offsets:
    """Return the given offsets for each existing partition. Raises ValueError for other names."""
    there = sorted(partitions)
    if isinstance(asked, int):
        return dict.fromkeys(there, asked)
    if set(asked) != set(there):
        missing = ", ".join(map(str, sorted(set(there) - set(asked))))
        foreign = ", ".join(map(str, sorted(set(asked) - set(there))))
        raise ValueError(
            f"{name} must name each partition of the topics subscribed to (-2 is the earliest"
            f" offset, -1 the latest); missing: {missing or 'none'}, unknown: {foreign or 'none'}"
        )
    return {each: asked[each] for each in there}


def limited(start: Offsets, end: Offsets, limit: int) -> Offsets:
    """Return ends that take at most `limit` records after `start`, shared by what each has waiting.

    Partitions whose share is 0, since they are small beside the others, get the remainder of
    rounding first, the largest first; so none waits for ever.
    """
    waiting = {name: max(0, end[name] - start[name]) for name in end}
    total = sum(waiting.values())
    if total <= limit:
        return end
    shares = {name: size * limit // total for name, size in waiting.items()}
    left = limit - sum(shares.values())
    for name in sorted(shares, key=lambda name: (shares[name], -waiting[name], name)):
        if left and shares[name] < waiting[name]:
            shares[name] += 1
            left -= 1
    return {name: start[name] + shares[name] if waiting[name] else end[name] for name in end}


def pieces(size: int, total: int, split: int) -> int:
    """Return into how many tasks a range of `size` is cut, for about `split` tasks in `total`."""
    return max(1, min(size, round(size * split / total))) if size else 0
