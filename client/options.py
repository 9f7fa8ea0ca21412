"""The options of the clients, under Kafka's names, and what a simulation replaces.

An option is described once, at the field that holds its value: its default, its range, and what it
does. Everything else is made from that table or compared with it: the check of a value, the types
that editors and type checkers read (option_types.py), and the tables of docs/producer.md,
docs/consumer.md and docs/admin.md. `python -m tests.unit.client.option_tables` writes these again.

`read_options` takes options as keyword arguments (`linger_ms=5`) or as a mapping (`{"linger.ms":
"5"}`). Dots and underscores are the same, text is read as the option's type, and a keyword wins
over the mapping. Times are milliseconds, sizes are bytes. An option that other Kafka clients have
and these do not is refused with a sentence (foreign_options.py).

The table has only options that some part of the client reads: an option that is accepted and has no
effect is worse than an error, because its user relies on it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from minibroker.client.errors import ConfigError
from minibroker.client.foreign_options import foreign_option
from minibroker.client.groups.assignors import ASSIGNORS
from minibroker.client.net.network import Network, TcpNetwork
from minibroker.client.net.servers import parse_servers
from minibroker.protocol.constants import (
    ACKS_ALL,
    IN_FLIGHT_MAX,
    READ_COMMITTED,
    READ_UNCOMMITTED,
)
from minibroker.protocol.records.compression import CODEC_NAMES
from minibroker.protocol.types import Endpoint

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
JOIN_SLACK_MS: Final = 5_000  # beyond max.poll.interval.ms, within which all members have to join
WORD_CHARS_MIN: Final = 4  # the shortest part of a name for a suggestion
NEAR: Final = 0.75  # how similar a known name must be to be suggested, from 0 to 1
ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}
ISOLATION_LEVELS: Final = {
    "read_uncommitted": READ_UNCOMMITTED,
    "read_committed": READ_COMMITTED,
}

# "HOST:PORT,HOST:PORT", a list of such, or a mapping of options that has them.
Servers: TypeAlias = str | Sequence[str] | Mapping[str, object] | None


def option(
    default: Any, text: str, *, low: int = 0, high: int = INT_MAX, choices: Iterable[str] = ()
) -> Any:
    """Return the field of an option. Its type is that of `default`; `low` and `high` are inclusive.

    `text` is a sentence for the documentation: what the option does, and what it trades.
    """
    described = {"low": low, "high": high, "choices": tuple(choices), "text": text}
    return field(default=default, metadata=described)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The options that all clients have."""

    bootstrap_servers: tuple[Endpoint, ...] = option(
        (), "The brokers to ask first. One that answers is enough; it names the others."
    )
    client_id: str = option("minibroker", "The name of this client in the brokers' logs.")
    request_timeout_ms: int = option(
        30_000,
        "How long to wait for the answer to one request before it is sent again. A short time finds"
        " a stuck broker sooner, and repeats requests that were only slow.",
        low=1,
    )
    retry_backoff_ms: int = option(
        100, "The pause before a request is repeated; it doubles with each failure.", low=1
    )
    retry_backoff_max_ms: int = option(1_000, "The longest such pause.", low=1)
    reconnect_backoff_ms: int = option(
        50, "The pause before a broker is connected to again; it doubles with each failure.", low=1
    )
    reconnect_backoff_max_ms: int = option(
        1_000,
        "The longest such pause. A long one spares a broker that restarts; a short one finds it"
        " sooner.",
        low=1,
    )
    socket_connection_setup_timeout_ms: int = option(
        10_000, "How long a broker may take to accept a connection.", low=1
    )
    metadata_max_age_ms: int = option(
        300_000,
        "How old knowledge of topics may get. New partitions, and topics that match a pattern, are"
        " noticed within this time. A change of leader is noticed at once, whatever this is.",
        low=1,
    )

    @property
    def call_timeout_ms(self) -> int:
        """The time-out of a call that takes none of its own."""
        raise AssertionError("each client names its own")

    @property
    def longest_poll_ms(self) -> int:
        """How long this client asks a broker to wait when there is nothing to answer yet."""
        return 0

    @property
    def longest_join_ms(self) -> int:
        """How long a broker may let a JOIN or SYNC of this client wait for other members."""
        return 0

    @property
    def isolation(self) -> int:
        """The isolation level of this client's requests, as a number of the protocol."""
        return READ_UNCOMMITTED

    @property
    def may_create_topics(self) -> bool:
        """Whether a request for a topic's metadata may create the topic, if the broker allows it,
        too."""
        return False

    def check(self) -> None:
        """Raise `ConfigError` if options contradict each other."""
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing: name at least one HOST:PORT")


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """A producer's. Without `enable.idempotence` it is on wherever the others allow it."""

    acks: int = option(
        ACKS_ALL,
        "How many replicas have a record before it counts as delivered. all (-1): every in-sync"
        " replica, and the record survives the loss of all but one. 1: the leader alone, which is"
        " faster and loses records when it fails. 0: nobody is asked.",
        choices=ACKS,
    )
    enable_idempotence: bool = option(
        True,
        "Whether brokers recognize a repeated batch, so that a retry stores nothing twice and"
        " changes no order. Needs acks=all; without being asked for it gives way to acks=1 and 0.",
    )
    linger_ms: int = option(
        5,
        "How long a batch waits for more records. Longer makes batches larger and throughput"
        " higher; 0 sends as soon as a connection is free.",
    )
    batch_size: int = option(
        16_384,
        "The size of a full batch. Larger ones compress better and cost less per record, and hold"
        " more of buffer.memory for each partition.",
    )
    buffer_memory: int = option(
        33_554_432,
        "Memory for records that are not delivered yet. When it is used up, send waits"
        " (max.block.ms).",
        low=1,
        high=LONG_MAX,
    )
    compression_type: str = option(
        "none",
        "How batches are compressed. lz4 and snappy cost little CPU, zstd and gzip make the"
        " smallest batches.",
        choices=CODEC_NAMES,
    )
    max_in_flight_requests_per_connection: int = option(
        IN_FLIGHT_MAX,
        "Requests to one broker without an answer. More keep a slow network busy. Without"
        " idempotence, more than 1 lets a retry change the order.",
        low=1,
        high=IN_FLIGHT_MAX,
    )
    max_request_size: int = option(
        1_048_576,
        "The largest batch and request. Topics have a limit of their own (max.message.bytes).",
        low=1,
    )
    retries: int = option(
        INT_MAX,
        "How often a batch is sent again. Leave it, and bound the time by delivery.timeout.ms.",
    )
    delivery_timeout_ms: int = option(
        120_000,
        "How long a record may take from send to its acknowledgement; then it has failed. At least"
        " linger.ms + request.timeout.ms.",
        low=1,
    )
    max_block_ms: int = option(
        60_000,
        "How long send waits for memory, and a call for an answer about a topic or a transaction.",
    )
    transactional_id: str = option(
        "",
        "The name of this producer over its restarts, with which it can send transactions. One"
        " producer at a time has it: the next one fences it. Needs enable.idempotence.",
    )
    transaction_timeout_ms: int = option(
        60_000,
        "How long a transaction may be open; then its coordinator aborts it. Longer keeps readers"
        " of committed records waiting longer after a crash.",
        low=1,
    )
    statistics_interval_ms: int = option(
        10_000, "How often on_statistics is called, where it is given.", low=1
    )

    @property
    def call_timeout_ms(self) -> int:
        return self.max_block_ms

    @property
    def may_create_topics(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        if self.enable_idempotence and self.acks != ACKS_ALL:
            raise ConfigError("enable.idempotence needs acks=all")
        if self.enable_idempotence and not self.retries:
            raise ConfigError("enable.idempotence needs retries of at least 1")
        if self.transactional_id and not self.enable_idempotence:
            raise ConfigError(
                "transactional.id needs enable.idempotence, and so acks=all and retries"
            )
        shortest = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms < shortest:
            raise ConfigError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, but must be at least"
                f" linger.ms + request.timeout.ms, which is {shortest}"
            )


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """A consumer's. `fetch.max.bytes` bounds an answer, and what waits to be returned.

    Without `group.id` nothing is committed. The one strategy by default differs from Kafka, whose
    default takes everything from everybody in each rebalance: members of one group must have a
    strategy in common, and if any of a member's is not cooperative, none works as if it were.
    """

    auto_offset_reset: str = option(
        "latest",
        "Where to begin without a committed offset, and where to go on if the log no longer has the"
        " offset: earliest reads what is there, latest only what comes after, none raises"
        " OffsetOutOfRange.",
        choices=("latest", "earliest", "none"),
    )
    fetch_min_bytes: int = option(
        1,
        "A broker answers a fetch once it has so much, or after fetch.max.wait.ms. More makes"
        " fewer, larger answers, and delays records.",
    )
    fetch_max_wait_ms: int = option(
        500, "How long a broker may wait for fetch.min.bytes. Below request.timeout.ms."
    )
    fetch_max_bytes: int = option(
        52_428_800, "The most an answer has, and the most that waits to be returned.", low=1
    )
    max_partition_fetch_bytes: int = option(
        1_048_576,
        "The most of one partition in an answer; a larger first batch comes all the same. Less"
        " shares an answer more evenly among partitions.",
        low=1,
    )
    isolation_level: str = option(
        "read_uncommitted",
        "Which records of transactions are returned. read_committed: those of committed ones, and"
        " nothing behind the first record of one that is open. read_uncommitted: all, also those of"
        " aborted ones.",
        choices=ISOLATION_LEVELS,
    )
    max_poll_records: int = option(
        500,
        "The most records that poll returns. What is fetched beyond that waits, so a small number"
        " costs calls and no requests.",
        low=1,
    )
    check_crcs: bool = option(
        True,
        "Whether the checksum of each batch is compared. Off saves some CPU and may return damaged"
        " records.",
    )
    skip_undecodable_batches: bool = option(
        False,
        "Whether batches are left out that a producer sent and no client can decode, with a warning"
        " for each. Off: a poll raises CorruptRecords. Damaged bytes are never left out.",
    )
    default_api_timeout_ms: int = option(
        60_000, "How long a call such as commit or end_offsets waits before it gives up."
    )
    group_id: str = option(
        "", "The group whose members share the partitions. Without it nothing is committed."
    )
    group_instance_id: str = option(
        "",
        "A name that this member keeps over a restart (static membership): within"
        " session.timeout.ms it gets its partitions back without a rebalance, and until then nobody"
        " else reads them.",
    )
    enable_auto_commit: bool = option(
        True,
        "Whether what the application has come back from is committed by itself. Off: call commit"
        " after your work.",
    )
    auto_commit_interval_ms: int = option(
        5_000,
        "How often that is done. Shorter means fewer records read again after a crash.",
        low=1,
    )
    session_timeout_ms: int = option(
        45_000,
        "After so long without a heartbeat a member is put out, and others get its partitions."
        " Short finds a dead member sooner, and puts out one whose machine was only busy.",
        low=1,
    )
    heartbeat_interval_ms: int = option(
        3_000,
        "How often a heartbeat is sent, which is also how soon a member hears of a rebalance. Below"
        " session.timeout.ms, a third of it at most.",
        low=1,
    )
    max_poll_interval_ms: int = option(
        300_000,
        "The longest time between two polls. A member that takes longer leaves its group, for it"
        " may be stuck; choose it above the time that max.poll.records of your records take.",
        low=1,
    )
    partition_assignment_strategy: tuple[str, ...] = option(
        ("cooperative-sticky",),
        "How a group shares out partitions, in order of preference. cooperative-sticky takes away"
        " only what moves. Members of one group need one in common; if one of a member's is not"
        " cooperative, none works as if it were.",
        choices=ASSIGNORS,
    )
    statistics_interval_ms: int = option(
        10_000, "How often on_statistics is called, where it is given.", low=1
    )

    @property
    def call_timeout_ms(self) -> int:
        return self.default_api_timeout_ms

    @property
    def isolation(self) -> int:
        return ISOLATION_LEVELS[self.isolation_level]

    @property
    def longest_poll_ms(self) -> int:
        return self.fetch_max_wait_ms

    @property
    def longest_join_ms(self) -> int:
        return self.max_poll_interval_ms + JOIN_SLACK_MS

    def check(self) -> None:
        super().check()
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise ConfigError(
                f"request.timeout.ms is {self.request_timeout_ms}, but must be above"
                f" fetch.max.wait.ms, which is {self.fetch_max_wait_ms}"
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat.interval.ms is {self.heartbeat_interval_ms}, but must be below"
                f" session.timeout.ms, which is {self.session_timeout_ms}"
            )
        if self.group_instance_id and not self.group_id:
            raise ConfigError("group.instance.id names a member of a group: give group.id, too")


