"""DESCRIBE_BROKER: one broker's own state, for health checks and for `minibroker doctor`.

A broker answers it at any time, even before it serves clients. UNREGISTER_BROKER goes to the
controller and removes a broker that will not come back.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_TIMESTAMP
from minibroker.protocol.messages import Request
from minibroker.protocol.types import NamedEndpoint


@dataclass(frozen=True, slots=True)
class DescribeBrokerRequest(Request["DescribeBrokerResponse"]):
    """With `include_machine` the broker also reports its disk and its open files."""

    include_machine: bool = False


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """The current state of machine and program; -1 and "" for unknown values.

    `store` is the address of the broker's metadata store, without secrets. The disk is that of
    `data_directory`. `open_files_max` is the process's limit of open files. Producers' records are
    refused while `disk_free_bytes` is below `disk_free_bytes_min`, or all logs have `log_bytes_max`
    or more; -1 where there is no such limit, and for `log_bytes` then. `offline_directories` are
    the log directories that have failed or are missing, each with the reason.
    """

    software_version: str = ""
    python_version: str = ""
    store: str = ""
    data_directory: str = ""
    disk_free_bytes: int = -1
    disk_total_bytes: int = -1
    open_files: int = -1
    open_files_max: int = -1
    disk_free_bytes_min: int = -1
    log_bytes: int = -1
    log_bytes_max: int = -1
    offline_directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A kind of client: its wire ("msgpack" or "kafka"), and the library and version that it
    reports ("" if none). `connections`: open now. `requests`: received since the broker's start."""

    wire: str
    software: str = ""
    version: str = ""
    connections: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class DefectCount:
    """How often the broker failed to do something (`stage`) for a request of this kind, since its
    start; `place` is the exception and the line that raised it."""

    request: str = ""
    stage: str = ""
    place: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class FarStampedTopic:
    """A topic that got `count` batches, since the broker's start, whose timestamps are more than a
    day from its clock. The last one has `timestamp` (ms), and was appended `age_ms` ago."""

    topic: str
    timestamp: int = NO_TIMESTAMP
    age_ms: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class UncompactedLog:
    """A log of a compacted topic that the broker cannot compact, and why."""

    topic: str
    partition: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DescribeBrokerResponse:
    """A broker, ready unless there are `reasons`: texts for the operator.

    `controller_id` and `listeners` come from the controller: -1 and [] before its first update.
    `broker_epoch` is that of the present registration, which depends on a lease of
    `session_timeout_ms`; the last renewal was requested `renewal_age_ms` ago (-1: never) and took
    the store `renewal_us` microseconds. `wall_ms` is the broker's wall clock. `machine` is nil
    unless it was requested. `clients` are the kinds that sent requests; kinds beyond 64 are
    counted as "others". `defects` are the kinds of unexpected exceptions that requests met.
    If the wall clock has jumped lately, `clock_jump_ms` says by how much (negative: back), and
    nothing expires because of that for `clock_settles_in_ms`. `is_controller`: the broker is the
    controller, under a lease that cannot have ended yet. `far_stamped` are at most 64
    topics, and `uncompacted` at most 64 logs.
    """

    node_id: int = NO_NODE
    broker_epoch: int = NO_EPOCH
    cluster_id: str = ""
    controller_id: int = NO_NODE
    is_ready: bool = False
    reasons: tuple[str, ...] = ()
    wall_ms: int = 0
    listeners: tuple[NamedEndpoint, ...] = ()
    session_timeout_ms: int = 0
    renewal_age_ms: int = -1
    renewal_us: int = 0
    machine: MachineDescription | None = None
    clients: tuple[ConnectedClient, ...] = ()
    defects: tuple[DefectCount, ...] = ()
    clock_jump_ms: int = 0
    clock_settles_in_ms: int = 0
    is_controller: bool = False
    far_stamped: tuple[FarStampedTopic, ...] = ()
    uncompacted: tuple[UncompactedLog, ...] = ()


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    """Removes a broker that is down and holds no replica from the known brokers."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class UnregisterBrokerResponse:
    """With an error the broker was not removed."""

    error: int = 0
    error_message: str | None = None
