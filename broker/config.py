"""One frozen `Config` per broker, from the table in `broker.properties`.

`load` joins four sources; for each property the first of flag, environment, file and default that
names it wins, and within a source the finest of its names (ms before minutes before hours). A name
that is not in the table is an error in a file or a flag, which says the nearest name that is. In
the environment all such names give one warning: a compose file that was written for Kafka should
work.

`Config.for_topic` lays a topic's own settings over the broker's. What a topic may override, and
how it is checked, comes from the same table; so do the rows that describe a topic, and the
reference page (`config_page`). Nothing here reads files or the environment: the caller passes a
file as parsed by `config_sources`, and the environment as a mapping.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from minibroker.broker.config_property import (
    ETCD,
    PROBLEMS_MAX,
    ConfigError,
    Kind,
    Property,
    Value,
    attribute_of,
    shown,
    unknown,
)
from minibroker.broker.config_sources import environment_name, from_environment
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.properties import PROPERTIES, TOPIC_PROPERTIES
from minibroker.broker.properties.brokers import Connections, Identity, Leadership, Replication
from minibroker.broker.properties.group_settings import (
    GROUP_PROPERTIES,
    GroupSettings,
    milliseconds,
)
from minibroker.broker.properties.groups import Groups
from minibroker.broker.properties.kept import (
    FLUSH_MESSAGES,
    KEPT_PROPERTIES,
    REFUSED_PROPERTIES,
)
from minibroker.broker.properties.listeners import (
    Listeners,
    derived,
    problems_of,
    taken_by_http,
)
from minibroker.broker.properties.logs import (
    Compaction,
    FlushMode,
    Segments,
    TimestampType,
    Topics,
    Upkeep,
)
from minibroker.broker.properties.observation import Observation
from minibroker.broker.properties.quotas import (
    DYNAMIC_PROPERTIES,
    FOLLOWER_RATE,
    LEADER_RATE,
    MOVES_RATE,
    Quotas,
    is_listed,
    rate_limit,
)
from minibroker.broker.properties.relations import unmet
from minibroker.broker.properties.stores import ETCD_DEFAULTS, Stores
from minibroker.broker.properties.transactions import Transactions
from minibroker.protocol.constants import INTERNAL_TOPICS, OFFSETS_TOPIC, ConfigSource
from minibroker.protocol.messages.config_descriptions import ConfigDescription, ConfigSynonym

__all__ = [
    "DYNAMIC_PROPERTIES",
    "Config",
    "ConfigError",
    "Loaded",
    "TopicConfig",
    "load",
    "topic_property",
]

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
SILENCE_LOOK_S_MIN: Final = 0.05  # no followers are looked at, and keep alive, more often


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of a topic; each field but the last is a topic property."""

    min_insync_replicas: int
    unclean_leader_election_enable: bool
    flush: FlushMode
    flush_ms: int
    compression_type: str
    max_message_bytes: int
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    index_interval_bytes: int
    segment_index_bytes: int
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    leader_replication_throttled_replicas: str
    follower_replication_throttled_replicas: str
    producer_id_expiration_ms: int  # the broker's; a topic cannot override it

    def throttles_leader(self, partition: int, broker_id: int) -> bool:
        """Whether what this broker sends as the leader of a partition counts in its quota."""
        return is_listed(self.leader_replication_throttled_replicas, partition, broker_id)

    def throttles_follower(self, partition: int, broker_id: int) -> bool:
        """Whether what this broker copies of a partition as a follower counts in its quota."""
        return is_listed(self.follower_replication_throttled_replicas, partition, broker_id)

    @property
    def is_compacted(self) -> bool:
        """Whether compaction keeps the last record of each key."""
        return "compact" in self.cleanup_policy.split(",")

    @property
    def does_delete(self) -> bool:
        """Whether records are deleted by their age, and by request."""
        return "delete" in self.cleanup_policy.split(",")

    def limits(self) -> LogLimits:
        """Return the settings that a log uses."""
        segment_ms = self.segment_ms
        if self.is_compacted:  # what lies in the active segment is not compacted
            segment_ms = min(segment_ms, self.max_compaction_lag_ms)
        return LogLimits(
            segment_bytes=self.segment_bytes,
            segment_ms=segment_ms,
            segment_jitter_ms=self.segment_jitter_ms,
            index_interval_bytes=self.index_interval_bytes,
            index_bytes_max=self.segment_index_bytes,
            batch_bytes_max=self.max_message_bytes,
            retention_ms=self.retention_ms if self.does_delete else -1,
            retention_bytes=self.retention_bytes if self.does_delete else -1,
            file_delete_delay_ms=self.file_delete_delay_ms,
            producer_expiration_ms=self.producer_id_expiration_ms,
            timestamp_type=self.message_timestamp_type,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            is_compacted=self.is_compacted,
            compaction_lag_min_ms=self.min_compaction_lag_ms,
            compaction_lag_max_ms=self.max_compaction_lag_ms,
            cleanable_dirty_ratio_min=self.min_cleanable_dirty_ratio,
            delete_retention_ms=self.delete_retention_ms,
        )


