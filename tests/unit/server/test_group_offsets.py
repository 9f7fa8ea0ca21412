"""OFFSET_COMMIT, OFFSET_FETCH and OFFSET_DELETE as a client meets them."""

import pytest
import trio
import trio.testing

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.member_connections import GROUPS_MAX, HEARD_S, MemberConnections
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupOffsets,
    GroupPartition,
    GroupPartitions,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import READS_T, TWO, Keeper, commit_of, keeping, state_of_offsets
from tests.unit.node import state_of


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


async def test_offsets_are_committed_where_records_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Consumers go on while producers wait for room on the disk."""
    keeper = Keeper()
    async with keeping(keeper):
        keeper.manager.room.observe(0, 200)
        assert await keeper.commit(3) == ErrorCode.NONE
        assert keeper.fetch().offset == 3


async def test_topics_are_named_by_their_ids(autojump_clock: trio.testing.MockClock) -> None:
    """In commits and fetches; an id that no topic has is UNKNOWN_TOPIC_ID, beside others."""
    keeper = Keeper()
    async with keeping(keeper):
        topic_id = keeper.services.image.topics["t"].id
        ids = (topic_id, b"j" * 16, b"k" * 16)
        commit = commit_of(*(PartitionCommit("", 0, 7, topic_id=one) for one in ids))
        answer = await keeper.answer(commit)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        told = [(one.topic, one.error, one.topic_id) for one in answer.partitions]
        assert told == [("t", 0, ids[0]), ("", unknown, ids[1]), ("", unknown, ids[2])]
        wanted = tuple(GroupPartition("", 0, one) for one in ids)
        (found,) = all_of(keeper, GroupPartitions("g", wanted))
        assert [(one.topic, one.error, one.offset, one.topic_id) for one in found.partitions] == [
            ("t", 0, 7, ids[0]),
            ("", unknown, -1, ids[1]),
            ("", unknown, -1, ids[2]),
        ]
        other = GroupPartition("t", 0, b"j" * 16)
        (found,) = all_of(keeper, GroupPartitions("g", (other,)))
        assert found.partitions[0].error == unknown
        (found,) = all_of(keeper, GroupPartitions("g"))
        assert [(one.offset, one.topic_id) for one in found.partitions] == [(7, topic_id)]


def all_of(keeper: Keeper, *groups: GroupPartitions) -> tuple[GroupOffsets, ...]:
    """The offsets of several groups."""
    return keeper.ask(OffsetFetchRequest("", groups=groups)).groups


async def test_several_groups_have_errors_of_their_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each group once, in order."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1, "a")
        await keeper.commit(2, "b")
        wanted = (GroupPartition("t", 0),)
        names = ("a", "", "b", "none", "a")
        found = all_of(keeper, *(GroupPartitions(name, wanted) for name in names))
    assert [(one.group_id, one.error, one.partitions[0].offset) for one in found] == [
        ("a", 0, 1),
        ("", ErrorCode.INVALID_GROUP_ID, -1),
        ("b", 0, 2),
        ("none", 0, -1),
    ]
    assert found[1].partitions[0].error == ErrorCode.INVALID_GROUP_ID


async def test_a_member_of_an_unknown_group_is_told_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """By GROUP_ID_NOT_FOUND, if it knows that error: from version 9 of OffsetCommit on."""
    keeper = Keeper()
    async with keeping(keeper):
        for known, error in ((False, 22), (True, 69)):
            commit = {"generation": 3, "member_id": "m", "knows_unknown_group": known}
            assert await keeper.commit(1, "none", **commit) == error


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
        # No more in-sync replicas are asked than there are replicas, and the other does not fetch.
        (TWO, "3", {}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ((1,), "2", {}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (TWO, "1", {"message_max_bytes": "90"}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (TWO, "1", {"offsets_topic_segment_bytes": "90"}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
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
        is_pending = min_isr == "3"
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
    too long, no such partition, an epoch that cannot be. An offset beyond the log is taken: only
    the partition's leader knows where that ends. So is one below 0, as in Kafka."""
    keeper = Keeper()
    keeper.know(*(state_of(TopicPartition("u", number)) for number in range(8)))
    asked = [
        (PartitionCommit("u", 0, 5, metadata="m" * 4096), ErrorCode.NONE),
        (PartitionCommit("u", 1, 5, metadata="m" * 4097), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (PartitionCommit("u", 2, 5, metadata="\xe4" * 2049), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (PartitionCommit("u", 8, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("u", -1, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("gone", 0, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionCommit("u", 3, -2), ErrorCode.NONE),
        (PartitionCommit("u", 4, 5, -2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (PartitionCommit("u", 5, 5, 2**31), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (PartitionCommit("u", 6, 2**63 - 1, 2**31 - 1), ErrorCode.NONE),
    ]
    async with keeping(keeper):
        answer = await keeper.answer(commit_of(*(partition for partition, _ in asked)))
        assert [item.error for item in answer.partitions] == [error for _, error in asked]
        told = keeper.ask(OffsetFetchRequest("g")).partitions
    assert [(item.partition, item.offset) for item in told] == [(0, 5), (3, -2), (6, 2**63 - 1)]


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


async def test_no_partitions_are_not_all(autojump_clock: trio.testing.MockClock) -> None:
    """An empty list asks for nothing; only no list asks for all that the group has committed."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        assert keeper.ask(OffsetFetchRequest("g", ())).partitions == ()
        assert len(keeper.ask(OffsetFetchRequest("g", None)).partitions) == 1


async def test_who_may_be_replaced_tells_no_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GRP-02: once the broker's session may have ended, a successor may have newer offsets. A
    client asks again, until a controller has had time to replace the broker."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        keeper.controller.is_session_over = True
        answer = keeper.ask(OffsetFetchRequest("g"))
        assert (answer.error, answer.partitions) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
        keeper.controller.is_session_over = False
        assert keeper.fetch().offset == 1
        keeper.controller.is_session_over = True
        replaced_s = 2 * keeper.config.fence_timeout_ms / 1000
        keeper.ask(OffsetFetchRequest("g"))
        await trio.sleep(replaced_s - 0.1)
        answer = keeper.ask(OffsetFetchRequest("g"))
        assert answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(0.1)
        assert keeper.ask(OffsetFetchRequest("g")).error == ErrorCode.NOT_COORDINATOR


async def test_an_error_stands_beside_each_partition(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """aiokafka looks only there. A partition that is missing it takes for one without a commit: it
    began at `auto_offset_reset`."""
    keeper = Keeper()
    asked = (GroupPartition("t", 0), GroupPartition("t", 1), GroupPartition("t", 0))
    answer = keeper.ask(OffsetFetchRequest("g", asked))
    assert answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [(one.topic, one.partition, one.error, one.offset) for one in answer.partitions] == [
        ("t", 0, answer.error, -1),
        ("t", 1, answer.error, -1),
    ]
    many = tuple(GroupPartition("t", number) for number in range(2 * AT_ONCE))
    answer = keeper.ask(OffsetFetchRequest("g", many))
    assert [one.partition for one in answer.partitions] == list(range(2 * AT_ONCE))


async def test_a_member_whose_coordinator_was_replaced_asks_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its next heartbeat leads it to the new coordinator; librdkafka does not ask for its offsets
    again after NOT_COORDINATOR. A client that is no member has no heartbeats."""
    keeper = Keeper(TWO)
    member, other = "10.0.0.1:5000", "10.0.0.1:5001"
    asked = OffsetFetchRequest("g", (GroupPartition("t", 0),))
    async with keeping(keeper):
        keeper.ask(JoinGroupRequest("g", 6_000, 6_000, protocols=READS_T), member)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        assert keeper.ask(asked, member).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert keeper.ask(asked, other).error == ErrorCode.NOT_COORDINATOR
        assert keeper.ask(OffsetFetchRequest("h"), member).error == ErrorCode.NOT_COORDINATOR
        beat = HeartbeatRequest("g", 1, "m")
        assert keeper.ask(beat, member).error == ErrorCode.NOT_COORDINATOR
        await trio.sleep(HEARD_S)
        assert keeper.ask(asked, member).error == ErrorCode.NOT_COORDINATOR
        keeper.ask(SyncGroupRequest("g", 1, "m"), member)
        assert keeper.ask(asked, member).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        keeper.services.member_connections.forget(member)
        assert keeper.ask(asked, member).error == ErrorCode.NOT_COORDINATOR


async def test_a_commit_outlives_the_load_of_its_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """librdkafka gives a commit up that is answered COORDINATOR_LOAD_IN_PROGRESS for 0.3 s."""
    keeper = Keeper()
    assert await keeper.commit(1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_rebalance_whose_coordinator_loads_begins_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As in Kafka; aiokafka's consumer ends by COORDINATOR_LOAD_IN_PROGRESS here."""
    keeper = Keeper()
    answer = keeper.ask(SyncGroupRequest("g", 1, "m"))
    assert answer.error == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_connection_remembers_some_groups() -> None:
    """A client that joins any number of groups on one connection takes no more memory."""
    connections = MemberConnections()
    for number in range(GROUPS_MAX + 1):
        connections.record("a:1", f"g{number}", 0.0)
    assert not connections.has_member("a:1", "g0", 0.0)
    assert connections.has_member("a:1", f"g{GROUPS_MAX}", HEARD_S - 0.1)
    assert not connections.has_member("a:2", "g1", 0.0)


async def test_who_hands_its_groups_over_tells_no_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its successor may be elected, and tell newer offsets, before this broker hears of it."""
    keeper = Keeper()
    async with keeping(keeper):
        await keeper.commit(1)
        now = trio.current_time()
        keeper.offsets.hand_over(keeper.offsets.leader_epoch, 2, now, now + 1)
        answer = keeper.ask(OffsetFetchRequest("g"))
        assert (answer.error, answer.partitions) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
        await trio.sleep(1)
        assert keeper.ask(OffsetFetchRequest("g")).error == ErrorCode.NONE


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
