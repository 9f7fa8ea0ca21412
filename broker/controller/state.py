"""The controller's state: the store's entries as one immutable value.

A plan makes a new `State` and the writes that lead to it; the controller replaces its state when
the store has made them. So state and store never differ by more than the transaction under way, and
a new controller that reads the store continues where the old one stopped. Derived and temporary
facts (which orders brokers have acknowledged, which log ends they have reported) are not in here.

A broker counts as live when it is registered and the controller has admitted it. The controller
admits it in the transaction that settles what its arrival means for every partition, or later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition


class Reassignment(NamedTuple):
    """A reassignment under way, from the assignment `original` to `target`, both in order of
    preference. They are equal if it was cancelled: then the replicas that it added still leave.
    """

    original: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        """The replicas that the target has and the original assignment has not."""
        return tuple(node for node in self.target if node not in self.original)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition. `leader` is -1 if none; `replicas` is in order of preference; `isr` is never
    empty.

    An election raises both epochs, a change of the ISR or of the assignment only the partition
    epoch. `unsafe` are the members of the ISR that may have lost the end of their log; if there are
    any, no broker leads. During a reassignment `replicas` has the target replicas first, then those
    that leave; while the reassignment waits for its turn, it is the original assignment. `former`
    are brokers that a reassignment removed and that may still have the files of their replica.
    `unclean_epoch` is the leader epoch of the last unclean election; -1 without one. `is_restored`:
    the record comes from a backup (`restore_plan.py`), and no leader has been elected since; then
    `isr` has the replicas whose logs must be compared.
    """

    number: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    unsafe: tuple[int, ...] = ()
    reassignment: Reassignment | None = None
    former: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH
    is_restored: bool = False

    def __post_init__(self) -> None:
        assert self.isr, "an ISR never becomes empty"
        assert self.leader == NO_NODE or (self.leader in self.isr and not self.unsafe)
        assert {*self.original} <= {*self.replicas}, "a reassignment begins by adding"
        assert not {*self.former} & {*self.replicas}, "a replica is assigned or has left"

    @property
    def original(self) -> tuple[int, ...]:
        """The assignment before the reassignment under way; the assignment if there is none."""
        return self.replicas if self.reassignment is None else self.reassignment.original

    @property
    def target(self) -> tuple[int, ...]:
        """The assignment after the reassignment under way; the assignment if there is none."""
        return self.replicas if self.reassignment is None else self.reassignment.target

    @property
    def removing(self) -> tuple[int, ...]:
        """The replicas that the reassignment under way removes."""
        return tuple(node for node in self.replicas if node not in self.target)

    @property
    def has_added(self) -> bool:
        """Whether all target replicas are assigned: a reassignment does not wait for its turn."""
        return {*self.target} <= {*self.replicas}


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic. `configs` are its own settings only, as text; a partition's index is its number.

    `creation` is higher than that of any earlier topic of this name; 0 if unknown.
    """

    id: bytes
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionRecord, ...]
    creation: int = 0


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic, of which the brokers `holders` may still have directories (CTL-15)."""

    id: bytes
    name: str
    partition_count: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration as the store has it.

    `epoch` is the broker epoch: the revision of the entry. Each process draws its own `process`.
    The controller fences the broker if it has not answered a probe for `fence_timeout_ms`; 0 stands
    for a broker of an earlier version, which answers no probes. For the rest see
    `RegistrationFacts`.
    """

    node_id: int
    epoch: int
    endpoint: Endpoint
    directory_id: str
    run: int
    process: str
    tail_safe: bool = True
    was_synced: bool = False
    damaged: frozenset[TopicPartition] = frozenset()
    listeners: tuple[NamedEndpoint, ...] = ()
    fence_timeout_ms: int = 0
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The last admitted registration of a broker; it stays when the broker goes."""

    node_id: int
    epoch: int
    directory_id: str
    run: int
    process: str
    is_leaving: bool = False
    rack: str | None = None


class ClosedLog(NamedTuple):
    """The end of a log when its broker had shut down cleanly."""

    topic_id: bytes
    partition: int
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Departure:
    """The logs of a broker that had shut down cleanly.

    It is valid while `epoch` is that of the broker's admission: no later process took part.
    """

    node_id: int
    epoch: int
    logs: tuple[ClosedLog, ...]


@dataclass(frozen=True, slots=True)
class State:
    """See the head of this module. `brokers` are the live ones, all of them admitted.

    `creation` is that of the newest topic (`TopicRecord.creation`). `fenced` are the live brokers
    that do not answer the controller. They are not in the store: a new controller finds out by its
    own probes. `groups` and `broker_configs` have the settings of groups, and of brokers, that
    have any of their own.
    """

    cluster_id: str = ""
    topics: Mapping[str, TopicRecord] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    admissions: Mapping[int, Admission] = field(default_factory=dict)
    tombstones: Mapping[bytes, Tombstone] = field(default_factory=dict)
    creation: int = 0
    fenced: frozenset[int] = frozenset()
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def partition(self, name: TopicPartition) -> PartitionRecord | None:
        """Return a partition; None if there is no such topic or number."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionRecord]]:
        """Yield all partitions, topic by topic."""
        for name, topic in self.topics.items():
            for record in topic.partitions:
                yield TopicPartition(name, record.number), record

    def is_leaving(self, node_id: int) -> bool:
        """Whether this live broker has asked to stop."""
        return self.admissions[node_id].is_leaving

    def is_active(self, node_id: int) -> bool:
        """Whether a broker may lead and join an ISR: it is live and not fenced, and has not asked
        to stop."""
        is_live = node_id in self.brokers and node_id not in self.fenced
        return is_live and not self.is_leaving(node_id)
