"""DESCRIBE_BROKER: one broker on itself, for health checks and for `minibroker doctor`.

It is answered at any time, also by a broker that serves nobody yet. UNREGISTER_BROKER goes to the
controller: forget a broker that will not come back.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.messages import Request
from minibroker.protocol.types import NamedEndpoint


@dataclass(frozen=True, slots=True)
class DescribeBrokerRequest(Request["DescribeBrokerResponse"]):
    """With `include_machine` the broker looks at its disk and its open files, too."""

    include_machine: bool = False


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """The machine and the program as of now; -1 and "" where it is not known.

    `store` is where the broker keeps the metadata, without secrets. The disk is that of
    `data_directory`. `open_files_max` is how many the process may have.
    """

    software_version: str = ""
    python_version: str = ""
    store: str = ""
    data_directory: str = ""
    disk_free_bytes: int = -1
    disk_total_bytes: int = -1
    open_files: int = -1
    open_files_max: int = -1


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A kind of client: its wire ("msgpack" or "kafka"), and library and version as it calls
    itself ("" where it does not). `connections` are open now, `requests` came since the start."""

    wire: str
    software: str = ""
    version: str = ""
    connections: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class DescribeBrokerResponse:
    """A broker, ready unless there are `reasons`: texts for the operator.

    `controller_id` and `listeners` are as the controller has told the broker: -1 and [] before.
    `broker_epoch` is that of the present registration. The registration stands by a lease of
    `session_timeout_ms`; its last renewal was asked for `renewal_age_ms` ago (-1: never) and took
    the store `renewal_us` microseconds. `wall_ms` is the broker's wall clock. `machine` is nil
    unless it was asked for. `clients` are the kinds that sent requests; more than 64 of them are
    counted as "others".
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


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    """Forget a broker that is down and holds no replica: it counts as known no more."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class UnregisterBrokerResponse:
    """With an error the broker is as known as before."""

    error: int = 0
    error_message: str | None = None
