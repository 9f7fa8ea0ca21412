"""Static members: a place in a group that outlives the process which holds it."""

import pytest

from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import JoinedMember
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.grouping import MEANT, Bench, joined, protocols, synced

OTHER = encode_subscription(Subscription(("t", "u")))
FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
HOLDING = encode_subscription(Subscription(("t",), owned=(P,), generation=1))


def static_group(metadata: bytes = MEANT) -> Bench:
    """A stable group of the instances i1, who leads as m1, and i2, who is m2."""
    bench = Bench()
    bench.join(instance_id="i1")
    bench.join(instance_id="i2", protocols=protocols("range", metadata=metadata))
    bench.wait(0.2)
    bench.sync_all(["m1", "m2"])
    return bench


def test_a_static_member_joins_without_an_errand() -> None:
    """It needs no id first, and the leader is told of its instance."""
    bench = Bench()
    ticket = bench.join(instance_id="i1")
    assert ticket.answer is None
    bench.wait(0.1)
    assert joined(ticket).members == (JoinedMember("m1", "i1", MEANT),)


@pytest.mark.parametrize("before", [MEANT, HOLDING])
def test_a_restarted_static_member_gets_its_part_back(before: bytes) -> None:
    """It begins again under a new id without a rebalance, once that id is stored.

    What it held before says nothing about what it wants: only its topics count.
    """
    bench = static_group(before)
    ticket = bench.join(instance_id="i2")
    new_id = "m3"
    assert bench.state is State.STABLE
    assert ticket.answer is None
    bench.beat_on(20, "m1")
    assert new_id in bench.group.members, "who waits does not expire"
    bench.store()
    answer = joined(ticket)
    assert (answer.error, answer.generation, answer.member_id) == (0, 1, new_id)
    assert (answer.leader, answer.members) == ("m1", ())
    assert not answer.skip_assignment
    stored = {each.member_id: each.assignment for each in bench.written[-1].members}
    assert stored[new_id] == b"m2"
    assert synced(bench.sync(new_id, instance_id="i2")).assignment == b"m2"
    assert bench.written[-1].generation == 1


@pytest.mark.parametrize(("part", "state"), [((P, Q), "Stable"), ((Q,), "PreparingRebalance")])
def test_a_restart_while_letting_go_makes_a_rebalance(
    part: tuple[TopicPartition, ...], state: str
) -> None:
    """It came with a partition that is not in its part any more, and was to join again when it has
    let go of it: nobody else can say that the partition is free."""
    bench = Bench()
    bench.join(instance_id="i1")
    bench.join(instance_id="i2", protocols=protocols("range", metadata=HOLDING))
    bench.wait(0.2)
    bench.sync("m1", {"m1": b"", "m2": encode_assignment(Assignment(part))})
    bench.sync("m2", instance_id="i2")
    bench.store()
    bench.join(instance_id="i2")
    assert bench.state == state


def test_a_restarted_leader_goes_on_leading() -> None:
    """It is told of all members, so that it can watch over them, and to skip the assignment: its
    SYNC decides nothing."""
    bench = static_group()
    ticket = bench.join(instance_id="i1")
    bench.store()
    answer = joined(ticket)
    assert (answer.leader, answer.member_id) == ("m3", "m3")
    assert answer.skip_assignment
    assert [each.member_id for each in answer.members] == ["m3", "m2"]
    assert synced(bench.sync("m3", {"m3": b"else"})).assignment == b"m1"
    assert bench.group.pop_writes() == ()


def test_the_old_id_is_fenced_everywhere() -> None:
    """Whoever still speaks as the instance under the old id gets FENCED_INSTANCE_ID."""
    bench = static_group()
    bench.join(instance_id="i2")
    for _ in range(2):
        assert bench.heartbeat("m2", "i2") == FENCED
        assert bench.commit("m2", "i2") == FENCED
        assert synced(bench.sync("m2", instance_id="i2")).error == FENCED
        assert joined(bench.join("m2", "i2")).error == FENCED
        assert bench.leave("m2", "i2") == FENCED
        assert bench.heartbeat("m2") == ErrorCode.UNKNOWN_MEMBER_ID
        bench.store()


def test_an_id_that_was_lost_with_its_coordinator_is_not_fenced() -> None:
    """A restarted member joined a generation that was never stored. The next coordinator has its
    place under the older id, and only who had that one after all could be fenced."""
    before = static_group()
    lost = Bench(stored=before.written[-1])
    assert synced(lost.sync("m9", generation=2, instance_id="i2")).error == UNKNOWN
    assert lost.heartbeat("m9", "i2", generation=2) == UNKNOWN
    assert lost.commit("m9", "i2", generation=2) == UNKNOWN
    assert lost.heartbeat("m9", "i2", generation=1) == FENCED


