"""The coordinator of one broker: terms, loading, what it writes by itself, and what it lets go."""

import pytest
import trio
import trio.testing

from minibroker.broker.groups.records import GroupKey, OffsetKey, encode_key
from minibroker.broker.groups.states import State
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.control import TopicState
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import (
    READS_T,
    SESSION_MS,
    TWO,
    Keeper,
    error_of,
    keeping,
    state_of_offsets,
    turn,
)
from tests.unit.node import Node, state_of

COMMITTED = encode_key(OffsetKey("g", "t", 0))


def state_in(keeper: Keeper, group_id: str = "g") -> str:
    """The state of a group, as it is told."""
    answer = keeper.ask(DescribeGroupsRequest((group_id,)))
    state: str = answer.groups[0].state
    return state


# -- where a group is kept


async def test_who_is_not_the_coordinator_says_so(autojump_clock: trio.testing.MockClock) -> None:
    """GRP-01: no topic, or led elsewhere: NOT_COORDINATOR; led here and not read yet:
    COORDINATOR_LOAD_IN_PROGRESS."""
    node = Node()
    node.live(1, 2)
    assert error_of(node) == ErrorCode.NOT_COORDINATOR
    node.know(state_of_offsets(leader=2, isr=(2,), replicas=(2,)))
    assert error_of(node) == ErrorCode.NOT_COORDINATOR
    keeper = Keeper()
    assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert keeper.ask(ListGroupsRequest()).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with keeping(keeper):
        assert error_of(keeper) == ErrorCode.NONE


async def test_each_group_has_one_of_the_partitions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-01: a broker answers for the groups of the partitions that it leads, and for no other."""
    node = Keeper()
    states = [
        state_of(TopicPartition(OFFSETS_TOPIC, n), leader=1 + n % 2, replicas=TWO, isr=TWO)
        for n in range(4)
    ]
    node.forget(state_of_offsets())
    node.stop(state_of_offsets(), delete=True, leader_epoch=0)
    node.know(*states)
    node.apply(*states)
    async with keeping(node):
        for number in (0, 2):
            name = TopicPartition(OFFSETS_TOPIC, number)
            node.followed(2, node.partition(name).log.log_end, name=name)
        await turn()
        errors = [error_of(node, group_id) for group_id in "abcdefgh"]
    # The hash of "a" is 97, which is 1 modulo 4.
    assert errors == [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE] * 4


# -- terms


async def test_a_new_leader_tells_nothing_that_could_be_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-01: it loads until its high watermark has reached the start of its term: until then
    it does not know whether what its predecessor told as committed is there."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        keeper.catch_up()
        with trio.move_on_after(1):
            await keeper.commit(7)  # in the log of both, and told as committed by broker 2
        lagging = keeper.offsets.high_watermark
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        assert error_of(keeper) == ErrorCode.NOT_COORDINATOR
        keeper.apply(state_of_offsets(epochs=(2, 2), isr=TWO, replicas=TWO))
        await turn()
        assert keeper.offsets.high_watermark == lagging < keeper.offsets.log.log_end
        assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert keeper.ask(ListGroupsRequest()).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        keeper.catch_up()
        await turn()
        assert keeper.fetch(require_stable=True).offset == 7


async def test_a_generation_lives_on_in_the_next_term(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-11: a new coordinator knows the members of the last stored generation, and gives
    each a whole session before it misses it."""
    keeper = Keeper()
    async with keeping(keeper):
        member = await keeper.lead_group()
        assert await keeper.commit(3, generation=1, member_id=member.member_id) == ErrorCode.NONE
        await trio.sleep(SESSION_MS / 1000 - 1)
        keeper.apply(state_of_offsets(epochs=(1, 1)))
        await turn()
        beat = HeartbeatRequest("g", 1, member.member_id)
        await trio.sleep(SESSION_MS / 1000 - 1)
        assert keeper.ask(beat).error == ErrorCode.NONE
        assert keeper.fetch().offset == 3
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert state_in(keeper) == State.EMPTY


