"""ALTER_CONFIGS for groups: which changes are allowed, and the settings after them."""

from collections.abc import Iterable, Mapping
from typing import Final

from minibroker.broker.config import Config
from minibroker.broker.errors import Refused
from minibroker.protocol.constants import ConfigOperation, ErrorCode
from minibroker.protocol.messages.configs import ConfigChange

GROUPS_MAX: Final = 500  # that have settings of their own: each broker is sent all of them
GROUP_ID_CHARS_MAX: Final = 255


def altered_group(
    config: Config,
    groups: Mapping[str, Mapping[str, str]],
    group_id: str,
    changes: Iterable[ConfigChange],
    *,
    reset_others: bool,
) -> dict[str, str]:
    """Return a group's own settings after the changes. The group need not exist. Raises
    `ConfigError` and `Refused`."""
    if not 0 < len(group_id) <= GROUP_ID_CHARS_MAX:
        what = f"the id of a group with settings has 1 to {GROUP_ID_CHARS_MAX} characters"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    own = {} if reset_others else dict(groups.get(group_id, {}))
    for change in changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            what = f"{change.name!r} is no list: it can be set or deleted only"
            raise Refused(ErrorCode.INVALID_CONFIG, what)
        own.pop(change.name, None)
        if change.operation == ConfigOperation.SET and change.value is not None:
            own[change.name] = change.value
    config.check_group(own)
    if own and group_id not in groups and len(groups) >= GROUPS_MAX:
        raise Refused(ErrorCode.POLICY_VIOLATION, f"{GROUPS_MAX} groups have settings already")
    return own