def test_a_static_member_that_begins_again_before_its_sync_is_not_missed() -> None:
    """The time to sync was the old id's; the new one is given its part and stays."""
    bench = Bench()
    bench.join(instance_id="i1")
    bench.join(instance_id="i2")
    bench.wait(0.2)
    bench.sync("m1", {"m1": b"m1", "m2": b"m2"})
    bench.store()
    ticket = bench.join(instance_id="i2")
    bench.store()
    assert joined(ticket).generation == 1
    bench.beat_on(70, "m1", "m3")
    assert [*bench.group.members] == ["m1", "m3"]
    assert bench.state is State.STABLE


def test_what_the_old_id_waits_for_is_fenced() -> None:
    """A JOIN or SYNC of the old id that waits is answered FENCED_INSTANCE_ID at once."""
    bench = Bench()
    older = bench.join(instance_id="i1")
    newer = bench.join(instance_id="i1")
    assert joined(older).error == FENCED
    bench.wait(0.1)
    assert joined(newer).error == ErrorCode.NONE
    bench.join(instance_id="i2")
    bench.join("m2", "i1")
    sync = bench.sync("m3", instance_id="i2")
    bench.join(instance_id="i2")
    assert synced(sync).error == FENCED


def test_an_instance_that_begins_again_before_it_was_answered_is_one_member() -> None:
    """Each fences the one before; only the last is answered, whatever was stored meanwhile."""
    bench = static_group()
    first = bench.join(instance_id="i2")
    write = bench.take()
    second = bench.join(instance_id="i2")
    assert joined(first).error == FENCED
    bench.group.written(write.token, bench.now)
    assert second.answer is None
    bench.store()
    assert joined(second).member_id == "m4"
    assert [*bench.group.members] == ["m1", "m4"]


def test_a_restarted_member_that_wants_something_else_makes_a_rebalance() -> None:
    """With other topics the old part is of no use."""
    bench = static_group()
    ticket = bench.join(instance_id="i2", protocols=protocols("range", metadata=OTHER))
    assert bench.state is State.PREPARING_REBALANCE
    bench.join("m1", "i1")
    assert joined(ticket).generation == 2


def test_a_restart_during_a_rebalance_is_part_of_it() -> None:
    """While the others join a new begin joins with them; before the assignment it starts over."""
    bench = static_group()
    bench.join("m1", "i1")
    ticket = bench.join(instance_id="i2")
    assert joined(ticket).generation == 2
    assert bench.state is State.COMPLETING_REBALANCE
    bench.join(instance_id="i2")
    assert bench.state is State.PREPARING_REBALANCE, "the leader does not know the new id"


def test_a_new_id_that_cannot_be_stored_makes_a_rebalance() -> None:
    """The write fails: the member keeps its place and gets its answer with the next generation."""
    bench = static_group()
    ticket = bench.join(instance_id="i2")
    bench.group.not_written(bench.take().token, ErrorCode.COORDINATOR_NOT_AVAILABLE, bench.now)
    assert bench.state is State.PREPARING_REBALANCE
    assert ticket.answer is None
    bench.join("m1", "i1")
    assert joined(ticket).generation == 2


def test_a_rebalance_overtakes_the_storing_of_a_new_id() -> None:
    """Another member's join comes first: both are answered by the next generation."""
    bench = static_group()
    ticket = bench.join(instance_id="i2")
    write = bench.take()
    bench.join("m1", "i1")
    assert joined(ticket).generation == 2
    bench.group.written(write.token, bench.now)
    assert bench.state is State.COMPLETING_REBALANCE


def test_a_static_member_is_taken_out_by_its_instance_alone() -> None:
    """LEAVE with an instance id and no member id removes whoever holds the instance."""
    bench = static_group()
    assert bench.leave(instance_id="i2") == ErrorCode.NONE
    assert [*bench.group.members] == ["m1"]
    assert bench.heartbeat("m2", "i2") == ErrorCode.UNKNOWN_MEMBER_ID
    assert joined(bench.join("m2", "i2")).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_is_what_it_joined_as() -> None:
    """An id given out cannot become static, and a member's id goes with its own instance only."""
    bench = static_group()
    expected = joined(bench.join()).member_id
    assert joined(bench.join(expected, "i3")).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert joined(bench.join(expected, "i2")).error == FENCED
    assert bench.heartbeat("m1", "i2") == FENCED
    assert bench.heartbeat("m1", "i3") == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat("m1") == ErrorCode.NONE


def test_a_static_member_that_stays_away_is_removed() -> None:
    """Its session and the time to rebalance hold for it as for any other (GRP-11, GRP-13)."""
    bench = static_group()
    bench.beat_on(11, "m1")
    assert [*bench.group.members] == ["m1"]
    bench = static_group()
    bench.enter()
    bench.join("m1", "i1")
    bench.beat_on(61, "m2")
    assert [each.instance_id for each in bench.group.members.values()] == ["i1", None]
