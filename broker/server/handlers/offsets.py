"""LIST_OFFSETS and OFFSETS_FOR_LEADER_EPOCH: where a log and its leader epochs begin and end.

The latest offset is the high watermark for a consumer, or the last stable offset for one of
committed records only, and the log end for a follower. A leader
whose high watermark has not reached the start of its leader epoch cannot name the latest offset: a
consumer may have read beyond it at the previous leader, and a lower offset would make the consumer
read records again. The leader answers OFFSET_NOT_AVAILABLE until then. A leader that may have been
replaced, and whose followers have stopped fetching, answers consumers NOT_LEADER_OR_FOLLOWER.

A request for a few ends is answered at once. One that looks up times, or names many partitions, is
parked, and `OffsetLookups` answers it in steps. Equal entries of a request are answered once. A
partition for which a request has two different times gets INVALID_REQUEST, as Kafka answers: a
client could not tell the two answers apart, and a small request could ask for any amount of work.
Both ends of a log may be asked for in one request, as followers do.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.roles import Leader
from minibroker.broker.server.offset_lookups import OffsetLookup
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Steps, Turns, at_once
from minibroker.protocol.constants import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
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
from minibroker.protocol.types import StaleSlice, TopicPartition

LOOKUP_S: Final = 20.0  # a request waits at most; clients wait for 30 s and longer
AMBIGUOUS: Final = -(1 << 63)  # the timestamp of a partition with two different times


def list_offsets(
    services: Services, request: ListOffsetsRequest, now: float
) -> ListOffsetsResponse | Parked[ListOffsetsResponse]:
    """Return an offset for each partition."""
    partitions = request.partitions
    if len(partitions) <= AT_ONCE and all(map(_is_end, partitions)):
        distinct = _Distinct()
        distinct.add(partitions)
        return ListOffsetsResponse(
            tuple(_list_end(services, asked, request, now) for asked in distinct.entries())
        )
    deadline = now + LOOKUP_S
    lookup = OffsetLookup(
        lambda answers: _list_in_steps(services, request, answers),
        lambda answers: _unanswered(request, answers),
        deadline,
    )
    services.offset_lookups.submit(lookup)
    return Parked((lookup,), lambda: deadline, lookup.attempt, lookup.expire)


def _is_end(asked: PartitionListOffsets) -> bool:
    """Whether no record has to be looked for."""
    return asked.timestamp < 0 and asked.timestamp != MAX_TIMESTAMP


class _Distinct:
    """The entries of a request without repetitions."""

    def __init__(self) -> None:
        # The key has the timestamp of an end, and 0 for all times.
        self._entries: dict[tuple[str, int, int], PartitionListOffsets] = {}

    def add(self, entries: Iterable[PartitionListOffsets]) -> None:
        """Add entries. Two different ones of a partition make each other invalid, unless they ask
        for different ends of its log, or for an end and a time."""
        for asked in entries:
            key = asked.topic, asked.partition, min(asked.timestamp, 0)
            known = self._entries.setdefault(key, asked)
            if known != asked:
                self._entries[key] = replace(asked, timestamp=AMBIGUOUS)

    def entries(self) -> list[PartitionListOffsets]:
        """Return the entries, in the request's order."""
        return [*self._entries.values()]


def _list_in_steps(
    services: Services, request: ListOffsetsRequest, answers: list[PartitionOffset]
) -> Steps[None]:
    distinct = _Distinct()
    for some in at_once(request.partitions, AT_ONCE):
        distinct.add(some)
        yield None
    for count, asked in enumerate(distinct.entries(), 1):
        if _is_end(asked):
            answers.append(_list_end(services, asked, request, trio.current_time()))
            if not count % AT_ONCE:
                yield None
        else:
            yield None
            answers.append((yield from _find_time(services, asked, request)))
            yield None


def _unanswered(
    request: ListOffsetsRequest, answers: list[PartitionOffset]
) -> list[PartitionOffset]:
    distinct = _Distinct()
    distinct.add(request.partitions)
    return [
        PartitionOffset(asked.topic, asked.partition, ErrorCode.REQUEST_TIMED_OUT)
        for asked in distinct.entries()[len(answers) :]
    ]


