"""Requests of groups over many items: what they cost, and what they may not take from others.

The tests run the generators of handlers by hand, and count how often they pause.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.coordination.coordinator import FOLLOW_INTERVAL_S
from minibroker.broker.groups.member import MEMBER_BYTES
from minibroker.broker.groups.records import Key, encode_key
from minibroker.broker.groups.shard import RECORDS
from minibroker.broker.groups.states import State
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.dispatch import dispatch
from minibroker.broker.server.handlers import group_offsets, groups
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    LeftMember,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import (
    API_OF,
    READS_T,
    TWO,
    Keeper,
    commit_of,
    keeping,
    state_of_offsets,
    turn,
)
from tests.unit.node import state_of

MANY = 5 * AT_ONCE


def wide_keeper(**settings: str) -> Keeper:
    """A broker that also knows topic `w` of MANY partitions, which are elsewhere."""
    keeper = Keeper(**settings)
    keeper.know(*(state_of(TopicPartition("w", number)) for number in range(MANY)))
    return keeper


def commit_all(offset: int = 1, metadata: str = "", **more: Any) -> Any:
    """A commit for all partitions of `w`."""
    partitions = (PartitionCommit("w", n, offset, -1, metadata) for n in range(MANY))
    return commit_of(*partitions, **more)


def begin(keeper: Keeper, message: Any) -> Generator[None, None, Any]:
    """The computation of a long request's answer."""
    envelope = RequestEnvelope(API_OF[type(message)], 0, 1, "app", message)
    outcome = dispatch(keeper.services, envelope, "10.0.0.1:5000", trio.current_time())
    assert isinstance(outcome, Generator)
    return outcome


def finish(computation: Generator[None, None, Any]) -> tuple[Any, int]:
    """What is left of a computation: its result, and how often it pauses."""
    pauses = 0
    while True:
        try:
            next(computation)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


# -- duplicates


async def test_each_name_is_answered_once(autojump_clock: trio.testing.MockClock) -> None:
    """However often a request names a group, a partition or a member: 7.5 KB that named one group
    2,500 times were answered with 2 GiB."""
    keeper = Keeper()
    async with keeping(keeper):
        member = await keeper.lead_group()
        described = keeper.ask(DescribeGroupsRequest(("g", "none") * 2500)).groups
        assert [group.group_id for group in described] == ["g", "none"]
        asked = (GroupPartition("t", 0), GroupPartition("t", 1)) * 2500
        fetched = keeper.ask(OffsetFetchRequest("g", asked)).partitions
        assert [item.partition for item in fetched] == [0, 1]
        leaving = (LeavingMember(member.member_id), LeavingMember("m")) * 2500
        left = keeper.ask(LeaveGroupRequest("g", leaving)).members
        assert left == (
            LeftMember(member.member_id),
            LeftMember("m", error=ErrorCode.UNKNOWN_MEMBER_ID),
        )
        await keeper.commit(3)
        deletion = OffsetDeleteRequest("g", (GroupPartition("t", 0),) * 2500)
        (deleted,) = (await keeper.answer(deletion)).partitions
        assert (deleted.partition, deleted.error) == (0, ErrorCode.NONE)
        gone = (await keeper.answer(DeleteGroupsRequest(("g", "none") * 2500))).groups
        assert gone == (
            DeletedGroup("g"),
            DeletedGroup("none", ErrorCode.GROUP_ID_NOT_FOUND),
        )
    assert len(keeper.stored()) == 5, "a generation, its end, an offset, and two tombstones"


async def test_of_two_commits_for_a_partition_the_last_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As in Kafka; it is answered once."""
    keeper = Keeper()
    async with keeping(keeper):
        twice = [PartitionCommit("t", 0, offset) for offset in (5, 6)]
        answer = await keeper.answer(commit_of(*twice, PartitionCommit("t", 1, 7), *twice))
        assert [(item.partition, item.error) for item in answer.partitions] == [(0, 0), (1, 0)]
        assert keeper.fetch().offset == 6
    assert len(keeper.stored()) == 2


# -- the size of answers


async def test_an_answer_has_room_for_some_groups(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond get an error on which clients ask again, and every next answer has more of
    them. One that no answer has room for gets another error."""
    keeper = Keeper()
    monkeypatch.setattr(groups, "ANSWER_BYTES_MAX", 700)
    names = ["g1", "g2", "g3", "g4", "g5"]
    async with keeping(keeper):
        for name in names:
            await keeper.lead_group(name)
        rounds = 0
        while names:
            described = keeper.ask(DescribeGroupsRequest(tuple(names))).groups
            assert [group.group_id for group in described] == names
            errors = [group.error for group in described]
            room = errors.count(ErrorCode.NONE)
            assert 0 < room < 4
            assert set(errors[room:]) <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert [group.state for group in described[:room]] == [State.STABLE] * room
            names, rounds = names[room:], rounds + 1
        assert rounds > 1
        monkeypatch.setattr(groups, "ANSWER_BYTES_MAX", 100)
        (large,) = keeper.ask(DescribeGroupsRequest(("g1",))).groups
        assert (large.error, large.members) == (ErrorCode.MESSAGE_TOO_LARGE, ())
        listed = keeper.ask(ListGroupsRequest())
        assert (listed.error, len(listed.groups)) == (ErrorCode.MESSAGE_TOO_LARGE, 1)


