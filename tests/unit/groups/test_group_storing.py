"""What a group wants stored, what waits for it, and what a new coordinator makes of it."""

from dataclasses import replace

import pytest

from minibroker.broker.groups.member import Client
from minibroker.broker.groups.records import (
    GroupKey,
    GroupMetadata,
    StoredMember,
    decode,
    encode_key,
    encode_value,
)
from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from tests.unit.groups.grouping import JOIN, MEANT, Bench, joined, protocols, synced


def test_a_sync_is_answered_only_when_the_assignment_is_stored() -> None:
    """Nobody learns of a part that a later coordinator might not know of."""
    bench = Bench()
    names = bench.completing()
    follower = bench.sync(names[1])
    leader = bench.sync(names[0], {names[0]: b"a", names[1]: b"b", "who": b"c"})
    write = bench.take()
    assert follower.answer is None
    assert leader.answer is None
    assert bench.state is State.COMPLETING_REBALANCE
    assert [(each.member_id, each.assignment) for each in write.value.members] == [
        (names[0], b"a"),
        (names[1], b"b"),
    ]
    bench.group.written(write.token, bench.now)
    assert (synced(leader).assignment, synced(follower).assignment) == (b"a", b"b")
    assert bench.state is State.STABLE


def test_what_is_stored_is_all_that_a_coordinator_needs() -> None:
    """The record of a generation holds every field, and a record can hold every field."""
    bench = Bench()
    bench.join(instance_id="i", session_timeout_ms=2000, rebalance_timeout_ms=3000)
    bench.wait(0.1)
    bench.sync("m1", {"m1": b"part"})
    value = bench.take().value
    assert value == GroupMetadata(
        "consumer",
        1,
        "range",
        "m1",
        members=(StoredMember("m1", "i", "app", "10.0.0.1", 3000, 2000, MEANT, b"part"),),
    )
    assert decode(encode_key(GroupKey("g")), encode_value(value)) == (GroupKey("g"), value)


def test_a_client_of_any_name_can_be_stored() -> None:
    """What a client calls itself is cut to what is worth telling, so that a record can hold it."""
    bench = Bench()
    asked = replace(JOIN, instance_id="i")
    bench.group.join(asked, Client("é" * 40_000, "h" * 40_000), "m1", bench.now)
    bench.wait(0.1)
    bench.sync("m1")
    member = bench.take().value.members[0]
    assert (member.client_id, member.client_host) == ("é" * 255, "h" * 255)


def test_the_first_assignment_of_a_generation_is_the_only_one() -> None:
    """A leader that repeats its SYNC with something else is answered what was decided."""
    bench = Bench()
    names = bench.completing(members=1)
    bench.sync(names[0], {names[0]: b"first"})
    again = bench.sync(names[0], {names[0]: b"second"})
    bench.store()
    assert synced(again).assignment == b"first"
    assert len(bench.written) == 1


def test_a_member_without_a_part_is_answered_nothing_to_do() -> None:
    """Whom the leader does not mention gets no bytes, and not what it had before."""
    bench = Bench()
    names = bench.stable()
    bench.join(names[0])
    bench.join(names[1])
    follower = bench.sync(names[1])
    bench.sync(names[0], {names[0]: b"all"})
    bench.store()
    assert synced(follower).assignment == b""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
    ],
)
def test_an_assignment_that_is_not_stored_is_none(error: ErrorCode, told: ErrorCode) -> None:
    """GRP-04: the syncs that wait are told why, and the group begins the next generation."""
    bench = Bench()
    names = bench.completing()
    tickets = [bench.sync(name, {name: b"part"}) for name in names]
    token = bench.take().token
    bench.group.not_written(token, error, bench.now)
    assert {synced(ticket).error for ticket in tickets} == {told}
    assert bench.state is State.PREPARING_REBALANCE
    again = [bench.join(name) for name in names]
    assert {joined(ticket).generation for ticket in again} == {2}
    # What becomes of the lost write later is of no consequence.
    bench.group.written(token, bench.now)
    assert bench.state is State.COMPLETING_REBALANCE


def test_a_group_that_moved_on_does_not_mind_what_was_stored() -> None:
    """The record of a generation is committed after a rebalance began: nobody gets its parts."""
    bench = Bench()
    names = bench.completing()
    tickets = [bench.sync(name, {name: b"part"}) for name in names]
    token = bench.take().token
    bench.leave(names[1])
    assert synced(tickets[0]).error == ErrorCode.REBALANCE_IN_PROGRESS
    assert synced(tickets[1]).error == ErrorCode.UNKNOWN_MEMBER_ID
    joined(bench.join(names[0]))
    bench.group.written(token, bench.now)
    assert bench.state is State.COMPLETING_REBALANCE
    assert bench.group.describe().members[0].assignment == b""


