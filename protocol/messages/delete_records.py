"""DELETE_RECORDS: raises the log start of partitions, at the leader and on every replica."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class PartitionDeleteRecords:
    """Deletes the records below `offset`; -1: all committed records.

    `topic_id` is the id that the topic must have (empty: not checked).
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """The answer is sent once every replica that may lead has deleted the records, or at the
    time-out."""

    partitions: tuple[PartitionDeleteRecords, ...] = ()
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class PartitionRecordsDeleted:
    """`low_watermark` is the lowest log start of the replicas that may lead; -1: not known.

    With REQUEST_TIMED_OUT some of them have not deleted the records yet.
    """

    topic: str
    partition: int
    error: int = 0
    error_message: str | None = None
    low_watermark: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionRecordsDeleted, ...] = ()
