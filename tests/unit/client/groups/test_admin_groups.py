"""What the admin client asks about groups, of whom, and what it says when it is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from minibroker.client.admin import Admin
from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.errors import ClientTimeout
from minibroker.protocol.constants import OFFSETS_TOPIC, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
)
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberDescription,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition

T0 = TopicPartition("t", 0)
OFFSETS = TopicMetadata(
    OFFSETS_TOPIC, partitions=(PartitionMetadata(0, 0, 2), PartitionMetadata(1, 0, -1))
)


class Pair:
    """Two brokers, 1 on host "a" and 2 on host "b"; 2 coordinates every group.

    `refusals` are the errors with which the next requests to a coordinator are answered; None
    loses the connection. `ask` is what it says otherwise.
    """

    def __init__(self, brokers: list[Any]) -> None:
        self.brokers = dict(enumerate(brokers, 1))
        self.refusals: list[ErrorCode | None] = []
        self.not_found: list[ErrorCode] = []  # with which nobody can say who coordinates
        for broker in brokers:
            broker.answers[ApiKey.METADATA] = lambda _: MetadataResponse(
                (BrokerMetadata(1, "a", 9092), BrokerMetadata(2, "b", 9092)), "c", 1, (OFFSETS,)
            )
            broker.answers[ApiKey.FIND_COORDINATOR] = self._find

    def _find(self, _: object) -> FindCoordinatorResponse:
        if self.not_found:
            return FindCoordinatorResponse(self.not_found.pop(0), "wait for the others")
        return FindCoordinatorResponse(node_id=2, host="b", port=9092)

    def serve(self, api_key: ApiKey, answer: Callable[[Any, int], Any]) -> None:
        """Have 2 answer with what `answer` makes of the request and the next refusal (or 0)."""

        def say(request: Any) -> Any:
            error = self.refusals.pop(0) if self.refusals else 0
            if error is None:
                self.brokers[2].connections[-1].close()
                return None
            return answer(request, error)

        self.brokers[2].answers[api_key] = say

    def asked(self, kind: type) -> list[int]:
        """How many such requests each broker got."""
        return [len(broker.asked(kind)) for broker in self.brokers.values()]


@pytest.fixture
async def pair(start_broker: Any) -> Pair:
    """Both, with nothing served yet."""
    return Pair([await start_broker("a"), await start_broker("b")])


def committed(request: OffsetCommitRequest, error: int) -> OffsetCommitResponse:
    """Every partition has this error."""
    return OffsetCommitResponse(
        tuple(PartitionCommitted(each.topic, each.partition, error) for each in request.partitions)
    )


async def test_groups_are_listed_from_every_broker(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """All groups by name; who has not read its groups yet is waited for, and named if in vain; so
    are partitions that nobody leads, whose groups nobody knows."""
    passing = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE]
    pair.brokers[1].answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse(
        passing.pop(0), (ListedGroup("z"),)
    )
    pair.brokers[2].answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse(
        groups=(ListedGroup("a", "consumer", "Stable"),)
    )
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.list_groups("Empty", "Stable")
        assert [group.group_id for group in report.groups] == ["a", "z"]
        assert not report.silent
        asked = pair.brokers[1].asked(ListGroupsRequest)
        assert [each.states for each in asked] == [("Empty", "Stable")] * 2
        passing += [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1000
        pair.brokers[2].answers[ApiKey.LIST_GROUPS] = lambda _: None
        report = await admin.list_groups()
        silent = {1: "COORDINATOR_LOAD_IN_PROGRESS", 2: "no answer within 3 s"}
        assert report[:2] == ((), silent)
        assert report.leaderless == (TopicPartition("__consumer_offsets", 1),)


async def test_a_group_is_described_by_its_coordinator(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """With topics and partitions of its members; bytes that no consumer wrote are left alone."""
    valid = MemberDescription(
        "m-1",
        "static",
        "cli",
        "10.0.0.1",
        encode_subscription(Subscription(("t",))),
        encode_assignment(Assignment((T0,))),
    )
    broken = MemberDescription("m-2", None, "cli", "10.0.0.2", b"\xff", b"")
    pair.serve(
        ApiKey.DESCRIBE_GROUPS,
        lambda request, error: DescribeGroupsResponse(
            (
                DescribedGroup(
                    request.groups[0], error, "Stable", "consumer", "range", 3, (valid, broken)
                ),
            )
        ),
    )
    pair.refusals = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    async with Admin("a:9092", seams=seams) as admin:
        [group] = await admin.describe_groups("g")
    assert group[:6] == ("g", "Stable", "consumer", "range", 3, 2)
    assert group.members == (
        ("m-1", "static", "cli", "10.0.0.1", ("t",), (T0,), None),
        ("m-2", None, "cli", "10.0.0.2", (), (), None),
    )
    assert pair.asked(DescribeGroupsRequest) == [0, 3]
    assert sum(pair.asked(FindCoordinatorRequest)) >= 3


async def test_a_group_of_the_consumer_protocol_is_described(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """What is Dead as a classic group may be one of KIP-848."""
    pair.serve(
        ApiKey.DESCRIBE_GROUPS,
        lambda request, _: DescribeGroupsResponse((DescribedGroup("g", state="Dead"),)),
    )
    has = (DescribedPartitions(b"i" * 16, "t", (0, 2)),)
    named = DescribedConsumer("m-1", "static", None, 7, "cli", "10.0.0.1", ("t",), None, has, has)
    matching = DescribedConsumer("m-2", None, None, 7, "cli", "10.0.0.2", (), "t.*")
    pair.serve(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda request, error: ConsumerGroupDescribeResponse(
            (
                DescribedConsumerGroup(
                    "g", error, None, "Stable", 7, 7, "uniform", (named, matching)
                ),
            )
        ),
    )
    async with Admin("a:9092", seams=seams) as admin:
        [group] = await admin.describe_groups("g")
    assert group[:6] == ("g", "Stable", "consumer", "uniform", 7, 2)
    assert group.members == (
        ("m-1", "static", "cli", "10.0.0.1", ("t",), (T0, TopicPartition("t", 2)), None),
        ("m-2", None, "cli", "10.0.0.2", (), (), "t.*"),
    )


async def test_a_group_that_is_not_there_is_said_to_be_missing(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """A typo in the name is an error; Kafka's word for such a group is Dead."""
    pair.serve(
        ApiKey.DESCRIBE_GROUPS,
        lambda request, _: DescribeGroupsResponse((DescribedGroup("x", state="Dead"),)),
    )
    missing = DescribedConsumerGroup("x", ErrorCode.GROUP_ID_NOT_FOUND)
    pair.serve(
        ApiKey.CONSUMER_GROUP_DESCRIBE, lambda request, _: ConsumerGroupDescribeResponse((missing,))
    )
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND: group 'x': there is no such"):
            await admin.describe_groups("x")


