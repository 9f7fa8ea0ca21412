"""Descriptions of properties, in the answers to DESCRIBE_CONFIGS and CREATE_TOPICS."""

from dataclasses import dataclass

from minibroker.protocol.constants import ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that a property has, or would have without those before it, and its source."""

    name: str
    value: str = ""
    source: int = ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One property as it is in force; `is_default` where the topic does not set it itself.

    `source`: 1 the topic, 4 the broker's own settings, 5 the default, 8 the group; a broker that is
    told its default counts as 5. `is_read_only`: it cannot be changed while the broker runs. The
    `value` of one that `is_sensitive` is left out. `synonyms` begin with the value in force.
    """

    name: str
    value: str = ""
    is_default: bool = True
    type: str = ""
    unit: str = ""
    documentation: str = ""
    source: int = ConfigSource.DEFAULT
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
