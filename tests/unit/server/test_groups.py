"""The group apis as a client meets them: members, groups, and requests that are wrong."""

import math
from collections.abc import Generator

import pytest
import trio
import trio.testing

from minibroker.broker.controller.context import Job
from minibroker.broker.groups.coordinator import PUT_OUT
from minibroker.broker.groups.states import State
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import groups, metadata, produce
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ACKS_ALL, OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from tests.unit.groups.keeping import (
    READS_T,
    SESSION_MS,
    TWO,
    Keeper,
    commit_of,
    error_of,
    keeping,
    state_of_offsets,
    turn,
)
from tests.unit.node import Node, batch_of

LONG = "n" * 10_240
TOO_LONG = "n" * 32_768


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
        for asked in (((State.STABLE,),), (("stable",), ("Classic",))):
            stable = keeper.ask(ListGroupsRequest(*asked)).groups
            assert [group.group_id for group in stable] == ["full"]
        assert keeper.ask(ListGroupsRequest((), ("consumer",))).groups == ()
        assert listed["full"].type == "classic"
        described = keeper.ask(DescribeGroupsRequest(("full", "none"))).groups
        assert [group.state for group in described] == [State.STABLE, State.DEAD]
        assert {group.authorized_operations for group in described} == {-(2**31)}
        (told,) = keeper.ask(DescribeGroupsRequest(("full",), True)).groups
        assert told.authorized_operations == 0b110101001000
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
        await keeper.purgatory.wait_for_answer(parked)
        late = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert late.groups[0].error == ErrorCode.REQUEST_TIMED_OUT
        assert keeper.fetch().offset == 1
        keeper.catch_up()
        assert keeper.fetch().offset == -1


async def test_a_deleted_group_does_not_come_back(autojump_clock: trio.testing.MockClock) -> None:
    """Its first generation, whose record was under way when it was deleted, is gone with it."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        keeper.catch_up()
        await turn()
        joined = await keeper.join()
        member, part = joined.member_id, MemberAssignment(joined.member_id, b"all")
        keeper.ask(SyncGroupRequest("g", joined.generation, member, assignments=(part,)))
        keeper.ask(LeaveGroupRequest("g", (LeavingMember(member),)))
        parked = keeper.ask(DeleteGroupsRequest(("g",)))
        assert parked.attempt(0.0) is None
        keeper.catch_up()
        assert parked.attempt(0.0).groups[0].error == ErrorCode.NONE
        assert keeper.ask(ListGroupsRequest()).groups == ()


async def test_no_group_is_deleted_before_its_end_is_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """COORDINATOR_NOT_AVAILABLE: if its tombstones failed as well, members would come back that
    left long ago, and nobody would ever put them out."""
    keeper = Keeper()
    async with keeping(keeper):
        member = await keeper.lead_group()
        keeper.configure(OFFSETS_TOPIC, min_insync_replicas="2")
        keeper.apply(state_of_offsets(epochs=(0, 1), replicas=TWO))
        keeper.ask(LeaveGroupRequest("g", (LeavingMember(member.member_id),)))
        deleted = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert deleted.groups[0].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        keeper.configure(OFFSETS_TOPIC, min_insync_replicas="1")
        await trio.sleep(2)
        deleted = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert deleted.groups[0].error == ErrorCode.NONE
        assert keeper.ask(ListGroupsRequest()).groups == ()


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


def test_a_coordinator_is_named_once_it_was_told_its_role() -> None:
    """A broker knows of a new offsets topic a moment before it is told to lead it: a client that
    was sent to it in between would be refused."""
    node = Node()
    node.live(1)
    node.controller.forward = Job
    parked = groups.find_coordinator(node.services, FindCoordinatorRequest("g"), 0.0)
    assert isinstance(parked, Parked)
    assert parked.attempt(0.0) is None
    node.know(state_of_offsets())
    assert parked.attempt(0.0) is None
    node.apply(state_of_offsets())
    found = parked.attempt(0.0)
    assert found is not None
    assert (found.error, found.node_id) == (ErrorCode.NONE, 1)


def test_several_coordinators_are_named_once_the_topic_is_made() -> None:
    """Each group once, in order, with its own error."""
    node = Node()
    node.live(1)
    node.controller.forward = Job
    request = FindCoordinatorRequest("", group_ids=("g", "", "h", "g"))
    parked = groups.find_coordinator(node.services, request, 0.0)
    assert isinstance(parked, Parked)
    refused = parked.expire().coordinators
    assert [one.error for one in refused] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    assert parked.attempt(0.0) is None
    node.know(state_of_offsets())
    node.apply(state_of_offsets())
    told = [("g", 0, 1), ("", ErrorCode.INVALID_GROUP_ID, -1), ("h", 0, 1)]
    for answer in (parked.attempt(0.0), groups.find_coordinator(node.services, request, 0.0)):
        found = [(one.group_id, one.error, one.node_id) for one in answer.coordinators]
        assert found == told
    unknown = FindCoordinatorRequest("", 2, ("x",))
    (one,) = groups.find_coordinator(node.services, unknown, 0.0).coordinators
    assert one.error == ErrorCode.INVALID_REQUEST


async def test_a_sync_of_another_protocol_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As in Kafka from version 5 of SyncGroup on; the answer names the group's own."""
    keeper = Keeper()
    async with keeping(keeper):
        member = await keeper.lead_group("g")
        named = {"protocol_type": "consumer", "protocol": member.protocol}
        for wrong in ({"protocol_type": "connect"}, {"protocol": "sticky"}, {"protocol": ""}):
            request = SyncGroupRequest("g", 1, member.member_id, **(named | wrong))
            answer = keeper.ask(request)
            assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        answer = keeper.ask(SyncGroupRequest("g", 1, member.member_id, **named))
        assert (answer.error, answer.assignment) == (ErrorCode.NONE, b"all")
        assert (answer.protocol_type, answer.protocol) == ("consumer", member.protocol)
        assert member.protocol_type == "consumer"


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
    assert "written by brokers only" in answer.partitions[0].error_message
    outcome = metadata.handle(keeper.services, MetadataRequest((OFFSETS_TOPIC, "t")), 0.0)
    assert isinstance(outcome, Generator)
    told = without_pause(outcome)
    assert [topic.is_internal for topic in told.topics] == [True, False]