async def test_who_waits_is_told_when_the_term_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-01: a JOIN, a SYNC and a commit that wait are answered NOT_COORDINATOR at once."""
    keeper = Keeper(TWO)
    answers = {}

    async def wait_for(name: str, parked: Parked) -> None:
        answers[name] = await keeper.purgatory.wait_for_answer(parked)

    async with keeping(keeper), trio.open_nursery() as nursery:
        keeper.catch_up()
        joined = await keeper.join("s")
        parts = (MemberAssignment(joined.member_id, b"all"),)
        asked = {
            "join": JoinGroupRequest("g", SESSION_MS, 9, instance_id="i", protocols=READS_T),
            "sync": SyncGroupRequest("s", 1, joined.member_id, assignments=parts),
        }
        for name, message in asked.items():
            nursery.start_soon(wait_for, name, keeper.ask(message))

        async def commit() -> None:
            answers["commit"] = await keeper.commit(1, "alone")

        nursery.start_soon(commit)
        await turn()
        assert not answers
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        now = trio.current_time()
        await turn()
        assert trio.current_time() == now
    away = ErrorCode.NOT_COORDINATOR
    assert (answers["join"].error, answers["sync"].error, answers["commit"]) == (away, away, away)


async def test_a_partition_that_is_given_up_is_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Who waits is told NOT_COORDINATOR, also when the log is gone already."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        parked = keeper.ask(OffsetCommitRequest("g", partitions=(PartitionCommit("t", 0, 1),)))
        partition = keeper.offsets
        keeper.stop(state_of_offsets(), delete=True, leader_epoch=0)
        partition.role.high_watermark = 1
        without_pause(keeper.manager.remove_deleted_files(2**40))
        answer = parked.attempt(trio.current_time())
        await turn()
        assert answer.partitions[0].error == ErrorCode.NOT_COORDINATOR
        assert error_of(keeper) == ErrorCode.NOT_COORDINATOR
        assert keeper.groups.statistics() == (0, 0)


async def test_a_follower_keeps_its_table_warm(autojump_clock: trio.testing.MockClock) -> None:
    """A failover finds little to replay: within a second or so a follower has taken in what its
    leader has committed."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        shard = keeper.shard
        batch = encode_batch([(0, COMMITTED, None, ())])
        log = keeper.offsets.log
        log.append_as_leader(memoryview(batch), 1, 0)
        keeper.offsets.role.high_watermark = log.log_end  # as the leader's answer would
        await trio.sleep(1.1)
        assert shard.replayed_end == log.log_end
        assert not shard.table.knows("g")


async def test_a_log_that_was_cut_is_read_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What an unclean election threw away is not told any more, though it was replayed here."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        await keeper.commit(2)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        keeper.offsets.log.truncate_to(1, 0)
        keeper.offsets.role.high_watermark = 1
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await turn()
        await keeper.commit(5, "other")
        assert keeper.fetch().offset == 1
        assert keeper.fetch("other").offset == 5
    assert "starting again" in caplog.text