def test_that_a_group_is_empty_is_written_until_it_is_stored() -> None:
    """Offsets expire from the moment that this record names, so it is tried again each second."""
    bench = Bench()
    bench.stable()
    bench.wait(11)
    first = bench.take()
    bench.group.not_written(first.token, ErrorCode.REQUEST_TIMED_OUT, bench.now)
    bench.wait(0.9)
    assert bench.group.pop_writes() == ()
    bench.wait(0.2)
    again = bench.take()
    assert again.value == first.value
    assert again.token != first.token
    bench.group.written(again.token, bench.now)
    bench.wait(60)
    assert bench.group.pop_writes() == ()


def test_a_group_that_is_used_again_is_not_said_to_be_empty() -> None:
    """A failed write of an empty group is not repeated once somebody has joined."""
    bench = Bench()
    bench.stable()
    bench.wait(11)
    bench.group.not_written(bench.take().token, ErrorCode.REQUEST_TIMED_OUT, bench.now)
    bench.stable(members=1)
    bench.beat_on(5, *bench.group.members)
    assert [value.members != () for value in bench.written] == [True, True]
    assert bench.group.pop_writes() == ()


def loaded(now: float = 1000.0) -> tuple[Bench, list[str]]:
    """What a new coordinator makes of a stable group; its clock is another one."""
    before = Bench()
    names = before.stable(protocols=protocols("range", "roundrobin"))
    bench = Bench(stored=before.written[-1], now=now)
    bench._ids = 100
    return bench, names


def test_a_new_coordinator_goes_on_with_what_is_stored() -> None:
    """After a failover members go on in their generation, and a SYNC gives the same part."""
    bench, names = loaded()
    assert (bench.state, bench.group.generation) == (State.STABLE, 1)
    assert [bench.heartbeat(name) for name in names] == [ErrorCode.NONE] * 2
    assert [bench.commit(name) for name in names] == [ErrorCode.NONE] * 2
    assert [synced(bench.sync(name)).assignment for name in names] == [b"m1", b"m3"]
    assert bench.group.describe().protocol == "range"


def test_a_new_coordinator_gives_everybody_a_whole_session() -> None:
    """The sessions begin anew at the failover; who does not come back is removed."""
    bench, names = loaded()
    bench.beat_on(9.9, names[0])
    assert [*bench.group.members] == names
    bench.beat_on(0.2, names[0])
    assert [*bench.group.members] == [names[0]]


def test_a_member_that_joined_in_vain_is_known_to_a_new_coordinator() -> None:
    """A follower whose join was cut off by the failover asks again and gets what is stored."""
    bench, names = loaded()
    answer = joined(bench.join(names[1], protocols=protocols("range", "roundrobin")))
    assert (answer.generation, answer.leader, answer.protocol) == (1, names[0], "range")


def test_a_generation_that_was_lost_is_counted_again() -> None:
    """Members of a lost generation are sent back to join, and its number is used once more.

    That is sound because nobody was answered a SYNC of it: it had no owners.
    """
    before = Bench()
    names = before.stable()
    stored = before.written[-1]
    tickets = [before.join(name) for name in names]
    assert {joined(ticket).generation for ticket in tickets} == {2}
    bench = Bench(stored=stored, now=50.0)
    for name in names:
        assert bench.heartbeat(name, generation=2) == ErrorCode.ILLEGAL_GENERATION
        assert bench.commit(name, generation=2) == ErrorCode.ILLEGAL_GENERATION
        asked = bench.sync(name, {name: b"lost"}, generation=2)
        assert synced(asked).error == ErrorCode.ILLEGAL_GENERATION
    again = [bench.join(name) for name in names]
    assert {joined(ticket).generation for ticket in again} == {2}


def test_an_empty_group_is_loaded_as_empty() -> None:
    """Its generation goes on from the stored one, so that no number of it comes again."""
    before = Bench()
    before.stable()
    before.wait(11)
    before.store()
    bench = Bench(stored=before.written[-1], now=100.0)
    assert (bench.state, bench.group.generation) == (State.EMPTY, 2)
    _, ticket = bench.enter(protocol_type="connect")
    bench.wait(0.1)
    assert joined(ticket).generation == 3


def test_a_group_whose_record_lacks_a_protocol_empties_itself() -> None:
    """What another broker wrote oddly harms nobody: its members expire."""
    member = StoredMember("m", None, "", "", 1000, 1000, b"", b"")
    bench = Bench(stored=GroupMetadata("consumer", 5, None, None, -1, (member,)))
    assert joined(bench.join()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    bench.wait(1)
    assert bench.state is State.EMPTY
    assert joined(bench.join()).error == ErrorCode.MEMBER_ID_REQUIRED