async def test_waiting_has_no_deadline_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A JOIN waits as long as its group: no time-out of the session or the wire answers for it."""
    keeper = Keeper()
    request = JoinGroupRequest("g", 10_000, 9, instance_id="i", protocols=READS_T)
    async with keeping(keeper):
        assert keeper.ask(request).deadline() == math.inf


# -- heartbeats while a coordinator loads


async def reelect(keeper: Keeper) -> HeartbeatRequest:
    """Elect broker 1 again, before broker 2 has told it what is committed. Returns a heartbeat of
    the group's only member."""
    keeper.catch_up()
    await turn()
    member = ""

    async def lead() -> None:
        nonlocal member
        member = (await keeper.lead_group()).member_id

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        while not member:
            await trio.sleep(1)
            keeper.catch_up()
    keeper.ask(commit_of(PartitionCommit("t", 0, 7), group_id="other"))  # broker 2 may have it
    keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
    keeper.apply(state_of_offsets(epochs=(2, 2), isr=TWO, replicas=TWO))
    await turn()
    return HeartbeatRequest("g", 1, member)


async def test_a_member_is_kept_while_its_coordinator_loads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-11: however long it takes, its heartbeats are answered without an error; then it is a
    member still, and has a whole session. Other requests wait until all is read."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        beat = await reelect(keeper)
        for _ in range(3):
            assert keeper.ask(beat) == HeartbeatResponse(is_loading=True)
            assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await trio.sleep(SESSION_MS / 1000)
        keeper.catch_up()
        await turn()
        await trio.sleep(SESSION_MS / 1000 - 1)
        assert keeper.ask(beat) == HeartbeatResponse()


async def test_a_coordinator_that_loads_and_may_be_replaced_keeps_no_member(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Past its session, and in the next one until it is told its role: the member is to look for
    another coordinator."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        beat = await reelect(keeper)
        keeper.controller.is_session_over = True
        assert keeper.ask(beat).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        keeper.controller.is_session_over = False
        assert keeper.ask(beat).error == ErrorCode.NONE
        keeper.broker_epoch = 2
        assert keeper.ask(beat).error == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("group_id", ["g", "another"])
@pytest.mark.parametrize("member_id", ["", "a stranger"])
async def test_a_coordinator_that_may_be_replaced_puts_nobody_out(
    autojump_clock: trio.testing.MockClock, group_id: str, member_id: str
) -> None:
    """Who is not a member here, or in another generation, may have joined at its successor: it is
    to look for that one."""
    keeper = Keeper()
    async with keeping(keeper):
        joined = await keeper.lead_group()
        asker = member_id or joined.member_id

        async def told() -> list[int]:
            more = {"generation": 9, "member_id": asker}
            return [
                keeper.ask(HeartbeatRequest(group_id, 9, asker)).error,
                keeper.ask(SyncGroupRequest(group_id, 9, asker)).error,
                await keeper.commit(1, group_id, **more),
                (await keeper.join(group_id, member_id="a stranger")).error,
            ]

        assert set(await told()) <= PUT_OUT
        keeper.controller.is_session_over = True
        assert set(await told()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_a_member_that_waits_is_not_put_out_by_a_former_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The answer to its JOIN is judged when it is given."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.lead_group()
        join = JoinGroupRequest("g", SESSION_MS, 30_000, instance_id="i", protocols=READS_T)
        waiting = keeper.ask(join)
        assert isinstance(waiting, Parked)
        keeper.controller.is_session_over = True
        keeper.ask(join)
        answer = await keeper.purgatory.wait_for_answer(waiting)
        assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
