"""One frozen `Config` per broker, from the table in `broker.properties`.

`load` joins four sources; for each property the first of flag, environment, file and default that
names it wins, and within a source the finest of its names (ms before minutes before hours). A name
that nobody knows is an error in a file or a flag, with the nearest name that exists. In the
environment it is one warning for all of them: a compose file written for another broker with this
mapping of names shall come up.

`Config.for_topic` lays a topic's own settings over the broker's. What a topic may override, and
how it is checked, comes from the same table; so do the rows that describe a topic and the reference
page (docs/configuration.md, which a test compares). Nothing here reads files or the
environment: the caller hands over text and a mapping.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from minibroker.broker.log.limits import LogLimits
from minibroker.broker.properties import PROPERTIES, SUBJECTS, TOPIC_PROPERTIES
from minibroker.broker.properties.brokers import Connections, Identity, Replication
from minibroker.broker.properties.groups import Groups
from minibroker.broker.properties.listeners import Listeners, derived, problems_of
from minibroker.broker.properties.logs import FlushMode, Segments, TimestampType, Topics, Upkeep
from minibroker.broker.properties.stores import ETCD_DEFAULTS, Stores
from minibroker.broker.property import (
    ETCD,
    ConfigError,
    Kind,
    Property,
    Value,
    attribute_of,
    spelled,
    unknown,
)
from minibroker.protocol.messages.configs import ConfigDescription

__all__ = [
    "Config",
    "ConfigError",
    "Loaded",
    "TopicConfig",
    "environment_name",
    "load",
    "parse_properties",
    "reference_page",
    "topic_property",
]

ENVIRONMENT_PREFIX: Final = "KAFKA_"
TABLE_HEAD: Final = (
    "| property | at a topic | type | default | allowed | |\n|---|---|---|---|---|---|\n"
)
PAGE_HEAD: Final = """\
# Configuration

Every property that a broker reads. This page is made from the table in `broker/properties`;
a test compares the two.

A value comes from the first of these that names the property: a flag of `minibroker start`
(`--set name=value`), the environment (`log.dirs` is `KAFKA_LOG_DIRS`: a dot becomes `_`, an
underscore `__`, a dash `___`), the file given with `--config` (lines of `name=value`), the
default. A name that does not exist is an error in a flag or the file, and a warning in the
environment. `minibroker config show` prints what is in force and where it came from.

A property with a name in the second column is the default of that topic property, which
`minibroker topic create --config name=value` and `minibroker topic alter` set.
A name after "or" counts in the unit that it ends in.
"""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What holds for one topic; each field but the last is the topic property of that name."""

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
    producer_id_expiration_ms: int  # the broker's: no topic overrides it

    def limits(self) -> LogLimits:
        """The part that a log obeys."""
        return LogLimits(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            segment_jitter_ms=self.segment_jitter_ms,
            index_interval_bytes=self.index_interval_bytes,
            index_bytes_max=self.segment_index_bytes,
            batch_bytes_max=self.max_message_bytes,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            file_delete_delay_ms=self.file_delete_delay_ms,
            producer_expiration_ms=self.producer_id_expiration_ms,
            timestamp_type=self.message_timestamp_type,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
        )


assert {attribute_of(name) for name in TOPIC_PROPERTIES} == {
    field.name for field in fields(TopicConfig)[:-1]
}, "TopicConfig and the table name different topic properties"