async def test_a_commit_that_was_cut_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-02: what a term left uncommitted is not pending in a later one, which may not have it."""
    keeper = Keeper(TWO)
    async with keeping(keeper):
        keeper.catch_up()
        with trio.move_on_after(1):
            await keeper.commit(7)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        keeper.offsets.log.truncate_to(0, 0)
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await turn()
        await keeper.commit(8, "other")
        never = keeper.fetch(require_stable=True)
        assert (never.error, never.offset) == (ErrorCode.NONE, -1)


# -- what it does by itself


async def test_a_missed_session_removes_the_member(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-11: who is silent for a session is out, and that the group is empty is stored; a valid
    commit or heartbeat keeps the session."""
    keeper = Keeper()
    async with keeping(keeper):
        member = await keeper.lead_group()
        own = {"generation": 1, "member_id": member.member_id}
        for _ in range(2):
            await trio.sleep(SESSION_MS / 1000 - 1)
            assert await keeper.commit(1, **own) == ErrorCode.NONE
            await trio.sleep(SESSION_MS / 1000 - 1)
            assert keeper.ask(HeartbeatRequest("g", *own.values())).error == ErrorCode.NONE
        assert state_in(keeper) == State.STABLE
        await trio.sleep(SESSION_MS / 1000 + 0.1)
        assert state_in(keeper) == State.EMPTY
        assert keeper.shard.table.metadata("g").members == ()
        assert await keeper.commit(2, **own) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_that_cannot_be_stored_starts_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-04: with too few replicas in sync the leader's SYNC gets COORDINATOR_NOT_AVAILABLE, and
    the members join again; one that is not committed in time, REBALANCE_IN_PROGRESS."""
    keeper = Keeper(TWO, min_insync_replicas="2")
    async with keeping(keeper):
        keeper.catch_up()
        joined = await keeper.join()
        parts = (MemberAssignment(joined.member_id, b"all"),)
        sync = SyncGroupRequest("g", 1, joined.member_id, assignments=parts)
        keeper.apply(state_of_offsets(epochs=(0, 1), isr=(1,), replicas=TWO))
        assert (await keeper.answer(sync)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        keeper.apply(state_of_offsets(epochs=(0, 2), isr=TWO, replicas=TWO))
        joined = await keeper.join(member_id=joined.member_id)
        sync = SyncGroupRequest("g", joined.generation, joined.member_id, assignments=parts)
        begun = trio.current_time()
        assert (await keeper.answer(sync)).error == ErrorCode.REBALANCE_IN_PROGRESS
        assert trio.current_time() - begun == pytest.approx(5)


async def test_offsets_expire(autojump_clock: trio.testing.MockClock) -> None:
    """GRP-15: after the retention tombstones are written for the offsets and the group, and then it
    does not exist; a group with a member keeps all."""
    keeper = Keeper(offsets_retention_minutes="10", offsets_retention_check_interval_ms="1000")
    async with keeping(keeper):
        await keeper.commit(1, "alone")
        gone = await keeper.lead_group("gone")
        await keeper.commit(2, "gone", generation=1, member_id=gone.member_id)
        kept = await keeper.lead_group("kept")
        await keeper.commit(3, "kept", generation=1, member_id=kept.member_id)
        keeper.ask(LeaveGroupRequest("gone", (LeavingMember(gone.member_id),)))
        await trio.sleep(2)
        assert keeper.fetch("alone").offset == 1
        keeper.wall_time_ms += 10 * 60_000 + 1
        await trio.sleep(2)
        assert [keeper.fetch(name).offset for name in ("alone", "gone", "kept")] == [-1, -1, 3]
        listed = keeper.ask(ListGroupsRequest()).groups
    assert [group.group_id for group in listed] == ["kept"]
    tombstones = {record.key for record in keeper.stored() if record.value is None}
    assert tombstones == {
        encode_key(OffsetKey("alone", "t", 0)),
        encode_key(OffsetKey("gone", "t", 0)),
        encode_key(GroupKey("gone")),
    }


async def test_offsets_of_a_deleted_topic_go(autojump_clock: trio.testing.MockClock) -> None:
    """A topic that is made anew begins without offsets, and one that was deleted while nobody led
    is found when the next term begins."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(9)
        keeper.forget(state_of())
        await turn()
        assert keeper.fetch().offset == -1
        keeper.know(state_of(topic_id=b"n" * 16))
        await keeper.commit(5)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        keeper.forget(state_of(topic_id=b"n" * 16))
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await turn()
        assert keeper.fetch().offset == -1
    assert keeper.stored()[-1].value is None


async def test_an_image_in_parts_costs_no_offsets(autojump_clock: trio.testing.MockClock) -> None:
    """A new controller tells everything, in several requests; a topic is gone only if none of them
    names it, and not before the last."""
    keeper = Keeper()
    topics = {
        name: TopicState(name, topic.id, (), 1)
        for name, topic in keeper.services.image.topics.items()
    }
    async with keeping(keeper):
        await keeper.commit(9)
        keeper.update(topics=(topics[OFFSETS_TOPIC],), begins_image=True)
        keeper.apply(state_of_offsets(epochs=(1, 1)))
        await turn()
        keeper.update(topics=(topics["t"],), partitions=(state_of(), state_of_offsets()))
        keeper.apply(state_of_offsets(epochs=(1, 1)), completes_roles=True)
        await turn()
        assert keeper.fetch().offset == 9
        keeper.update(topics=(topics[OFFSETS_TOPIC],), begins_image=True)
        keeper.update(partitions=(state_of_offsets(),))
        keeper.apply(state_of_offsets(epochs=(1, 1)), completes_roles=True)
        await turn()
        assert keeper.fetch().offset == -1