assert {attribute_of(name) for name in TOPIC_PROPERTIES} == {
    field.name for field in fields(TopicConfig)[:-1]
}, "TopicConfig and the table name different topic properties"


@dataclass(frozen=True)
class Config(
    Identity,
    Listeners,
    Stores,
    Topics,
    Replication,
    Leadership,
    Quotas,
    Segments,
    Compaction,
    Upkeep,
    Groups,
    Transactions,
    Connections,
    Observation,
):
    """Every property of a broker. `Config()` has the defaults. Attributes are the properties' names
    with underscores; their units are in the names."""

    def value_of(self, described: Property) -> Value:
        """Return the value of a property."""
        value: Value = getattr(self, attribute_of(described.name))
        return value

    @property
    def fence_timeout_ms(self) -> int:
        """After how long without an answer the controller fences this broker."""
        usual = self.broker_session_timeout_ms + 4 * self.broker_heartbeat_interval_ms
        return self.broker_fence_timeout_ms or usual

    @property
    def follower_silence_s(self) -> float:
        """How long an in-sync follower that lacks records may send no FETCH."""
        return min(self.fence_timeout_ms, self.replica_lag_time_max_ms) / 1000

    @property
    def follower_silence_interval_s(self) -> float:
        """How often a leader looks for such followers."""
        return max(self.follower_silence_s / 8, SILENCE_LOOK_S_MIN)

    @property
    def follower_fetch_interval_s(self) -> float:
        """The longest time between two FETCH of a follower, so that it does not count as silent."""
        return max(self.follower_silence_s / 4, SILENCE_LOOK_S_MIN)

    def for_topic(self, overrides: Mapping[str, str] = NOTHING) -> TopicConfig:
        """Return a topic's effective settings. Raises `ConfigError` for a bad override."""
        values = {attribute_of(name): self.value_of(row) for name, row in TOPIC_PROPERTIES.items()}
        for name, text in overrides.items():
            value = topic_property(name).parse(text, name)
            if name in TOPIC_PROPERTIES:
                values[attribute_of(name)] = value
            elif name == FLUSH_MESSAGES and value != KEPT_PROPERTIES[name].default:
                _check_flush_messages(text, overrides)
        values["producer_id_expiration_ms"] = self.producer_id_expiration_ms
        return TopicConfig(**values)  # type: ignore[arg-type]  # the table has checked the types

    def own_settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings of its own that a topic has from its creation on. They hold for a
        topic that was created by an older version, too."""
        if topic not in INTERNAL_TOPICS:
            return NOTHING
        segment_bytes = self.transaction_state_log_segment_bytes
        if topic == OFFSETS_TOPIC:
            segment_bytes = self.offsets_topic_segment_bytes
        return {
            "cleanup.policy": "compact",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "segment.bytes": str(segment_bytes),
        }

    def describe_topic(
        self, overrides: Mapping[str, str], *, with_synonyms: bool = False
    ) -> tuple[ConfigDescription, ...]:
        """Return a topic's effective properties, by name. Raises as `for_topic`."""
        settings = self.for_topic(overrides)
        read = {
            name: (row, getattr(settings, attribute_of(name)), self._source_of(row))
            for name, row in TOPIC_PROPERTIES.items()
        }
        kept = {
            name: (row, _kept_value(row, overrides), ConfigSource.DEFAULT)
            for name, row in KEPT_PROPERTIES.items()
        }
        return tuple(
            ConfigDescription(
                name=name,
                value=row.format(value),
                is_default=name not in overrides,
                type=row.kind,
                unit=row.unit,
                documentation=row.sentence,
                source=ConfigSource.TOPIC if name in overrides else source,
                synonyms=self._synonyms(name, row, overrides) if with_synonyms else (),
            )
            for name, (row, value, source) in sorted((read | kept).items())
        )

    def check_group(self, overrides: Mapping[str, str]) -> None:
        """Check a group's own settings. Raises `ConfigError`."""
        for name, text in overrides.items():
            if name not in GROUP_PROPERTIES:
                known = ", ".join(GROUP_PROPERTIES)
                raise ConfigError(f"{name:.99} is no setting of a group; there are {known}")
            if milliseconds(text) is None:
                raise ConfigError(f"{name} is {text[:20]!r}, not a number of milliseconds")
        settings = self.for_group(overrides)
        if overrides and settings.heartbeat_interval_ms >= settings.session_timeout_ms:
            what = f"a heartbeat every {settings.heartbeat_interval_ms} ms comes too late"
            raise ConfigError(f"{what}: the session ends after {settings.session_timeout_ms} ms")

    def for_group(self, overrides: Mapping[str, str]) -> GroupSettings:
        """Return the settings in force for a group with these own ones. What this broker cannot
        read, because another kind of broker has stored it, is skipped."""
        found = {
            row.field: milliseconds(overrides.get(name, "")) or getattr(self, row.broker_attribute)
            for name, row in GROUP_PROPERTIES.items()
        }
        return GroupSettings(**found)

    def describe_group(
        self, overrides: Mapping[str, str], *, with_synonyms: bool = False
    ) -> tuple[ConfigDescription, ...]:
        """Return a group's effective settings, by name."""
        settings = self.for_group(overrides)
        return tuple(
            ConfigDescription(
                name,
                str(getattr(settings, row.field)),
                is_default=name not in overrides,
                type=Kind.INT,
                unit="ms",
                documentation=row.sentence,
                source=ConfigSource.GROUP if name in overrides else ConfigSource.DEFAULT,
                synonyms=self._group_synonyms(name, overrides) if with_synonyms else (),
            )
            for name, row in sorted(GROUP_PROPERTIES.items())
        )

    def _group_synonyms(self, name: str, overrides: Mapping[str, str]) -> tuple[ConfigSynonym, ...]:
        """Return the values of a group's setting by their precedence: the group's, the broker's and
        the default."""
        own = (
            [ConfigSynonym(name, overrides[name], ConfigSource.GROUP)] if name in overrides else []
        )
        return (*own, *self._broker_synonyms(PROPERTIES[f"group.{name}"]))

    def _synonyms(
        self, name: str, row: Property, overrides: Mapping[str, str]
    ) -> tuple[ConfigSynonym, ...]:
        """Return the values of a topic's property by their precedence: the topic's, the broker's
        and the default."""
        own = (
            [ConfigSynonym(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        )
        return (*own, *self._broker_synonyms(row))

    def _broker_synonyms(self, row: Property) -> tuple[ConfigSynonym, ...]:
        """Return the values of a broker's property, as `_synonyms`."""
        default = ConfigSynonym(row.name, row.format(row.default))
        if row.name not in PROPERTIES or self._source_of(row) == ConfigSource.DEFAULT:
            return (default,)
        value = row.format(self.value_of(row))
        return ConfigSynonym(row.name, value, ConfigSource.BROKER), default

    def check_dynamic(self, name: str, text: str) -> None:
        """Check a setting of `DYNAMIC_PROPERTIES`. Raises `ConfigError`."""
        PROPERTIES[name].parse(text)

    def replication_limits(self, overrides: Mapping[str, str]) -> tuple[float, float, float]:
        """Return the limits (bytes/s) of the leader's quota, the follower's, and that of moves
        between log directories, with the settings that the broker got while it runs; infinity for
        none."""
        return (
            rate_limit(overrides, LEADER_RATE, self.leader_replication_throttled_rate),
            rate_limit(overrides, FOLLOWER_RATE, self.follower_replication_throttled_rate),
            rate_limit(overrides, MOVES_RATE, self.replica_alter_log_dirs_io_max_bytes_per_second),
        )

    def describe_broker(
        self, overrides: Mapping[str, str] = NOTHING, *, with_synonyms: bool = False
    ) -> tuple[ConfigDescription, ...]:
        """Return the broker's properties, by name. `overrides` are those that were altered while
        it runs."""
        return tuple(
            ConfigDescription(
                name=name,
                value=overrides.get(name, row.format(self.value_of(row))),
                is_default=name not in overrides and self._source_of(row) == ConfigSource.DEFAULT,
                type=row.kind,
                unit=row.unit,
                documentation=row.sentence,
                source=(ConfigSource.DYNAMIC_BROKER if name in overrides else self._source_of(row)),
                is_read_only=name not in DYNAMIC_PROPERTIES,
                synonyms=(
                    (*_dynamic_synonyms(name, overrides), *self._broker_synonyms(row))
                    if with_synonyms
                    else ()
                ),
            )
            for name, row in sorted(PROPERTIES.items())
        )

    def _source_of(self, row: Property) -> ConfigSource:
        is_default = self.value_of(row) == row.default
        return ConfigSource.DEFAULT if is_default else ConfigSource.BROKER


@dataclass(frozen=True, slots=True)
class Loaded:
    """A `Config`, the source of each value by property name, and the warnings."""

    config: Config
    sources: Mapping[str, str]
    warnings: tuple[str, ...]


def _check_flush_messages(text: str, overrides: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the topic itself flushes each record: the default may differ from
    broker to broker."""
    if overrides.get("flush") != "always":
        raise ConfigError(
            f"{FLUSH_MESSAGES} = {shown(text)} is kept only beside flush=always, which flushes each"
            " record before it is acknowledged"
        )


def _dynamic_synonyms(name: str, overrides: Mapping[str, str]) -> tuple[ConfigSynonym, ...]:
    if name not in overrides:
        return ()
    return (ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_BROKER),)


def _kept_value(row: Property, overrides: Mapping[str, str]) -> Value:
    text = overrides.get(row.name)
    return row.default if text is None else row.parse(text)


def topic_property(name: str) -> Property:
    """Return the topic property of this name, also one that is only kept. Raises `ConfigError`."""
    if row := TOPIC_PROPERTIES.get(name) or KEPT_PROPERTIES.get(name):
        return row
    if name in REFUSED_PROPERTIES:
        raise ConfigError(f"{name} cannot be set: {REFUSED_PROPERTIES[name]}")
    raise unknown("topic property", name, (*TOPIC_PROPERTIES, *KEPT_PROPERTIES))


def load(
    file: Mapping[str, str] = NOTHING,
    environ: Mapping[str, str] = NOTHING,
    flags: Mapping[str, str] = NOTHING,
) -> Loaded:
    """Join the sources. `flags` and `file` are by property name, `environ` by variable.

    Raises `ConfigError` with every problem: unknown names, values out of range, and values that
    contradict each other.
    """
    environment = from_environment(environ)
    given = {"flag": flags, "environment": environment, "file": file}
    unknown_names = [name for source in (flags, file) for name in source if name not in _NAMES]
    problems = [str(unknown("property", name, _NAMES)) for name in unknown_names[:PROBLEMS_MAX]]
    if len(unknown_names) > PROBLEMS_MAX:
        problems.append(f"{len(unknown_names) - PROBLEMS_MAX} more unknown properties")
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    bad: set[str] = set()
    for row in PROPERTIES.values():
        try:
            sources[row.name] = _read_value(row, given, values)
        except ConfigError as error:
            problems += error.problems
            bad.add(row.name)
    if str(values.get("metadata_store")).startswith(ETCD):
        for name, value in ETCD_DEFAULTS.items():
            values.setdefault(attribute_of(name), value)
    config = Config(**values)  # type: ignore[arg-type]  # the table has checked the types
    if config.advertised_listeners and sources.get("listeners") == "default":
        config = replace(config, listeners=derived(config.advertised_listeners))
        sources["listeners"] = "from advertised.listeners"
    problems += _at_odds(config, bad)
    if problems:
        raise ConfigError(*problems)
    return Loaded(config, sources, tuple(_warnings(config, environment)))


def _read_value(
    row: Property, given: Mapping[str, Mapping[str, str]], values: dict[str, Value]
) -> str:
    """Put the value of a property into `values`; return its source."""
    for source, texts in given.items():
        for name in _names_of(row):
            if name in texts:
                shown = environment_name(name) if source == "environment" else name
                values[attribute_of(row.name)] = _parse(row, name, texts[name], shown)
                return source
    return "default"


def _at_odds(config: Config, bad: Container[str]) -> Iterator[str]:
    """Describe values that contradict each other, except those in `bad`, which have an error."""

    def number(name: str) -> int | None:
        value = None if name in bad else config.value_of(PROPERTIES[name])
        return value if isinstance(value, int) else None

    yield from unmet(number)
    if not any(field.metadata["property"].name in bad for field in fields(Listeners)):
        yield from problems_of(config)
        if config.http_listener is not None:
            yield from taken_by_http(config, config.http_listener)


def _warnings(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Make one warning about all settings of Kafka that have no effect."""
    vain = [environment_name(name) for name in sorted(environment.keys() - _NAMES)]
    vain += [
        f"the listener {one.name} (there is no quorum of controllers to listen for)"
        for one in config.listeners
        if one.name in config.controller_listener_names
    ]
    if vain:
        yield f"without meaning here, and left out: {', '.join(vain)}"


def _names_of(row: Property) -> list[str]:
    """Return all names of a property, that of the finest unit first."""
    return [row.name, *(name for name, _ in sorted(row.aliases, key=lambda alias: alias[1]))]


def _parse(row: Property, name: str, text: str, shown: str) -> Value:
    factor = dict(row.aliases).get(name, 1)
    number = text.strip()
    if factor > 1 and number.isdecimal():
        number = str(int(number) * factor)
    return row.parse(number, shown)


_NAMES: Final = frozenset(name for row in PROPERTIES.values() for name in _names_of(row))