def _list_end(
    services: Services, asked: PartitionListOffsets, request: ListOffsetsRequest, now: float
) -> PartitionOffset:
    """Answer for the earliest or latest offset."""
    name = TopicPartition(asked.topic, asked.partition)
    try:
        partition, leader, end = _readable(services, asked, request, now)
        log = partition.log
        if asked.timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            # A leader's log has an epoch, and the first one covers the log start.
            epoch = log.epochs.entries[0].epoch
            return PartitionOffset(*name, 0, NO_TIMESTAMP, log.log_start, epoch)
        if asked.timestamp == LATEST_TIMESTAMP:
            _require_known_end(leader, request)
            return PartitionOffset(*name, 0, NO_TIMESTAMP, end, leader.leader_epoch)
        if asked.timestamp == LATEST_TIERED_TIMESTAMP:
            return PartitionOffset(*name, 0)
        if asked.timestamp == AMBIGUOUS:
            raise Refused(ErrorCode.INVALID_REQUEST, "two different times for a partition")
        what = f"no such timestamp: {asked.timestamp}"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, what)
    except Refused as refused:
        return PartitionOffset(*name, refused.code)


def _find_time(
    services: Services, asked: PartitionListOffsets, request: ListOffsetsRequest
) -> Steps[PartitionOffset]:
    """Answer for the first record of a time or later, or that of the largest timestamp. This broker
    must lead all the while."""
    name = TopicPartition(asked.topic, asked.partition)
    try:
        partition, leader, end = _readable(services, asked, request, trio.current_time())
        try:
            if asked.timestamp == MAX_TIMESTAMP:
                found = yield from partition.log.find_max_timestamp(end)
            else:
                found = yield from partition.log.find_time(asked.timestamp, end)
        except BadBytes as bad:
            raise services.replicas.refusal_of(partition, bad) from None
        except StaleSlice:
            what = "the log was cut or closed during the look-up"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, what) from None
        _, leader_now, _ = _readable(services, asked, request, trio.current_time())
        if leader_now.leader_epoch != leader.leader_epoch:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it became leader again")
        if found is None:
            _require_known_end(leader, request)
            return PartitionOffset(*name, 0)
        return PartitionOffset(*name, 0, found.timestamp, found.offset, found.leader_epoch)
    except Refused as refused:
        return PartitionOffset(*name, refused.code)


def _readable(
    services: Services, asked: PartitionListOffsets, request: ListOffsetsRequest, now: float
) -> tuple[Partition, Leader, int]:
    """Return the partition, its leader role and where a reader must stop. Raises `Refused`."""
    name = TopicPartition(asked.topic, asked.partition)
    partition = services.partition(name, asked.topic_id)
    leader = partition.leader(asked.leader_epoch)
    end = partition.readable_end(request.replica_id, asked.leader_epoch, request.isolation_level)
    if request.replica_id < 0 and services.may_be_replaced(name, now):
        services.refuse_if_abandoned(leader, now)
    return partition, leader, end


def _require_known_end(leader: Leader, request: ListOffsetsRequest) -> None:
    if request.replica_id < 0 and leader.high_watermark < leader.epoch_start:
        raise Refused(
            ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader does not know the high watermark yet"
        )


def offsets_for_leader_epoch(
    services: Services, request: OffsetsForLeaderEpochRequest, now: float
) -> Turns[OffsetsForLeaderEpochResponse]:
    """Return where each of the epochs asked for ended."""
    ends = []
    for some in at_once(request.partitions, AT_ONCE):
        ends += [
            _epoch_end(services, asked, request.replica_id, now) for asked in dict.fromkeys(some)
        ]
        if len(some) == AT_ONCE:
            yield
            now = trio.current_time()
    return OffsetsForLeaderEpochResponse(tuple(ends))


def _epoch_end(
    services: Services, asked: PartitionEpoch, replica_id: int, now: float
) -> PartitionEpochEnd:
    name = TopicPartition(asked.topic, asked.partition)
    try:
        partition = services.partition(name)
        leader = partition.leader(asked.leader_epoch)
        if replica_id < 0 and services.may_be_replaced(name, now):
            services.refuse_if_abandoned(leader, now)
        found = partition.log.epochs.end_offset_for(asked.epoch, partition.log.log_end)
        return PartitionEpochEnd(*name, 0, found.leader_epoch, found.offset)
    except Refused as refused:
        return PartitionEpochEnd(*name, refused.code)
