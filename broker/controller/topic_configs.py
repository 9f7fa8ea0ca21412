"""ALTER_CONFIGS for topics: which changes are allowed, and the settings after them.

A topic has only those settings of its own that were set for it; the broker's apply otherwise. The
topic of the committed offsets has settings of its own from its creation on: its defaults.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from minibroker.broker.config import Config, topic_property
from minibroker.broker.errors import Refused
from minibroker.protocol.constants import (
    ConfigOperation,
    ConfigResourceType,
    ErrorCode,
)
from minibroker.protocol.messages.configs import ConfigChange, TopicConfigChanges

ALTERABLE_TYPES: Final = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.GROUP,
    ConfigResourceType.BROKER,
)


def check_alterable(wanted: TopicConfigChanges) -> None:
    """Check that these are settings of a topic, a group or a broker, each named once. Raises
    `Refused`."""
    if wanted.resource_type not in ALTERABLE_TYPES:
        what = f"there is no resource type {wanted.resource_type} that has settings here"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    names: set[str] = set()
    for change in wanted.changes:
        if change.name in names:
            what = f"{change.name!r} is changed more than once"
            raise Refused(ErrorCode.INVALID_REQUEST, what)
        names.add(change.name)


def altered(
    config: Config,
    before: Mapping[str, str],
    defaults: Mapping[str, str],
    changes: Iterable[ConfigChange],
) -> dict[str, str]:
    """Return a topic's own settings after the changes. Raises `ConfigError` and `Refused`."""
    configs = dict(before)
    for change in changes:
        value = _value(config, configs, change)
        if value is not None:
            configs[change.name] = value
        elif change.name in defaults:
            configs[change.name] = defaults[change.name]
        else:
            configs.pop(change.name, None)
    config.for_topic(configs)
    return configs


def _value(config: Config, configs: Mapping[str, str], change: ConfigChange) -> str | None:
    """Return the new value of a setting; None stands for its default."""
    row = topic_property(change.name)
    match change.operation:
        case ConfigOperation.SET:
            return change.value
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            if not row.is_list:
                what = f"{change.name!r} is no list: it can be set or deleted only"
                raise Refused(ErrorCode.INVALID_CONFIG, what)
            present = configs.get(change.name, row.format(config.value_of(row)))
            words = present.split(",") if present else []
            named = [word.strip() for word in (change.value or "").split(",")]
            if change.operation == ConfigOperation.APPEND:
                return ",".join(dict.fromkeys((*words, *named)))
            return ",".join(word for word in words if word not in named)
        case _:
            what = f"there is no operation {change.operation}"
            raise Refused(ErrorCode.INVALID_REQUEST, what)
