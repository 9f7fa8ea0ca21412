"""LIST_OFFSETS and OFFSETS_FOR_LEADER_EPOCH: where a log and its leader epochs begin and end.

The latest offset is the high watermark for a consumer and the log end for a follower. A leader
whose high watermark has not reached the start of its leader epoch cannot name the latest offset: a
consumer may have read beyond it at the previous leader, and a lower offset would make the consumer
read records again. The leader answers OFFSET_NOT_AVAILABLE until then. A leader that may have been
replaced, and whose followers have stopped fetching, answers consumers NOT_LEADER_OR_FOLLOWER.
"""

from minibroker.broker.errors import Refused
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.replication.roles import Leader
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    ErrorCode,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
    PartitionEpoch,
    PartitionEpochEnd,
    PartitionListOffsets,
    PartitionOffset,
)
from minibroker.protocol.types import TopicPartition


def list_offsets(
    services: Services, request: ListOffsetsRequest, now: float
) -> ListOffsetsResponse:
    """Return an offset for each partition."""
    return ListOffsetsResponse(
        tuple(
            _list_offset(services, asked, request.replica_id, now) for asked in request.partitions
        )
    )


def _list_offset(
    services: Services, asked: PartitionListOffsets, replica_id: int, now: float
) -> PartitionOffset:
    name = TopicPartition(asked.topic, asked.partition)
    try:
        partition = services.partition(name, asked.topic_id)
        leader = partition.leader(asked.leader_epoch)
        end = partition.readable_end(replica_id, asked.leader_epoch)
        if replica_id < 0 and services.may_be_replaced(name, now):
            services.refuse_if_abandoned(leader, now)
        log = partition.log
        if asked.timestamp == EARLIEST_TIMESTAMP:
            # A leader's log has an epoch, and the first one covers the log start.
            epoch = log.epochs.entries[0].epoch
            return PartitionOffset(*name, 0, NO_TIMESTAMP, log.log_start, epoch)
        if asked.timestamp == LATEST_TIMESTAMP:
            _require_known_end(leader, end)
            return PartitionOffset(*name, 0, NO_TIMESTAMP, end, leader.leader_epoch)
        if asked.timestamp < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, f"no such timestamp: {asked.timestamp}")
        try:
            found = log.offset_for_timestamp(asked.timestamp, end)
        except BadBytes as bad:
            raise services.replicas.refusal_of(partition, bad) from None
        if found is None:
            _require_known_end(leader, end)
            return PartitionOffset(*name, 0)
        return PartitionOffset(*name, 0, found.timestamp, found.offset, found.leader_epoch)
    except Refused as refused:
        return PartitionOffset(*name, refused.code)


def _require_known_end(leader: Leader, end: int) -> None:
    if end < leader.epoch_start:
        raise Refused(
            ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader does not know the high watermark yet"
        )


def offsets_for_leader_epoch(
    services: Services, request: OffsetsForLeaderEpochRequest, now: float
) -> Turns[OffsetsForLeaderEpochResponse]:
    """Return where each of the epochs asked for ended."""
    ends = []
    for some in at_once(dict.fromkeys(request.partitions)):
        ends += [_epoch_end(services, asked) for asked in some]
        if len(some) == AT_ONCE:
            yield
    return OffsetsForLeaderEpochResponse(tuple(ends))


def _epoch_end(services: Services, asked: PartitionEpoch) -> PartitionEpochEnd:
    name = TopicPartition(asked.topic, asked.partition)
    try:
        partition = services.partition(name)
        partition.leader(asked.leader_epoch)
        found = partition.log.epochs.end_offset_for(asked.epoch, partition.log.log_end)
        return PartitionEpochEnd(*name, 0, found.leader_epoch, found.offset)
    except Refused as refused:
        return PartitionEpochEnd(*name, refused.code)
