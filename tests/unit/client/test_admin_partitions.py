"""The admin client's elections and reassignments: what it asks, and what it reports of each."""

from typing import Any

import pytest

from minibroker.client.admin import Admin
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElected,
)
from minibroker.protocol.messages.metadata import BrokerMetadata, MetadataResponse
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionReassigned,
)

ALONE = MetadataResponse((BrokerMetadata(1, "a", 9092),), "c", 1, ())


async def test_the_fate_of_each_partition_is_reported(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Of an election: who was elected, where nothing was to be done, and why it failed."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = lambda _: ALONE
    unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    results = (
        PartitionElected("t", 0),
        PartitionElected("t", 1, ErrorCode.ELECTION_NOT_NEEDED, "broker 1 leads"),
        PartitionElected("t", 2, unavailable, "broker 1 is not in sync"),
    )
    broker.answers[ApiKey.ELECT_LEADERS] = lambda _: ElectLeadersResponse(partitions=results)
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.elect_leaders([("t", 0), ("t", 1), ("t", 2)])
        assert report == ((("t", 0),), (("t", 1),), {("t", 2): "broker 1 is not in sync"})
        assert broker.asked(ElectLeadersRequest)[-1].partitions == (("t", 0), ("t", 1), ("t", 2))
        await admin.elect_leaders()
        assert broker.asked(ElectLeadersRequest)[-1].partitions is None
        late = ElectLeadersResponse(ErrorCode.REQUEST_TIMED_OUT, "not done in time")
        broker.answers[ApiKey.ELECT_LEADERS] = lambda _: late
        with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT: not done in time"):
            await admin.elect_leaders()


async def test_reassignments_are_asked_for_and_listed(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """What was accepted, what failed and why; and what is under way, of all or of some."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = lambda _: ALONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    results = (PartitionReassigned("t", 0), PartitionReassigned("t", 9, unknown, "no t-9"))
    answer = AlterPartitionReassignmentsResponse(partitions=results)
    broker.answers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda _: answer
    one = OngoingReassignment("t", 0, (4, 1), (4,), (1,))
    listed = ListPartitionReassignmentsResponse(partitions=(one,))
    broker.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda _: listed
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.alter_partition_reassignments({("t", 0): [4], ("t", 9): None})
        assert report == ((("t", 0),), {("t", 9): (unknown, "no t-9")})
        asked = broker.asked(AlterPartitionReassignmentsRequest)[-1]
        assert [wanted.replicas for wanted in asked.partitions] == [(4,), None]
        ongoing = {("t", 0): ((4, 1), (4,), (1,))}
        assert await admin.list_partition_reassignments() == ongoing
        assert broker.asked(ListPartitionReassignmentsRequest)[-1].partitions is None
        await admin.list_partition_reassignments([("t", 0)])
        assert broker.asked(ListPartitionReassignmentsRequest)[-1].partitions == (("t", 0),)
        late = ListPartitionReassignmentsResponse(ErrorCode.REQUEST_TIMED_OUT, "not done in time")
        broker.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda _: late
        with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT: not done in time"):
            await admin.list_partition_reassignments()