@dataclass(frozen=True, kw_only=True)
class AdminOptions(ClientOptions):
    """An admin client's."""

    default_api_timeout_ms: int = option(
        60_000,
        "How long a call tries before it raises ClientTimeout. The controller is asked to answer"
        " within nine tenths of it.",
    )

    @property
    def call_timeout_ms(self) -> int:
        return self.default_api_timeout_ms


@dataclass(frozen=True)
class Seams:
    """What a simulation replaces: the network, chance, and the wall clock (milliseconds)."""

    network: Network
    rng: Random
    wall_ms: Callable[[], int]


def default_seams() -> Seams:
    """The real network, generator and clock."""
    return Seams(TcpNetwork(), Random(), lambda: time.time_ns() // 1_000_000)


Options = TypeVar("Options", bound=ClientOptions)


def read_options(kind: type[Options], servers: Servers, given: Mapping[str, object]) -> Options:
    """Return the options as a frozen `kind`. Raises `ConfigError`, whose text is for the user."""
    if isinstance(servers, Mapping):
        first: Mapping[str, object] = servers
    else:
        first = {} if servers is None else {"bootstrap.servers": servers}
    described = {each.name: each for each in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in [*first.items(), *given.items()]:
        attribute = name.replace(".", "_")
        if attribute not in described:
            raise _unknown(kind, name, described)
        metadata = described[attribute].metadata
        values[attribute] = _read_value(attribute, described[attribute].default, value, metadata)
    if issubclass(kind, ProducerOptions) and "enable_idempotence" not in values:
        values["enable_idempotence"] = (
            values.get("acks", ACKS_ALL) == ACKS_ALL and values.get("retries", INT_MAX) > 0
        )
    options = kind(**values)
    options.check()
    return options


def _unknown(kind: type[ClientOptions], name: str, described: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name: what to do instead, as far as that is known, or else
    the option that was perhaps meant."""
    plain = name.replace(".", "_")
    text = f"{_named(kind)} has no option {name!r}"
    if (sentence := foreign_option(plain)) is not None:
        return ConfigError(f"{text}: {sentence}")
    for other in (ProducerOptions, ConsumerOptions):
        if plain in {each.name for each in fields(other)}:
            return ConfigError(f"{text}: it is one of {_named(other)}")
    near = get_close_matches(plain, list(described), n=1, cutoff=NEAR)
    if not near and len(plain) >= WORD_CHARS_MIN:
        near = [each for each in described if f"_{plain}_" in f"_{each}_"][:1]
    is_keyword = "_" in name and "." not in name
    meant = [each if is_keyword else each.replace("_", ".") for each in near]
    return ConfigError(text + (f"; the nearest is {meant[0]!r}" if meant else ""))


def _named(kind: type[ClientOptions]) -> str:
    """Return the name of the client that has these options, for a sentence."""
    client = kind.__name__.removesuffix("Options").lower()
    return "an admin client" if client == "admin" else f"a {client}"


def _read_value(name: str, default: object, value: object, metadata: Mapping[str, Any]) -> object:
    """Return `value` as the type of `default`."""
    choices: tuple[str, ...] = metadata["choices"]
    try:
        if name == "bootstrap_servers":
            return parse_servers(value)
        if isinstance(default, tuple):
            return _read_names(value, choices)
        if choices:
            text = str(value)
            return {"acks": ACKS}.get(name, {}).get(text, text) if text in choices else _refuse()
        if isinstance(default, bool):
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(default, str):
            return value if isinstance(value, str) else _refuse()
        if isinstance(value, bool) or not isinstance(value, int | str):
            return _refuse()
        number = int(value)
        return number if metadata["low"] <= number <= metadata["high"] else _refuse()
    except (ValueError, KeyError):
        takes = _describe_range(name, default, metadata)
        dotted = name.replace("_", ".")
        raise ConfigError(f"{dotted} = {value!r} is not allowed; it takes {takes}") from None


def _read_names(value: object, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Read names separated by commas, or a sequence of them; at least one, and each once."""
    names = value.split(",") if isinstance(value, str) else value
    read = tuple(str(name).strip() for name in names) if isinstance(names, Sequence) else ()
    if not read or len(set(read)) < len(read) or not set(read) <= set(choices):
        raise ValueError
    return read


def _refuse() -> Any:
    raise ValueError


def _describe_range(name: str, default: object, metadata: Mapping[str, Any]) -> str:
    """The allowed values, as text."""
    if metadata["choices"]:
        several = ", several separated by commas" if isinstance(default, tuple) else ""
        return ", ".join(metadata["choices"]) + several
    if name == "bootstrap_servers":
        return "HOST:PORT, several separated by commas"
    if isinstance(default, bool):
        return "true, false"
    if isinstance(default, str):
        return "text"
    low, high = metadata["low"], metadata["high"]
    unit = " (milliseconds)" if name.endswith("_ms") else ""
    return f"{low} to {({INT_MAX: '2^31-1', LONG_MAX: '2^63-1'}).get(high, high)}{unit}"