async def test_committed_offsets_leave_out_what_was_never_committed(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """GRP-08: -1 means nothing was committed; None asks for all, in order of their names."""
    answer = (
        PartitionGroupOffset("u", 0, offset=1),
        PartitionGroupOffset("t", 1),
        PartitionGroupOffset("t", 2, offset=-2),  # by kafkajs
        PartitionGroupOffset("t", 0, offset=7, leader_epoch=2, metadata="x"),
    )
    pair.serve(ApiKey.OFFSET_FETCH, lambda _, error: OffsetFetchResponse(error, answer))
    pair.refusals = [ErrorCode.NOT_COORDINATOR]
    async with Admin("a:9092", seams=seams) as admin:
        found = await admin.committed_offsets("g")
        assert list(found.items()) == [
            (T0, OffsetAndMetadata(7, "x", 2)),
            (TopicPartition("u", 0), OffsetAndMetadata(1)),
        ]
        await admin.committed_offsets("g", [("t", 0)])
    *_, last = pair.brokers[2].asked(OffsetFetchRequest)
    assert [(each.topic, each.partition) for each in last.partitions] == [("t", 0)]


async def test_offsets_are_committed_as_who_assigns_by_itself(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """Generation -1 and no member; numbers alone are enough; a lost answer is asked for again."""
    pair.serve(ApiKey.OFFSET_COMMIT, committed)
    pair.refusals = [None, ErrorCode.REQUEST_TIMED_OUT]
    async with Admin("a:9092", seams=seams) as admin:
        await admin.commit_offsets("g", {("t", 0): 5, ("t", 1): OffsetAndMetadata(6, "why", 3)})
        with pytest.raises(ValueError, match="not -1"):
            await admin.commit_offsets("g", {("t", 0): -1})
    *_, last = requests = pair.brokers[2].asked(OffsetCommitRequest)
    assert len(requests) == 3
    assert (last.group_id, last.generation, last.member_id) == ("g", -1, "")
    assert last.partitions == (
        PartitionCommit("t", 0, 5, metadata=""),
        PartitionCommit("t", 1, 6, 3, "why"),
    )


async def test_a_group_with_members_is_left_alone(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """GRP-06: nothing is changed under its members; the error says what to do."""
    pair.serve(ApiKey.OFFSET_COMMIT, committed)
    pair.serve(
        ApiKey.DELETE_GROUPS,
        lambda request, error: DeleteGroupsResponse((DeletedGroup(request.groups[0], error),)),
    )
    pair.serve(
        ApiKey.OFFSET_DELETE,
        lambda _, error: OffsetDeleteResponse(partitions=(PartitionCommitted("t", 0, error),)),
    )
    pair.refusals = [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ]
    async with Admin("a:9092", seams=seams) as admin:
        for call, text in (
            (admin.commit_offsets("g", {("t", 0): 5}), "group 'g', t-0: it has members: stop its"),
            (admin.delete_groups("g"), "NON_EMPTY_GROUP: group 'g': it has members: stop its"),
            (admin.delete_offsets("g", [("t", 0)]), "group 'g', t-0: a member subscribes to the"),
        ):
            with pytest.raises(BrokerError, match=text):
                await call
        await admin.delete_offsets("g", [("t", 0)])
    assert pair.asked(OffsetDeleteRequest) == [0, 2]


async def test_a_deletion_whose_answer_is_lost_is_done_if_the_group_is_gone(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """Without a lost answer, a group that is not there is an error."""
    pair.serve(
        ApiKey.DELETE_GROUPS,
        lambda request, error: DeleteGroupsResponse((DeletedGroup(request.groups[0], error),)),
    )
    pair.refusals = [ErrorCode.GROUP_ID_NOT_FOUND, None, ErrorCode.GROUP_ID_NOT_FOUND]
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match="group 'g': there is no such group"):
            await admin.delete_groups("g")
        await admin.delete_groups("g", "h")
    names = [request.groups for request in pair.brokers[2].asked(DeleteGroupsRequest)]
    assert names == [("g",), ("g",), ("g",), ("h",)]


async def test_who_coordinates_is_asked_until_somebody_does(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """GRP-01: COORDINATOR_NOT_AVAILABLE passes; at the end of the time it is what is told."""
    pair.serve(ApiKey.OFFSET_FETCH, lambda _, error: OffsetFetchResponse(error))
    pair.not_found = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    async with Admin("a:9092", seams=seams, default_api_timeout_ms=2000) as admin:
        assert await admin.committed_offsets("g") == {}
        pair.not_found = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000
        began = trio.current_time()
        text = "OFFSET_FETCH of group 'g': .*COORDINATOR_NOT_AVAILABLE.*wait for the others"
        with pytest.raises(ClientTimeout, match=text):
            await admin.committed_offsets("g")
        assert trio.current_time() - began == pytest.approx(2)
        assert sum(pair.asked(FindCoordinatorRequest)) < 60


async def test_a_refused_name_is_not_repeated_in_full(
    pair: Pair, seams: Any, autojump_clock: Any
) -> None:
    """A name of ten thousand characters is refused at once, and does not fill the screen."""
    pair.not_found = [ErrorCode.INVALID_GROUP_ID]
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match=r"group 'x+\.\.\.': wait for") as raised:
            await admin.describe_groups("x" * 10_000)
    assert len(str(raised.value)) < 150


async def test_no_broker_at_all_is_a_timeout(seams: Any, autojump_clock: Any) -> None:
    """Every call gives up in its time, and names whom it asked."""
    async with Admin("nobody:9092", seams=seams, default_api_timeout_ms=1000) as admin:
        for call in (
            admin.list_groups(),
            admin.describe_groups("g"),
            admin.delete_groups("g"),
            admin.committed_offsets("g"),
            admin.commit_offsets("g", {("t", 0): 1}),
            admin.delete_offsets("g", [("t", 0)]),
        ):
            began = trio.current_time()
            with pytest.raises(ClientTimeout, match="no answer from nobody:9092"):
                await call
            assert trio.current_time() - began == pytest.approx(1, abs=0.1)
