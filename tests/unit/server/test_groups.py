"""The group apis as a client meets them: offsets, members, and requests that are wrong."""

import math

import pytest
import trio
import trio.testing

from minibroker.broker.groups.states import State
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import metadata, produce
from minibroker.protocol.constants import ACKS_ALL, OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    SyncGroupRequest,
)
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from tests.unit.groups.keeping import READS_T, Keeper, keeping, state_of_offsets
from tests.unit.node import batch_of

TWO = (1, 2)
LONG = "n" * 10_240
TOO_LONG = "n" * 32_768


def commit_of(*partitions: PartitionCommit, group_id: str = "g", **more: object) -> object:
    return OffsetCommitRequest(group_id, partitions=partitions, **more)  # type: ignore[arg-type]


# -- offsets


async def test_a_commit_counts_when_it_is_committed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-02: a commit is answered once its record is on all in-sync replicas; until then a fetch
    tells the offset before, or UNSTABLE_OFFSET_COMMIT to who asks for stable ones."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        first = keeper.ask(commit_of(PartitionCommit("t", 0, 1, 4, "note")))
        keeper.catch_up()
        assert first.attempt(0.0).partitions[0].error == ErrorCode.NONE
        second = keeper.ask(commit_of(PartitionCommit("t", 0, 2)))
        assert isinstance(second, Parked)
        assert second.attempt(0.0) is None
        assert keeper.fetch() == PartitionGroupOffset("t", 0, 0, 1, 4, "note")
        unstable = keeper.fetch(require_stable=True)
        assert (unstable.error, unstable.offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        keeper.catch_up()
        assert keeper.fetch(require_stable=True).offset == 2
        assert second.attempt(0.0).partitions[0].error == ErrorCode.NONE


async def test_a_commit_is_one_batch(autojump_clock: trio.testing.MockClock) -> None:
    """The partitions of a request are committed together, each by a record of the wall clock's
    time."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.answer(commit_of(*(PartitionCommit("t", n, n) for n in range(3))))
        assert keeper.offsets.log.epochs.entries[-1].offset == 0
        assert [record.timestamp for record in keeper.stored()] == [keeper.wall_time_ms] * 3
        told = keeper.ask(OffsetFetchRequest("g")).partitions
    assert [(item.partition, item.offset) for item in told] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("isr", "min_isr", "settings", "error"),
    [
        (TWO, "3", {}, ErrorCode.REQUEST_TIMED_OUT),  # no more is asked than there are replicas
        ((1,), "2", {}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (TWO, "1", {"message_max_bytes": "90"}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (TWO, "1", {"log_segment_bytes": "90"}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
async def test_why_a_commit_fails(
    autojump_clock: trio.testing.MockClock,
    isr: tuple[int, ...],
    min_isr: str,
    settings: dict[str, str],
    error: ErrorCode,
) -> None:
    """GRP-04: what the append is refused with is told as a coordinator's error; what was not
    written is not pending."""
    keeper = Keeper(TWO, min_insync_replicas=min_isr, **settings)
    async with keeping(keeper):
        keeper.apply(state_of_offsets(epochs=(0, 1), isr=isr, replicas=TWO))
        assert await keeper.commit(1) == error
        is_pending = error == ErrorCode.REQUEST_TIMED_OUT
        expected = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_pending else ErrorCode.NONE
        assert keeper.fetch(require_stable=True).error == expected


async def test_a_full_disk_moves_the_coordinator_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-04: KAFKA_STORAGE_ERROR is NOT_COORDINATOR to a group."""
    keeper = Keeper()
    async with keeping(keeper):
        keeper.files.space_bytes = keeper.files.used_bytes
        assert await keeper.commit(1) == ErrorCode.NOT_COORDINATOR


async def test_too_few_replicas_after_the_append(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-04: NOT_ENOUGH_REPLICAS_AFTER_APPEND is COORDINATOR_NOT_AVAILABLE."""
    keeper = Keeper(TWO, min_insync_replicas="2")
    async with keeping(keeper):
        parked = keeper.ask(commit_of(PartitionCommit("t", 0, 1)))
        keeper.catch_up()
        keeper.apply(state_of_offsets(epochs=(0, 1), isr=(1,), replicas=TWO))
        answer = parked.attempt(trio.current_time())
    assert answer.partitions[0].error == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_who_may_commit(autojump_clock: trio.testing.MockClock) -> None:
    """GRP-05, GRP-06: a member in its generation, also while the group prepares the next one, but
    not before it has its new assignment; and who has no generation only while nobody is there."""
    keeper = Keeper()
    async with keeping(keeper):
        assert await keeper.commit(1) == ErrorCode.NONE
        assert await keeper.commit(1, generation=0) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await keeper.commit(1, "none", generation=0) == ErrorCode.ILLEGAL_GENERATION
        first = await keeper.lead_group()
        own = {"generation": 1, "member_id": first.member_id}
        assert await keeper.commit(2) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await keeper.commit(2, **{**own, "generation": 2}) == ErrorCode.ILLEGAL_GENERATION
        assert await keeper.commit(2, **{**own, "member_id": "?"}) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await keeper.commit(2, **own) == ErrorCode.NONE
        fenced = {**own, "instance_id": "i"}
        assert await keeper.commit(2, **fenced) == ErrorCode.UNKNOWN_MEMBER_ID
        second = keeper.ask(JoinGroupRequest("g", 10_000, 9, instance_id="i", protocols=READS_T))
        assert isinstance(second, Parked)
        assert keeper.ask(HeartbeatRequest("g", *own.values())).error == (
            ErrorCode.REBALANCE_IN_PROGRESS
        )
        assert await keeper.commit(3, **own) == ErrorCode.NONE
        await keeper.join(member_id=first.member_id)
        own["generation"] = 2
        assert await keeper.commit(4, **own) == ErrorCode.REBALANCE_IN_PROGRESS
        assert keeper.fetch().offset == 3


async def test_each_partition_has_its_own_outcome(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-07: what cannot be committed is refused by itself, and the others are committed: metadata
    too long, no such partition, an offset that cannot be, an epoch that cannot be. An offset beyond
    the log is taken: only the partition's leader knows where that ends."""
    keeper = Keeper()
    asked = [
        (PartitionCommit("t", 0, 5, metadata="m" * 4096), ErrorCode.NONE),
        (PartitionCommit("t", 1, 5, metadata="m" * 4097), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (PartitionCommit("t", 1, 5, metadata="\xe4" * 2049), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (PartitionCommit("t", 3, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("t", -1, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("gone", 0, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("t", 1, -1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (PartitionCommit("t", 1, 5, -2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (PartitionCommit("t", 1, 5, 2**31), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (PartitionCommit("t", 2, 2**63 - 1, 2**31 - 1), ErrorCode.NONE),
    ]
    async with keeping(keeper):
        answer = await keeper.answer(commit_of(*(partition for partition, _ in asked)))
        assert [item.error for item in answer.partitions] == [error for _, error in asked]
        told = keeper.ask(OffsetFetchRequest("g")).partitions
    assert [(item.partition, item.offset) for item in told] == [(0, 5), (2, 2**63 - 1)]


async def test_what_was_never_committed(autojump_clock: trio.testing.MockClock) -> None:
    """GRP-08: -1 and no error, for a known group and an unknown one, and for a partition that does
    not exist."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        for group_id, partition in (("g", 1), ("none", 0), ("none", 99)):
            asked = (GroupPartition("t", partition),)
            answer = keeper.ask(OffsetFetchRequest(group_id, asked))
            never = PartitionGroupOffset("t", partition, metadata="")
            assert (answer.error, answer.partitions) == (ErrorCode.NONE, (never,))
        assert keeper.ask(OffsetFetchRequest("none")).partitions == ()


async def test_who_may_be_replaced_tells_no_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A1: where the broker's session may have ended, a successor may have told newer offsets."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        keeper.controller.is_session_over = True
        answer = keeper.ask(OffsetFetchRequest("g"))
    assert (answer.error, answer.partitions) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())


async def test_offsets_are_deleted(autojump_clock: trio.testing.MockClock) -> None:
    """Deleted are the offsets of topics that no member reads; the answer comes when the tombstones
    are committed."""
    keeper = Keeper()
    deletion = OffsetDeleteRequest("g", (GroupPartition("t", 0), GroupPartition("gone", 0)))
    async with keeping(keeper):
        missing = keeper.ask(deletion)
        assert (missing.error, missing.partitions) == (ErrorCode.GROUP_ID_NOT_FOUND, ())
        await keeper.commit(1)
        member = await keeper.lead_group()
        read = keeper.ask(deletion)
        assert [item.error for item in read.partitions] == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        keeper.ask(LeaveGroupRequest("g", (LeavingMember(member.member_id),)))
        done = await keeper.answer(deletion)
        assert [item.error for item in done.partitions] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert keeper.fetch().offset == -1


async def test_offsets_of_members_that_are_no_consumers_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What a member of another protocol reads is not known: NON_EMPTY_GROUP."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        odd = {"protocol_type": "connect", "protocols": (GroupProtocol("p", b"?"),)}
        given = keeper.ask(JoinGroupRequest("g", 10_000, 9, **odd)).member_id
        await keeper.answer(JoinGroupRequest("g", 10_000, 9, given, **odd))
        answer = keeper.ask(OffsetDeleteRequest("g", (GroupPartition("t", 0),)))
    assert answer.error == ErrorCode.NON_EMPTY_GROUP


# -- groups


async def test_groups_are_listed_described_and_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A group with members stays (NON_EMPTY_GROUP), one that is not there is GROUP_ID_NOT_FOUND and
    described as Dead, and of one that was deleted nothing is left but tombstones."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1, "alone")
        member = await keeper.lead_group("full")
        await keeper.commit(2, "full", generation=1, member_id=member.member_id)
        listed = {group.group_id: group for group in keeper.ask(ListGroupsRequest()).groups}
        assert {name: group.state for name, group in listed.items()} == {
            "alone": State.EMPTY,
            "full": State.STABLE,
        }
        assert listed["full"].protocol_type == "consumer"
        stable = keeper.ask(ListGroupsRequest((State.STABLE,))).groups
        assert [group.group_id for group in stable] == ["full"]
        described = keeper.ask(DescribeGroupsRequest(("full", "none"))).groups
        assert [group.state for group in described] == [State.STABLE, State.DEAD]
        told = described[0].members[0]
        assert (told.client_id, told.client_host, told.assignment) == ("app", "10.0.0.1", b"all")

        names = ("alone", "full", "none")
        answer = await keeper.answer(DeleteGroupsRequest(names))
        assert answer.groups == (
            DeletedGroup("alone", ErrorCode.NONE),
            DeletedGroup("full", ErrorCode.NON_EMPTY_GROUP),
            DeletedGroup("none", ErrorCode.GROUP_ID_NOT_FOUND),
        )
        keeper.ask(LeaveGroupRequest("full", (LeavingMember(member.member_id),)))
        assert (await keeper.answer(DeleteGroupsRequest(("full",)))).groups[0].error == 0
        assert keeper.ask(ListGroupsRequest()).groups == ()
    values = {record.key: record.value for record in keeper.stored()}
    assert set(values.values()) == {None}
    assert len(values) == 3


async def test_a_deletion_is_not_told_before_it_is_committed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """DELETE_GROUPS waits for its tombstones, and says REQUEST_TIMED_OUT if they take too long."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        parked = keeper.ask(commit_of(PartitionCommit("t", 0, 1)))
        keeper.catch_up()
        await keeper.purgatory.settle(parked)
        late = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert late.groups[0].error == ErrorCode.REQUEST_TIMED_OUT
        assert keeper.fetch().offset == 1
        keeper.catch_up()
        assert keeper.fetch().offset == -1


async def test_joins(autojump_clock: trio.testing.MockClock) -> None:
    """GRP-12: a session out of its bounds, a member id in a group that is not there, no protocol
    that all can do, and a first join without an id, which is told the one to use. None of them
    leaves a group behind."""
    keeper = Keeper()
    request = JoinGroupRequest("g", 10_000, 9, protocols=READS_T)
    async with keeping(keeper):
        for session_ms in (999, 1_800_001, -(2**63), 2**63 - 1):
            refused = keeper.ask(JoinGroupRequest("g", session_ms, 9, protocols=READS_T))
            assert refused.error == ErrorCode.INVALID_SESSION_TIMEOUT
        unknown = keeper.ask(JoinGroupRequest("g", 10_000, 9, "m", protocols=READS_T))
        assert unknown.error == ErrorCode.UNKNOWN_MEMBER_ID
        assert keeper.ask(ListGroupsRequest()).groups == ()
        told = keeper.ask(request)
        assert told.error == ErrorCode.MEMBER_ID_REQUIRED
        assert told.member_id.startswith("app-")
        await keeper.lead_group()
        other = JoinGroupRequest("g", 10_000, 9, protocols=(GroupProtocol("other"),))
        assert keeper.ask(other).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("group_id", ["", TOO_LONG], ids=["none", "32 KiB"])
async def test_names_that_no_record_can_hold(
    autojump_clock: trio.testing.MockClock, group_id: str
) -> None:
    """A group without a name, or with one that is longer than a record's, is INVALID_GROUP_ID to
    every request."""
    keeper = Keeper()
    invalid = ErrorCode.INVALID_GROUP_ID
    async with keeping(keeper):
        for request in (
            FindCoordinatorRequest(group_id),
            JoinGroupRequest(group_id, 10_000, 9, protocols=READS_T),
            SyncGroupRequest(group_id, 1, "m"),
            HeartbeatRequest(group_id, 1, "m"),
            LeaveGroupRequest(group_id),
            OffsetFetchRequest(group_id),
            OffsetDeleteRequest(group_id),
        ):
            assert keeper.ask(request).error == invalid, request
        assert await keeper.commit(1, group_id) == invalid
        assert keeper.ask(DescribeGroupsRequest((group_id,))).groups[0].error == invalid
        deleted = await keeper.answer(DeleteGroupsRequest((group_id,)))
        assert deleted.groups[0].error == invalid


async def test_a_long_name_works(autojump_clock: trio.testing.MockClock) -> None:
    """A group's name of 10 KiB is stored and found again, with members and a long client's name."""
    keeper = Keeper()
    async with keeping(keeper):
        assert keeper.ask(FindCoordinatorRequest(LONG)).node_id == 1
        assert await keeper.commit(7, LONG) == ErrorCode.NONE
        await keeper.lead_group(LONG)
        keeper.apply(state_of_offsets(epochs=(1, 1)))
        await trio.testing.wait_all_tasks_blocked()
        assert keeper.fetch(LONG).offset == 7
        described = keeper.ask(DescribeGroupsRequest((LONG,))).groups[0]
    assert (described.state, len(described.members)) == (State.STABLE, 1)


async def test_texts_that_no_record_can_hold(autojump_clock: trio.testing.MockClock) -> None:
    """Whatever a member calls itself, its group can be stored, or the member is refused."""
    keeper = Keeper()
    names = (TOO_LONG, "\xe4" * 16_384, "n" * 32_767)
    async with keeping(keeper):
        for number, name in enumerate(names):
            group_id = f"g{number}"
            for request in (
                JoinGroupRequest(group_id, 10_000, 9, instance_id=name, protocols=READS_T),
                JoinGroupRequest(
                    group_id, 10_000, 9, instance_id="i", protocols=(GroupProtocol(name),)
                ),
                JoinGroupRequest(
                    group_id, 10_000, 9, instance_id="i", protocol_type=name, protocols=READS_T
                ),
            ):
                answer = await keeper.answer(request)
                if not answer.error:
                    sync = SyncGroupRequest(
                        group_id, answer.generation, answer.member_id, request.instance_id
                    )
                    assert (await keeper.answer(sync)).error == ErrorCode.NONE
                    keeper.ask(LeaveGroupRequest(group_id, (LeavingMember(answer.member_id),)))


# -- the offsets topic


async def test_clients_do_not_write_groups(autojump_clock: trio.testing.MockClock) -> None:
    """A producer to the offsets topic gets INVALID_TOPIC_EXCEPTION and a sentence; METADATA says
    that the topic is internal."""
    keeper = Keeper()
    partition = PartitionProduce(OFFSETS_TOPIC, 0, records=batch_of())
    answer = produce.handle(keeper.services, ProduceRequest(ACKS_ALL, 9, (partition,)), 0.0)
    assert answer.partitions[0].error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "group apis" in answer.partitions[0].error_message
    told = metadata.handle(keeper.services, MetadataRequest((OFFSETS_TOPIC, "t")), 0.0)
    assert [topic.is_internal for topic in told.topics] == [True, False]


async def test_waiting_has_no_deadline_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A JOIN waits as long as its group: no time-out of the session or the wire answers for it."""
    keeper = Keeper()
    request = JoinGroupRequest("g", 10_000, 9, instance_id="i", protocols=READS_T)
    async with keeping(keeper):
        assert keeper.ask(request).deadline() == math.inf
