"""The faults of one broker, as one value. The kit sends it, and the broker's process applies it.

The value always has all faults of the broker: what it does not name works. So faults may overlap,
a test may undo them in any order, and a broker that restarts gets the faults of that moment.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from minibroker.protocol.constants import ApiKey, ErrorCode

CLIENTS: Final = "clients"  # the link of all connections from clients
BROKERS: Final = "brokers"  # the link of all connections that other brokers have opened
ACTIONS: Final = ("drop_response", "fail", "hold")
# The requests that can fail: their responses have an error for each partition, for each transaction
# or partition of it, or one for all.
FAIL_BY_PARTITION: Final = (
    "PRODUCE",
    "FETCH",
    "LIST_OFFSETS",
    "OFFSET_COMMIT",
    "TXN_OFFSET_COMMIT",
    "DESCRIBE_PRODUCERS",
)
FAIL_BY_TRANSACTION: Final = (
    "ADD_PARTITIONS_TO_TXN",
    "WRITE_TXN_MARKERS",
    "DESCRIBE_TRANSACTIONS",
)
FAIL_AS_A_WHOLE: Final = (
    "FIND_COORDINATOR",
    "JOIN_GROUP",
    "SYNC_GROUP",
    "HEARTBEAT",
    "LEAVE_GROUP",
    "OFFSET_FETCH",
    "INIT_PRODUCER_ID",
    "ADD_OFFSETS_TO_TXN",
    "END_TXN",
    "LIST_TRANSACTIONS",
)
NAME_TOPICS: Final = (
    *FAIL_BY_PARTITION,
    "ADD_PARTITIONS_TO_TXN",
    "WRITE_TXN_MARKERS",
    "OFFSET_FETCH",
    "METADATA",
    "CREATE_TOPICS",
)
CODE_MAX: Final = 2**15 - 1


class BadOrder(ValueError):
    """An order that the broker cannot carry out; the text says why."""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The faults of the connections between this broker and a peer.

    Lost bytes wait until the fault ends, because TCP sends them again. `delay_ms`, plus or minus
    `jitter_ms`, and `bytes_per_s` (0: no limit) apply to what this broker sends.
    """

    are_sends_lost: bool = False
    are_receives_lost: bool = False
    delay_ms: float = 0
    jitter_ms: float = 0
    bytes_per_s: float = 0

    def __post_init__(self) -> None:
        _check_flags(are_sends_lost=self.are_sends_lost, are_receives_lost=self.are_receives_lost)
        _check_numbers(
            delay_ms=self.delay_ms, jitter_ms=self.jitter_ms, bytes_per_s=self.bytes_per_s
        )

    def __or__(self, other: "LinkFaults") -> "LinkFaults":
        limits = [each.bytes_per_s for each in (self, other) if each.bytes_per_s]
        return LinkFaults(
            self.are_sends_lost or other.are_sends_lost,
            self.are_receives_lost or other.are_receives_lost,
            self.delay_ms + other.delay_ms,
            self.jitter_ms + other.jitter_ms,
            min(limits, default=0),
        )


@dataclass(frozen=True, slots=True)
class RequestRule:
    """A fault of requests.

    `number` identifies the rule. `api` is a name in `ApiKey`, `action` one of `ACTIONS`, and
    `error`, for "fail", a name in `ErrorCode` or the number of an error of Kafka's. The rule
    applies to the first `times` requests (0: all) that have this client id and name this topic and
    partition; None stands for any. Without a client id it applies to clients, not to brokers.
    """

    number: int
    api: str
    action: str
    times: int = 0
    error: str = ""
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        _check_counts(number=self.number, times=self.times)
        _check_texts(api=self.api, action=self.action, error=self.error)
        if self.api not in ApiKey.__members__:
            known = ", ".join(ApiKey.__members__)
            raise BadOrder(f"there is no request {self.api!r}; there are {known}")
        if self.action not in ACTIONS:
            raise BadOrder(f"action {self.action!r} is none of {', '.join(ACTIONS)}")
        if self.client_id is not None:
            _check_texts(client_id=self.client_id)
        if self.topic is not None:
            _check_texts(topic=self.topic)
        if self.partition is not None:
            _check_counts(partition=self.partition)
        self._check_topic()
        if self.action == "fail":
            self._check_error()

    @property
    def code(self) -> int:
        """The number of the error, as in Kafka's protocol."""
        return int(self.error) if self.error.isdecimal() else ErrorCode[self.error]

    def _check_topic(self) -> None:
        if self.topic is not None and self.api not in NAME_TOPICS:
            raise BadOrder(f"{self.api} names no topic; {', '.join(NAME_TOPICS)} do")
        if self.partition is not None and self.topic is None:
            raise BadOrder("partition= needs topic=")

    def _check_error(self) -> None:
        is_number = self.error.isascii() and self.error.isdecimal()
        if is_number and not 0 < int(self.error) <= CODE_MAX:
            raise BadOrder(f"error {self.error}: the number of an error is 1 to {CODE_MAX}")
        if not is_number and not ErrorCode.__members__.get(self.error):
            known = ", ".join(name for name, code in ErrorCode.__members__.items() if code)
            raise BadOrder(f"there is no error {self.error!r}; give its number, or one of {known}")
        can_fail = sorted((*FAIL_BY_PARTITION, *FAIL_BY_TRANSACTION, *FAIL_AS_A_WHOLE))
        if self.api not in can_fail:
            raise BadOrder(f"{self.api} cannot be made to fail; {', '.join(can_fail)} can")


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """All faults of a broker.

    The keys of `links` are `CLIENTS`, `BROKERS`, and, for the connections that this broker opens,
    the other broker's address (HOST:PORT).
    """

    links: Mapping[str, LinkFaults] = field(default_factory=dict)
    is_store_cut: bool = False
    is_disk_full: bool = False
    disk_delay_ms: float = 0
    rules: tuple[RequestRule, ...] = ()

    def __post_init__(self) -> None:
        _check_flags(is_store_cut=self.is_store_cut, is_disk_full=self.is_disk_full)
        _check_numbers(disk_delay_ms=self.disk_delay_ms)

    def as_json(self) -> dict[str, Any]:
        """Return the value of the member `faults` in an order."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the faults that `as_json` gave. Raises `BadOrder`."""
        try:
            given = dict(value)
            links = {peer: LinkFaults(**link) for peer, link in given.pop("links", {}).items()}
            rules = tuple(RequestRule(**rule) for rule in given.pop("rules", ()))
            return cls(links=links, rules=rules, **given)
        except BadOrder:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise BadOrder(f"faults have another form: {error}") from None


def _check_numbers(**values: object) -> None:
    """Raise `BadOrder` for a value that is not a finite number from 0 on."""
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
            raise BadOrder(f"{name}={value!r}: expected a number from 0 on")


def _check_counts(**values: object) -> None:
    """Raise `BadOrder` for a value that is not a whole number from 0 on."""
    for name, value in values.items():
        if type(value) is not int or value < 0:
            raise BadOrder(f"{name}={value!r}: expected a whole number from 0 on")


def _check_flags(**values: object) -> None:
    for name, value in values.items():
        if type(value) is not bool:
            raise BadOrder(f"{name}={value!r}: expected true or false")


def _check_texts(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise BadOrder(f"{name}={value!r}: expected a string")
