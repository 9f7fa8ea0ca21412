"""Transactions: requests to their coordinator, between brokers, and about them.

ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, DESCRIBE_TRANSACTIONS and LIST_TRANSACTIONS go
to the coordinator of the transactional id, TXN_OFFSET_COMMIT to that of the group,
WRITE_TXN_MARKERS and DESCRIBE_PRODUCERS to the leaders of partitions. INIT_PRODUCER_ID, which
begins a producer's session, is in `producer_id`.

The fields are those of Kafka's public message schemas. `transaction_version` is the number of the
feature transaction.version under which the sender works: with `SECOND_PROTOCOL` (KIP-890) the
producer's epoch rises at each end, and partitions are added by the requests that write to them.
"""

from dataclasses import dataclass
from typing import Final

from minibroker.protocol.constants import (
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.group_offsets import PartitionCommit, PartitionCommitted
from minibroker.protocol.messages.groups import NO_GENERATION
from minibroker.protocol.types import TopicPartition

FIRST_PROTOCOL: Final = 1
SECOND_PROTOCOL: Final = 2
OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class TransactionPartitions:
    """The partitions of one transaction. With `is_verify_only` they are not added: each that the
    transaction does not have gets TRANSACTION_ABORTABLE."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()
    is_verify_only: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Adds partitions to transactions, from producers and from the partitions' leaders."""

    transactions: tuple[TransactionPartitions, ...] = ()
    transaction_version: int = FIRST_PROTOCOL


@dataclass(frozen=True, slots=True)
class TransactionPartitionResult:
    """The result for one partition."""

    topic: str
    partition: int
    error: int = 0


@dataclass(frozen=True, slots=True)
class TransactionPartitionsAdded:
    """The results for one transaction, in the order of its partitions."""

    transactional_id: str
    partitions: tuple[TransactionPartitionResult, ...] = ()


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    """An answer for each transaction of the request, in its order. `error` is that of the whole
    request; then `transactions` is empty."""

    error: int = 0
    transactions: tuple[TransactionPartitionsAdded, ...] = ()


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Adds the partition of `__consumer_offsets` that stores a group's offsets."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    """With no error the producer may send a TXN_OFFSET_COMMIT to the group's coordinator."""

    error: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class EndTxnRequest(Request["EndTxnResponse"]):
    """Commits or aborts the open transaction."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    is_commit: bool = False
    transaction_version: int = FIRST_PROTOCOL


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """The decision is stored; the markers follow. In the second protocol the id and the epoch are
    those of the producer's next transaction, else -1."""

    error: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """A marker for partitions: the end of the producer's open transaction there.

    `coordinator_epoch` is the leader epoch of the coordinator's partition of `__transaction_state`.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool = False
    coordinator_epoch: int = NO_EPOCH
    partitions: tuple[TopicPartition, ...] = ()
    transaction_version: int = FIRST_PROTOCOL


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Appends markers, from a coordinator to the leaders of partitions. The answer is sent once
    every in-sync replica has them. A marker of a coordinator epoch that the receiver has not heard
    of gets NOT_COORDINATOR, and one with a number that no record can hold INVALID_REQUEST."""

    markers: tuple[TransactionMarker, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionMarkerResult:
    """The results for one marker, in the order of its partitions."""

    producer_id: int
    partitions: tuple[TransactionPartitionResult, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersResponse:
    """An answer for each marker of the request, in its order."""

    markers: tuple[TransactionMarkerResult, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Commits a group's offsets as part of a transaction: they are visible once it commits.

    Generation, member and instance id as in an OFFSET_COMMIT; generation -1 and no member id are
    not checked against the group.
    """

    transactional_id: str
    group_id: str = ""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    partitions: tuple[PartitionCommit, ...] = ()
    transaction_version: int = FIRST_PROTOCOL


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionCommitted, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Requests the producers that the leader of each partition knows."""

    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer's state in a partition. `transaction_start` is the first offset of its open
    transaction, -1 if there is none."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_EPOCH
    transaction_start: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The producers of one partition."""

    topic: str
    partition: int
    error: int = 0
    error_message: str | None = None
    producers: tuple[ActiveProducer, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionProducers, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Transactional ids to describe; the receiver must be the coordinator of each."""

    transactional_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id. `state` is one of Kafka's names; `start_time_ms` is when the
    last transaction of the producer's session began, even if it has ended; -1 if there was none.
    An unknown id has the error TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str
    error: int = 0
    state: str = ""
    timeout_ms: int = 0
    start_time_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def open_since_ms(self) -> int:
        """When the transaction began that is open, -1 if none is."""
        return self.start_time_ms if self.state in OPEN_STATES else NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    """A description for each id of the request, in its order."""

    transactions: tuple[TransactionDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Requests the transactional ids that the broker coordinates: those in `states`, of
    `producer_ids`, open for longer than `duration_ms`, and whose id matches the regular expression.
    Empty, -1 and nil: all."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    transactional_id_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id that the answering broker coordinates."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    state: str = ""


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """`unknown_states` are those of the request that are no names of states."""

    error: int = 0
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()
