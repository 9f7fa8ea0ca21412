"""ALTER_CONFIGS for brokers: which changes are allowed, and the settings after them.

Only the rates of the replication quotas can be changed while a broker runs. They hold until they
are changed again, also after a restart, and go with the broker when it is unregistered.
"""

from minibroker.broker.config import DYNAMIC_PROPERTIES, Config
from minibroker.broker.controller.state import State
from minibroker.broker.errors import Refused
from minibroker.protocol.constants import ConfigOperation, ErrorCode
from minibroker.protocol.messages.configs import TopicConfigChanges


def altered_broker(
    config: Config, state: State, wanted: TopicConfigChanges, *, reset_others: bool
) -> tuple[int, dict[str, str]]:
    """Return a broker's id, and its own settings after the changes. Raises `ConfigError` and
    `Refused`."""
    name = wanted.name
    known = {str(node): node for node in state.admissions}
    if not name:
        what = "name a broker: there are no settings of all brokers together"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    if name not in known:
        what = f"there is no broker {name[:99]!r}; known are {', '.join(sorted(known))}"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    own = {} if reset_others else dict(state.broker_configs.get(known[name], {}))
    for change in wanted.changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            what = f"{change.name!r} is no list: it can be set or deleted only"
            raise Refused(ErrorCode.INVALID_CONFIG, what)
        if change.operation == ConfigOperation.DELETE:
            # Of any name, as in Kafka: kafka-reassign-partitions deletes every rate that it knows.
            own.pop(change.name, None)
            continue
        if change.name not in DYNAMIC_PROPERTIES:
            what = (
                f"{change.name[:99]} cannot be changed while a broker runs: change its file and"
                f" restart it; what can be changed are {', '.join(DYNAMIC_PROPERTIES)}"
            )
            raise Refused(ErrorCode.INVALID_REQUEST, what)
        own.pop(change.name, None)
        if change.value is not None:
            config.check_dynamic(change.name, change.value)
            own[change.name] = change.value.strip()
    return known[name], own
