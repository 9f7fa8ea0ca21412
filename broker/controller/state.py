"""What the controller knows: the store's entries as one immutable value.

A plan makes a new `State` and the writes that lead to it; the controller replaces its state once
they are made. So state and store never differ by more than the transaction under way, and a new
controller that reads the store goes on where the old one was. What is derived or passing (who was
told what, which log ends were seen) is not in here.

A broker counts as live when its registration stands and the controller has admitted it, which it
does once it has settled, in the same transaction or before, what the return means for every
partition.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """`leader` -1: nobody leads. `replicas` is in order of preference; `isr` is never empty.

    An election raises both epochs, a change of the ISR the partition epoch alone. `unsafe` are the
    members of the ISR that may have lost the end of their log; then nobody leads.
    """

    number: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    unsafe: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.isr, "an ISR never becomes empty"
        assert self.leader == NO_NODE or (self.leader in self.isr and not self.unsafe)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic; `configs` are its own settings only, as text; partitions stand at their number.

    `creation` is higher than that of any topic that had this name before; 0: not known.
    """

    id: bytes
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionRecord, ...]
    creation: int = 0


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic whose directories may still lie on the brokers `holders` (CTL-15)."""

    id: bytes
    name: str
    partition_count: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration as the store has it; `process` is drawn anew by each process.

    `epoch` is the broker epoch: the revision of the entry. `fence_timeout_ms` is how long it may
    not be heard before it is fenced; 0: a broker of an earlier version, which answers no probes.
    The rest is as in `RegistrationFacts`.
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


@dataclass(frozen=True, slots=True)
class Admission:
    """The registration of a broker that was last admitted; stays when the broker goes."""

    node_id: int
    epoch: int
    directory_id: str
    run: int
    process: str
    is_leaving: bool = False


class ClosedLog(NamedTuple):
    """How far a log went when its broker had stopped in order."""

    topic_id: bytes
    partition: int
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Departure:
    """What a broker had on its disk when it had stopped in order.

    It holds as long as `epoch` is that of the broker's admission: no later process took part.
    """

    node_id: int
    epoch: int
    logs: tuple[ClosedLog, ...]


@dataclass(frozen=True, slots=True)
class State:
    """See the head of this module. `brokers` are the live ones, all of them admitted.

    `creation` is the number below that of the next topic (`TopicRecord.creation`). `fenced` are
    those of the live brokers that the controller does not hear. The store does not have them: a
    new controller hears for itself.
    """

    cluster_id: str = ""
    topics: Mapping[str, TopicRecord] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    admissions: Mapping[int, Admission] = field(default_factory=dict)
    tombstones: Mapping[bytes, Tombstone] = field(default_factory=dict)
    creation: int = 0
    fenced: frozenset[int] = frozenset()

    def partition(self, name: TopicPartition) -> PartitionRecord | None:
        """A partition, or None where there is no such topic or number."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionRecord]]:
        """All of them, topic by topic."""
        for name, topic in self.topics.items():
            for record in topic.partitions:
                yield TopicPartition(name, record.number), record

    def is_leaving(self, node_id: int) -> bool:
        """Whether this live broker has asked to stop."""
        return self.admissions[node_id].is_leaving

    def is_active(self, node_id: int) -> bool:
        """Whether a broker is live and heard, and has not asked to stop: it may lead, and join an
        ISR."""
        is_live = node_id in self.brokers and node_id not in self.fenced
        return is_live and not self.is_leaving(node_id)