@dataclass(frozen=True)
class Config(
    Identity, Listeners, Stores, Topics, Replication, Segments, Upkeep, Groups, Connections
):
    """Every property of a broker. `Config()` is the defaults; attributes are the properties'
    names with underscores, units as the names say."""

    def value_of(self, described: Property) -> Value:
        """The value of a property of the table."""
        value: Value = getattr(self, attribute_of(described.name))
        return value

    def for_topic(self, overrides: Mapping[str, str] = NOTHING) -> TopicConfig:
        """The broker's settings under a topic's own. Raises `ConfigError` for a bad override."""
        values = {attribute_of(name): self.value_of(row) for name, row in TOPIC_PROPERTIES.items()}
        for name, text in overrides.items():
            values[attribute_of(name)] = topic_property(name).parse(text, name)
        values["producer_id_expiration_ms"] = self.producer_id_expiration_ms
        return TopicConfig(**values)  # type: ignore[arg-type]  # the table has checked the types

    def describe_topic(self, overrides: Mapping[str, str]) -> tuple[ConfigDescription, ...]:
        """Every property of a topic as it is in force, by name. Raises as `for_topic`."""
        settings = self.for_topic(overrides)
        return tuple(
            ConfigDescription(
                name=name,
                value=row.format(getattr(settings, attribute_of(name))),
                is_default=name not in overrides,
                type=row.kind,
                unit=row.unit,
                documentation=row.sentence,
            )
            for name, row in sorted(TOPIC_PROPERTIES.items())
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A `Config`, where each value came from (by property name), and what is worth a warning."""

    config: Config
    sources: Mapping[str, str]
    warnings: tuple[str, ...]


def topic_property(name: str) -> Property:
    """The property that a topic may set under this name. Raises `ConfigError`."""
    if name not in TOPIC_PROPERTIES:
        raise unknown("topic property", name, TOPIC_PROPERTIES)
    return TOPIC_PROPERTIES[name]


def load(
    file_text: str = "", environ: Mapping[str, str] = NOTHING, flags: Mapping[str, str] = NOTHING
) -> Loaded:
    """Join the sources: flags (property names), the environment, a properties file, defaults.

    Raises `ConfigError` for a name that does not exist, or a value out of its range.
    """
    file = parse_properties(file_text)
    environment = _from_environment(environ)
    for given in (flags, file):
        for name in given:
            if name not in _NAMES:
                raise unknown("property", name, _NAMES)
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for row in PROPERTIES.values():
        sources[row.name] = "default"
        for source, given in (("flag", flags), ("environment", environment), ("file", file)):
            names = [name for name in _names_of(row) if name in given]
            if names:
                values[attribute_of(row.name)] = _parse(row, names[0], given[names[0]])
                sources[row.name] = source
                break
    if str(values.get("metadata_store")).startswith(ETCD):
        for name, value in ETCD_DEFAULTS.items():
            values.setdefault(attribute_of(name), value)
    config = Config(**values)  # type: ignore[arg-type]  # the table has checked the types
    if config.advertised_listeners and sources["listeners"] == "default":
        config = replace(config, listeners=derived(config.advertised_listeners))
        sources["listeners"] = "advertised.listeners"
    for problem in problems_of(config):
        raise ConfigError(problem)
    return Loaded(config, sources, tuple(_warnings(config, environment)))


def parse_properties(text: str) -> dict[str, str]:
    """The `name=value` lines of a properties file; `#` and `!` begin a comment line."""
    given: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError(f"line {number} of the configuration is not name=value: {stripped!r}")
        given[name.strip()] = value.strip()
    return given


def environment_name(name: str) -> str:
    """The environment variable of a property: `log.dirs` is KAFKA_LOG_DIRS."""
    spelled = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return ENVIRONMENT_PREFIX + spelled.upper()


def reference_page() -> str:
    """docs/configuration.md."""
    sections = [PAGE_HEAD]
    for subject in SUBJECTS:
        title, _, rest = (subject.__doc__ or "").partition(":")
        rows = "".join(_reference_row(field.metadata["property"]) for field in fields(subject))
        sections.append(f"## {title}\n\n{rest.strip().capitalize()}\n\n{TABLE_HEAD}{rows}")
    return "\n".join(sections)


def _reference_row(row: Property) -> str:
    names = [f"`{row.name}`", *(f"or `{name}`" for name, _ in row.aliases)]
    default = row.format(row.default) or "none"
    if row.kind is Kind.INT:
        default = f"{spelled(int(default))} {row.unit}".strip()
    topic = f"`{row.topic_name}`" if row.topic_name else ""
    cells = ("<br>".join(names), topic, str(row.kind), default, row.range, row.sentence)
    return f"| {' | '.join(cells)} |\n"


def _warnings(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """One warning for all that a configuration written for Kafka says in vain."""
    vain = [environment_name(name) for name in sorted(environment.keys() - _NAMES)]
    vain += [
        f"the listener {one.name} (there is no quorum of controllers to listen for)"
        for one in config.listeners
        if one.name in config.controller_listener_names
    ]
    if vain:
        yield f"without meaning here, and left out: {', '.join(vain)}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with our prefix, by property name."""
    return {
        _property_name(name.removeprefix(ENVIRONMENT_PREFIX)): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def _property_name(variable: str) -> str:
    # "___" stands for "-", "__" for "_", "_" for "."; the longest is read first.
    signs = {"___": "-", "__": "_", "_": "."}
    return re.sub("_{1,3}", lambda found: signs[found.group()], variable.lower())


def _names_of(row: Property) -> list[str]:
    """All names of a property, the finest unit first."""
    return [row.name, *(name for name, _ in sorted(row.aliases, key=lambda alias: alias[1]))]


def _parse(row: Property, name: str, text: str) -> Value:
    factor = dict(row.aliases).get(name, 1)
    number = text.strip()
    if factor > 1 and number.isdecimal():
        number = str(int(number) * factor)
    return row.parse(number, name)


_NAMES: Final = frozenset(name for row in PROPERTIES.values() for name in _names_of(row))
