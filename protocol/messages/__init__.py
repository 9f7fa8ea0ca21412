"""Requests and answers as frozen dataclasses, one file per subject; `APIS` pairs them by api key.

A message's module is imported on first use: a command that sends one request does not import all.

The wires only convert bytes to and from these. Rules for a field: it has a default unless no
request makes sense without it, new fields are added at the end only, and none is ever removed or
given another meaning, so that an older peer reads a newer message (docs/wire.md, "Evolution").
Offsets count records; times are milliseconds; sizes are bytes; `error` is an `ErrorCode`.
"""

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Final, Generic, NamedTuple, TypeVar

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError

Response = TypeVar("Response", covariant=True)


class Request(Generic[Response]):
    """A request. The type parameter is the type of its answer, which `call` returns."""

    __slots__ = ()


class RequestEnvelope(NamedTuple):
    """A request with its header fields. `client_id` may be None; it is for log lines.

    `version` is that of the wire on which the request arrived.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Any


class UnsupportedVersion(ProtocolError):
    """The api or the version of a request is not served; the request's body was not read. `more` is
    for the operator who reads the reason."""

    def __init__(self, api_key: int, version: int, correlation_id: int, more: str = "") -> None:
        super().__init__(f"api {api_key} in version {version} is not served{more}")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id


class Api:
    """One api: its message types, and the versions of it that this code supports.

    The types are named after the key: FIND_COORDINATOR has `FindCoordinatorRequest` and
    `FindCoordinatorResponse`. `module` is the module of this package that defines them.
    """

    version_min: Final = 0
    version_max: Final = 0

    def __init__(self, key: ApiKey, module: str) -> None:
        self._name = key.name.title().replace("_", "")
        self._module = f"{__name__}.{module}"

    @cached_property
    def request(self) -> type:
        """The type of a request."""
        return self._load("Request")

    @cached_property
    def response(self) -> type:
        """The type of an answer."""
        return self._load("Response")

    def _load(self, suffix: str) -> type:
        found = getattr(import_module(self._module), self._name + suffix)
        assert isinstance(found, type)
        return found


_MODULES: Final = {
    ApiKey.PRODUCE: "produce",
    ApiKey.FETCH: "fetch",
    ApiKey.LIST_OFFSETS: "offsets",
    ApiKey.METADATA: "metadata",
    ApiKey.LEADER_AND_ISR: "control",
    ApiKey.STOP_REPLICA: "control",
    ApiKey.UPDATE_METADATA: "control",
    ApiKey.CONTROLLED_SHUTDOWN: "control",
    ApiKey.OFFSET_COMMIT: "group_offsets",
    ApiKey.OFFSET_FETCH: "group_offsets",
    ApiKey.FIND_COORDINATOR: "groups",
    ApiKey.JOIN_GROUP: "groups",
    ApiKey.HEARTBEAT: "groups",
    ApiKey.LEAVE_GROUP: "groups",
    ApiKey.SYNC_GROUP: "groups",
    ApiKey.DESCRIBE_GROUPS: "groups",
    ApiKey.LIST_GROUPS: "groups",
    ApiKey.API_VERSIONS: "api_versions",
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "topics",
    ApiKey.DELETE_RECORDS: "delete_records",
    ApiKey.INIT_PRODUCER_ID: "producer_id",
    ApiKey.OFFSETS_FOR_LEADER_EPOCH: "offsets",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions",
    ApiKey.END_TXN: "transactions",
    ApiKey.WRITE_TXN_MARKERS: "transactions",
    ApiKey.TXN_OFFSET_COMMIT: "transactions",
    ApiKey.DESCRIBE_ACLS: "acls",
    ApiKey.DESCRIBE_CONFIGS: "configs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "log_dirs",
    ApiKey.CREATE_PARTITIONS: "topics",
    ApiKey.DELETE_GROUPS: "groups",
    ApiKey.ELECT_LEADERS: "leaders",
    ApiKey.ALTER_CONFIGS: "configs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "reassignments",
    ApiKey.OFFSET_DELETE: "group_offsets",
    ApiKey.ALTER_PARTITION: "control",
    ApiKey.UPDATE_FEATURES: "features",
    ApiKey.DESCRIBE_CLUSTER: "cluster",
    ApiKey.DESCRIBE_PRODUCERS: "transactions",
    ApiKey.UNREGISTER_BROKER: "brokers",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_groups",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer_groups",
    ApiKey.LIST_CONFIG_RESOURCES: "configs",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "cluster",
    ApiKey.DESCRIBE_REPLICAS: "replicas",
    ApiKey.DESCRIBE_BROKER: "brokers",
    ApiKey.PROBE: "control",
    ApiKey.HAND_OVER: "leaders",
}
APIS: Final[Mapping[ApiKey, Api]] = {key: Api(key, module) for key, module in _MODULES.items()}
assert set(APIS) == set(ApiKey), "every api key has its messages"