async def test_more_offsets_than_an_answer_has_room_for_are_refused(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole, because a consumer needs all that it asks for; fewer at a time can be asked."""
    keeper = Keeper()
    monkeypatch.setattr(group_offsets, "ANSWER_BYTES_MAX", 1000)
    async with keeping(keeper):
        commits = (PartitionCommit("t", number, 1, -1, "m" * 400) for number in range(3))
        await keeper.answer(commit_of(*commits))
        all_three = keeper.ask(OffsetFetchRequest("g"))
        assert (all_three.error, all_three.partitions) == (ErrorCode.INVALID_REQUEST, ())
        assert keeper.fetch().metadata == "m" * 400


# -- turns


async def test_long_requests_pause(autojump_clock: trio.testing.MockClock) -> None:
    """Each handles some hundred items in one turn."""
    keeper = wide_keeper()
    names = tuple(f"n{number}" for number in range(MANY))
    partitions = tuple(GroupPartition("w", number) for number in range(MANY))
    async with keeping(keeper):
        parked, pauses = finish(begin(keeper, commit_all()))
        assert pauses >= 3 * MANY // AT_ONCE - 1, "to look at all, to check them, to encode them"
        answer = await keeper.wait(parked)
        assert {item.error for item in answer.partitions} == {ErrorCode.NONE}
        for message in (
            OffsetFetchRequest("g"),
            OffsetFetchRequest("g", partitions),
            LeaveGroupRequest("g", tuple(map(LeavingMember, names))),
            DescribeGroupsRequest(names),
        ):
            _, pauses = finish(begin(keeper, message))
            assert pauses >= MANY // AT_ONCE - 1, type(message)
        _, pauses = finish(begin(keeper, DescribeGroupsRequest(("n" * 32_000, "m" * 32_000))))
        assert pauses == 2, "long names take as long as many"
        for name in names[: 2 * AT_ONCE]:
            keeper.ask(commit_of(PartitionCommit("t", 0, 1), group_id=name))
        listed, pauses = finish(begin(keeper, ListGroupsRequest()))
        assert (len(listed.groups), pauses) == (2 * AT_ONCE + 1, 2)
        for message in (OffsetDeleteRequest("g", partitions), DeleteGroupsRequest(("g", *names))):
            await keeper.answer(commit_all())
            parked, pauses = finish(begin(keeper, message))
            assert pauses >= 2 * MANY // AT_ONCE - 1, type(message)
            await keeper.wait(parked)
            assert keeper.ask(OffsetFetchRequest("g")).partitions == ()


async def test_a_long_commit_is_answered_once_it_is_replayed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its record is replayed in parts, without a pause in which nobody works at it."""
    keeper = wide_keeper()
    async with keeping(keeper):
        begun_at = trio.current_time()
        await keeper.answer(commit_all(7))
        assert trio.current_time() - begun_at < FOLLOW_INTERVAL_S / 2
        told = keeper.ask(OffsetFetchRequest("g")).partitions
    assert [item.offset for item in told] == [7] * MANY


async def test_all_of_a_long_commit_or_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A commit whose sender is no member any more when its preparation ends writes nothing; nor
    does one whose group has moved to another broker."""
    keeper = wide_keeper()
    async with keeping(keeper):
        joined = await keeper.lead_group()
        stored = len(keeper.stored())
        own = {"generation": joined.generation, "member_id": joined.member_id}
        commit = begin(keeper, commit_all(**own))
        for _ in range(8):
            next(commit)
        keeper.ask(LeaveGroupRequest("g", (LeavingMember(joined.member_id),)))
        answer, _ = finish(commit)
        assert {item.error for item in answer.partitions} == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert len(keeper.stored()) == stored + 1, "the group's end"
        commit = begin(keeper, commit_all())
        for _ in range(8):
            next(commit)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await turn()
        answer, _ = finish(commit)
        assert {item.error for item in answer.partitions} == {ErrorCode.NOT_COORDINATOR}
        assert len(keeper.stored()) == stored + 1


async def test_a_commit_that_no_batch_can_hold_is_not_encoded(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused as soon as that is clear, and nothing of it is stored."""
    keeper = wide_keeper(message_max_bytes="20000")
    encoded: list[Key] = []

    def encode(key: Key) -> bytes:
        encoded.append(key)
        return encode_key(key)

    encoding = replace(RECORDS, encode_key=encode)
    monkeypatch.setattr("minibroker.broker.groups.shard.RECORDS", encoding)
    async with keeping(keeper):
        answer, _ = finish(begin(keeper, commit_all()))
        assert {item.error for item in answer.partitions} == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert AT_ONCE // 2 < len(encoded) < MANY // 2
        assert keeper.stored() == []


async def test_nobody_uses_a_group_that_is_being_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its tombstones are appended in turns. In between a commit or a join is told to try again: a
    tombstone after it would delete what it was promised."""
    keeper = wide_keeper()
    async with keeping(keeper):
        await keeper.answer(commit_all())
        deletion = begin(keeper, DeleteGroupsRequest(("g",)))
        for _ in range(3):
            next(deletion)
        assert await keeper.commit(9) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await keeper.join()).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        parked, _ = finish(deletion)
        assert isinstance(parked, Parked)
        answer = await keeper.wait(parked)
        assert answer.groups[0].error == ErrorCode.NONE
        assert await keeper.commit(9) == ErrorCode.NONE
        assert keeper.fetch().offset == 9


async def test_an_end_of_a_deletion_frees_the_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client that is gone in the middle of it leaves a group that can be used."""
    keeper = wide_keeper()
    async with keeping(keeper):
        await keeper.answer(commit_all())
        deletion = begin(keeper, DeleteGroupsRequest(("g",)))
        next(deletion)
        deletion.close()
        assert await keeper.commit(9) == ErrorCode.NONE


async def test_members_that_leave_together_rebalance_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Static members that one request removes."""
    keeper = Keeper()
    async with keeping(keeper):
        for number in range(3):
            join = JoinGroupRequest("g", 10_000, 60_000, "", f"i{number}", protocols=READS_T)
            keeper.ask(join)
        await trio.sleep(5)
        by_instance = tuple(LeavingMember(instance_id=f"i{number}") for number in range(3))
        left = keeper.ask(LeaveGroupRequest("g", by_instance)).members
        assert [each.error for each in left] == [ErrorCode.NONE] * 3
        (described,) = keeper.ask(DescribeGroupsRequest(("g",))).groups
    assert (described.state, described.generation) == (State.EMPTY, 2)


# -- memory


async def test_the_memory_of_all_groups_is_limited(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """group.coordinator.max.bytes: a join or a commit that needs more is told to try again; what
    is there goes on, and what goes makes room. The operator hears of it once."""
    keeper = wide_keeper(group_coordinator_max_bytes="1048576")
    half = (GroupProtocol("range", bytes(500_000)),)
    async with keeping(keeper):
        member = await keeper.lead_group()
        own = {"generation": 1, "member_id": member.member_id}
        assert await keeper.commit(1, **own) == ErrorCode.NONE
        large = [
            keeper.ask(JoinGroupRequest(name, 10_000, 9, instance_id="i", protocols=half))
            for name in ("h", "i", "j")
        ]
        assert isinstance(large[1], Parked)
        assert large[2].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert keeper.groups.held_bytes > 1_000_000 + 3 * MEMBER_BYTES
        answer, _ = finish(begin(keeper, commit_all(group_id="k")))
        assert {item.error for item in answer.partitions} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await keeper.commit(2, **own) == ErrorCode.NONE
        assert await keeper.commit(2, "l") == ErrorCode.NONE, "there is room for one"
        part = MemberAssignment(member.member_id, bytes(100_000))
        sync = SyncGroupRequest("g", 1, member.member_id, assignments=(part,))
        assert keeper.ask(sync).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        keeper.ask(LeaveGroupRequest("h", (LeavingMember(instance_id="i"),)))
        again = keeper.ask(JoinGroupRequest("j", 10_000, 9, instance_id="i", protocols=half))
        assert isinstance(again, Parked)
    assert len([line for line in caplog.messages if "group.coordinator.max.bytes" in line]) == 1


async def test_no_memory_is_counted_for_what_is_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Members that left, ids that expired, deleted groups, and a coordinator that moved on."""
    keeper = wide_keeper()
    async with keeping(keeper):
        for name in ("g", "h"):
            member = await keeper.lead_group(name)
            keeper.ask(JoinGroupRequest(name, 10_000, 9, protocols=READS_T))
            assert keeper.groups.held_bytes > 0
            keeper.ask(LeaveGroupRequest(name, (LeavingMember(member.member_id),)))
        await keeper.answer(commit_all(group_id="i"))
        await trio.sleep(20)
        await keeper.answer(DeleteGroupsRequest(("g", "h", "i")))
        assert keeper.groups.held_bytes == 0
        await keeper.join("i")
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        assert keeper.groups.held_bytes == 0
