"""Who may join a group, when a join phase ends, and what the members are told then."""

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.groups.group_members import EXPECTED_BYTES, PROTOCOLS_MAX
from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import JoinedMember
from minibroker.protocol.subscription import Subscription, encode_subscription
from tests.unit.groups.grouping import (
    CLIENT,
    JOIN,
    LIMITS,
    MEANT,
    SESSION_S,
    Bench,
    joined,
    protocols,
    synced,
)

OTHER = encode_subscription(Subscription(("t", "u")))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 32768}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 10_240}, ErrorCode.MEMBER_ID_REQUIRED),
        ({"session_timeout_ms": 999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1000}, ErrorCode.MEMBER_ID_REQUIRED),
        ({"session_timeout_ms": 1_800_000}, ErrorCode.MEMBER_ID_REQUIRED),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "c" * 250}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("range", "")}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("r" * 250)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "i" * 250}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "m9", "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    """GRP-12: what is wrong with a first join is told, and nothing is registered."""
    bench = Bench()
    asked = replace(JOIN, **changes)
    answer = joined(bench.group.join(asked, CLIENT, bench.fresh_id(), 0.0))
    assert answer.error == error
    assert not bench.group.members
    assert bench.state is State.EMPTY


@pytest.mark.parametrize(
    "changes",
    [{"protocols": protocols("sticky")}, {"protocol_type": "connect"}],
)
def test_a_join_must_share_type_and_protocol_with_the_members(changes: dict[str, Any]) -> None:
    """GRP-12: who can do nothing that all others can is told INCONSISTENT_GROUP_PROTOCOL."""
    bench = Bench()
    names = bench.stable()
    assert joined(bench.join(**changes)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = joined(bench.join(names[1], **changes))
    assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.state is State.STABLE
    bench.leave(names[1])
    joined(bench.join(names[0]))
    # Alone it may change its mind.
    assert joined(bench.join(names[0], **changes)).error == ErrorCode.NONE
    assert bench.group.protocol_type == changes.get("protocol_type", "consumer")


def test_the_first_join_is_given_an_id_to_come_back_with() -> None:
    """GRP-12: a join without an id gets MEMBER_ID_REQUIRED with one; with it, it waits."""
    bench = Bench()
    answer = joined(bench.join())
    assert (answer.error, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    assert bench.state is State.EMPTY
    assert bench.join("m1").answer is None
    assert [*bench.group.members] == ["m1"]


def test_an_id_that_is_not_used_in_time_is_forgotten() -> None:
    """An id given out is good for one session time-out."""
    bench = Bench()
    bench.join()
    bench.wait(9.9)
    assert bench.join("m1").answer is None
    bench = Bench()
    bench.join()
    bench.wait(10)
    assert joined(bench.join("m1")).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.group.deadline == float("inf")


def test_an_id_given_out_can_be_given_back() -> None:
    """LEAVE of an id that did not join yet forgets it."""
    bench = Bench()
    bench.join()
    assert bench.leave("m1") == ErrorCode.NONE
    assert joined(bench.join("m1")).error == ErrorCode.UNKNOWN_MEMBER_ID
    bench = Bench()
    names = bench.stable()
    expected = joined(bench.join()).member_id
    tickets = [bench.join(name) for name in names]
    bench.leave(expected)
    assert {joined(ticket).generation for ticket in tickets} == {2}, "nobody else is waited for"


def test_who_goes_during_the_initial_delay_leaves_an_empty_group() -> None:
    """A first member that does not stay is no generation's."""
    bench = Bench()
    name, ticket = bench.enter()
    bench.leave(name)
    assert joined(ticket).error == ErrorCode.UNKNOWN_MEMBER_ID
    bench.wait(0.2)
    assert bench.state is State.EMPTY
    bench.stable()


def test_the_first_generation_waits_for_those_who_start_together() -> None:
    """GRP-13: an empty group waits the initial delay, and again after each further join."""
    bench = Bench()
    _, first = bench.enter()
    bench.wait(0.09)
    _, second = bench.enter()
    bench.wait(0.09)
    assert first.answer is None
    bench.wait(0.02)
    assert joined(first).generation == joined(second).generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    """GRP-13: joins that keep coming extend the delay no further than the rebalance time-out."""
    bench = Bench()
    _, first = bench.enter(rebalance_timeout_ms=500)
    for _ in range(20):
        if first.answer is not None:
            break
        bench.wait(0.06)
        bench.enter(rebalance_timeout_ms=500)
    assert 0.5 <= bench.now < 0.6


def test_the_initial_delay_is_never_longer_than_the_members_wait() -> None:
    """GRP-13: a rebalance time-out below the delay ends the first join phase."""
    bench = Bench(LIMITS._replace(initial_rebalance_delay_ms=3000))
    _, first = bench.enter(rebalance_timeout_ms=200)
    bench.wait(0.2)
    assert joined(first).generation == 1


def test_without_an_initial_delay_the_first_member_has_a_generation_at_once() -> None:
    """With group.initial.rebalance.delay.ms=0 nothing waits."""
    _, ticket = Bench(LIMITS._replace(initial_rebalance_delay_ms=0)).enter()
    assert joined(ticket).generation == 1


def test_a_retried_first_join_does_not_extend_the_delay() -> None:
    """The same member joining again is no further join."""
    bench = Bench()
    name, first = bench.enter()
    bench.wait(0.09)
    second = bench.join(name)
    assert joined(first).error == ErrorCode.REBALANCE_IN_PROGRESS
    bench.wait(0.02)
    assert joined(second).generation == 1


def test_the_leader_is_told_of_everybody_and_the_others_of_the_leader() -> None:
    """A completed join phase gives all the same generation, and the members to its leader."""
    bench = Bench()
    first = bench.enter()[1]
    second = bench.enter(protocols=protocols("range", metadata=OTHER))[1]
    bench.wait(0.1)
    lead, follow = joined(first), joined(second)
    assert lead.members == (
        JoinedMember("m1", None, MEANT),
        JoinedMember("m3", None, OTHER),
    )
    assert follow.members == ()
    assert (lead.leader, follow.leader) == ("m1", "m1")
    assert (lead.member_id, follow.member_id) == ("m1", "m3")
    assert (lead.generation, follow.generation) == (1, 1)
    assert (lead.protocol, follow.protocol) == ("range", "range")


def test_a_new_member_waits_for_all_others_to_join_again() -> None:
    """The next generation begins when all members have joined, not before; the leader stays."""
    bench = Bench()
    names = bench.stable()
    late, ticket = bench.enter()
    assert bench.state is State.PREPARING_REBALANCE
    again = [bench.join(names[1])]
    assert ticket.answer is None
    again.append(bench.join(names[0]))
    answers = [joined(each) for each in [ticket, *again]]
    assert {answer.generation for answer in answers} == {2}
    assert {answer.leader for answer in answers} == {names[0]}
    assert [each.member_id for each in answers[-1].members] == [*names, late]


def test_a_join_phase_waits_for_ids_that_were_given_out() -> None:
    """A member that is about to come back with its id is not left out of the generation."""
    bench = Bench()
    names = bench.stable()
    expected = joined(bench.join()).member_id
    tickets = [bench.join(name) for name in names]
    assert bench.state is State.PREPARING_REBALANCE
    assert not any(ticket.answer for ticket in tickets)
    bench.join(expected)
    assert {joined(ticket).generation for ticket in tickets} == {2}


def test_a_join_phase_does_not_wait_for_an_id_for_ever() -> None:
    """An id that nobody comes back with holds the others up for one session time-out only."""
    bench = Bench()
    names = bench.stable()
    joined(bench.join())
    tickets = [bench.join(name) for name in names]
    bench.wait(10)
    assert {joined(ticket).generation for ticket in tickets} == {2}


def test_another_leader_comes_only_when_the_old_one_is_gone() -> None:
    """The member that is longest there follows a leader that left."""
    bench = Bench()
    names = bench.stable(members=3)
    bench.leave(names[0])
    tickets = [bench.join(name) for name in names[:0:-1]]
    assert {joined(ticket).leader for ticket in tickets} == {names[1]}


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([("a", "b"), ("b", "a"), ("b", "a")], "b"),
        ([("a", "b"), ("b", "a")], "a"),
        ([("a", "b"), ("c", "b"), ("c", "b", "a")], "b"),
        ([("x", "a", "b"), ("y", "b", "a"), ("y", "b", "a")], "b"),
        ([("a", "b", "a")], "a"),
    ],
)
def test_the_protocol_is_what_most_prefer_of_what_all_can(
    preferences: list[tuple[str, ...]], chosen: str
) -> None:
    """Each member votes for the first in its order that all can; a tie goes to the first member."""
    bench = Bench()
    tickets = [bench.enter(protocols=protocols(*names))[1] for names in preferences]
    bench.wait(0.1)
    assert {joined(ticket).protocol for ticket in tickets} == {chosen}


def test_of_two_protocols_of_one_name_the_first_counts() -> None:
    """A member that names a protocol twice has said what it means the first time."""
    bench = Bench()
    twice = (*protocols("range"), *protocols("range", metadata=OTHER))
    _, ticket = bench.enter(protocols=twice)
    bench.wait(0.1)
    assert joined(ticket).members[0].metadata == MEANT


def test_a_full_group_takes_no_more() -> None:
    """group.max.size counts members and ids given out; members of it may join again."""
    bench = Bench(LIMITS._replace(size_max=3))
    names = bench.stable()
    expected = joined(bench.join()).member_id
    assert joined(bench.join()).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(bench.join(instance_id="i")).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.join(expected)
    tickets = [bench.join(name) for name in names]
    assert {joined(ticket).error for ticket in tickets} == {ErrorCode.NONE}
    bench.leave(expected)
    assert joined(bench.join()).error == ErrorCode.MEMBER_ID_REQUIRED


def test_a_member_offers_few_protocols() -> None:
    """A member that offers more than PROTOCOLS_MAX is refused, before anything is kept of it."""
    bench = Bench()
    names = [f"p{number}" for number in range(PROTOCOLS_MAX + 1)]
    refused = joined(bench.join(protocols=protocols(*names)))
    assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.group.held_bytes == 0
    bench.enter(protocols=protocols(*names[1:]))
    assert joined(bench.join(protocols=protocols(*names))).error == refused.error


def test_metadata_that_no_record_can_hold_are_refused() -> None:
    """A generation is one record: metadata larger than that could never be stored."""
    bench = Bench(LIMITS._replace(record_bytes_max=1000))
    refused = joined(bench.join(protocols=protocols("a", metadata=bytes(1001))))
    assert refused.error == ErrorCode.MESSAGE_TOO_LARGE
    bench.enter(protocols=protocols("a", "b", metadata=bytes(1000)))


def test_the_memory_of_a_group_is_limited() -> None:
    """GROUP_MAX_SIZE_REACHED for a member that the group's memory does not suffice for. Members may
    join again as they are, but not with more."""
    bench = Bench(LIMITS._replace(record_bytes_max=1000))
    half = protocols("a", metadata=bytes(1000))
    names = [bench.enter(protocols=half)[0] for _ in range(5)]
    too_much = joined(bench.join(instance_id="i", protocols=half))
    assert too_much.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.group.held_bytes <= 8000
    bench.wait(0.5)
    assert bench.join(names[0], protocols=half).answer is not None
    more = protocols("a", "b", metadata=bytes(1000))
    assert joined(bench.join(names[0], protocols=more)).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    for name in names:
        bench.leave(name)
    assert bench.group.held_bytes == 0
    bench.enter(protocols=half)


def test_ids_that_nobody_joins_with_are_limited() -> None:
    """They take memory, too, until they expire."""
    bench = Bench(LIMITS._replace(size_max=10_000, record_bytes_max=1000))
    answers = [joined(bench.join()).error for _ in range(100)]
    given = answers.count(ErrorCode.MEMBER_ID_REQUIRED)
    assert given == 8000 // EXPECTED_BYTES
    assert set(answers[given:]) == {ErrorCode.GROUP_MAX_SIZE_REACHED}
    bench.wait(SESSION_S)
    assert joined(bench.join()).error == ErrorCode.MEMBER_ID_REQUIRED


def test_assignments_for_strangers_are_dropped() -> None:
    """A leader may assign to anybody; the group keeps what is for its members."""
    bench = Bench()
    names = bench.completing()
    before = bench.group.held_bytes
    bench.sync(names[0], {names[0]: b"part", "stranger": bytes(1000)})
    (write,) = bench.group.pop_writes()
    bench.group.written(write.token, bench.now)
    assert [each.assignment for each in write.value.members] == [b"part", b""]
    assert bench.group.held_bytes == before + len(b"part")


@pytest.mark.parametrize("state", [State.COMPLETING_REBALANCE, State.STABLE])
def test_a_join_sent_again_gets_the_running_generation(state: State) -> None:
    """A follower whose answer was lost asks the same again, and no rebalance comes of it."""
    bench = Bench()
    names = bench.stable() if state is State.STABLE else bench.completing()
    for _ in range(3):
        answer = joined(bench.join(names[1]))
        assert (answer.error, answer.generation, answer.leader) == (0, 1, names[0])
    assert bench.state is state


def test_a_leader_that_lost_its_answer_gets_the_members_again() -> None:
    """Before it has assigned, a leader that repeats its join is told of everybody once more."""
    bench = Bench()
    names = bench.completing()
    answer = joined(bench.join(names[0]))
    assert [each.member_id for each in answer.members] == names
    assert bench.state is State.COMPLETING_REBALANCE
    bench.sync_all(names)


def test_a_leader_that_joins_a_stable_group_wants_a_rebalance() -> None:
    """The leader sees what the others cannot, such as new partitions, so its join counts."""
    bench = Bench()
    names = bench.stable()
    assert bench.join(names[0]).answer is None
    assert bench.state is State.PREPARING_REBALANCE
    assert bench.heartbeat(names[1]) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("is_stable", [False, True])
def test_a_member_that_wants_something_else_makes_a_rebalance(is_stable: bool) -> None:
    """A join with other metadata is no repetition."""
    bench = Bench()
    names = bench.stable() if is_stable else bench.completing()
    ticket = bench.join(names[1], protocols=protocols("range", metadata=OTHER))
    assert bench.state is State.PREPARING_REBALANCE
    lead = bench.join(names[0])
    assert joined(lead).members[1].metadata == OTHER
    assert joined(ticket).generation == 2


def test_a_member_that_prefers_another_protocol_makes_a_rebalance() -> None:
    """If what members agree on would change, the same metadata is no repetition either."""
    bench = Bench()
    names = bench.stable(members=3, protocols=protocols("range", "roundrobin"))
    reverse = protocols("roundrobin", "range")
    assert joined(bench.join(names[1], protocols=reverse)).protocol == "range"
    ticket = bench.join(names[2], protocols=reverse)
    assert bench.state is State.PREPARING_REBALANCE
    bench.join(names[1], protocols=reverse)
    bench.join(names[0], protocols=reverse)
    assert joined(ticket).protocol == "roundrobin"


def test_only_the_newest_join_of_a_member_waits() -> None:
    """A join repeated over another connection is the one that is answered; the older is refused."""
    bench = Bench()
    names = bench.stable()
    bench.enter()
    older = bench.join(names[1])
    newer = bench.join(names[1])
    assert joined(older).error == ErrorCode.REBALANCE_IN_PROGRESS
    assert newer.answer is None
    bench.join(names[0])
    assert joined(newer).generation == 2


def test_only_the_newest_sync_of_a_member_waits() -> None:
    """A sync repeated over another connection is the one that is answered; the older is refused."""
    bench = Bench()
    names = bench.completing()
    older = bench.sync(names[1])
    newer = bench.sync(names[1])
    assert synced(older).error == ErrorCode.REBALANCE_IN_PROGRESS
    bench.sync(names[0], {names[1]: b"part"})
    bench.store()
    assert synced(newer).assignment == b"part"


def test_what_the_group_reads_is_known_from_its_members() -> None:
    """A topic counts as read if any member wants it; for other kinds of groups nobody knows."""
    bench = Bench()
    assert bench.group.subscribed_topics() == set()
    bench.stable()
    bench.enter(protocols=protocols("range", metadata=OTHER))
    assert bench.group.subscribed_topics() == {"t", "u"}
    for options in ({"protocol_type": "connect"}, {"protocols": protocols("range", metadata=b"?")}):
        bench = Bench()
        bench.stable(**options)
        assert bench.group.subscribed_topics() is None


def test_a_description_tells_what_members_read_once_that_is_settled() -> None:
    """DESCRIBE_GROUPS shows members in every state, protocol and parts only in Stable."""
    bench = Bench()
    names = bench.completing()
    told = bench.group.describe()
    assert (told.state, told.protocol_type, told.protocol) == (
        "CompletingRebalance",
        "consumer",
        "",
    )
    assert [(each.member_id, each.metadata) for each in told.members] == [(n, b"") for n in names]
    bench.sync_all(names)
    told = bench.group.describe()
    assert (told.state, told.protocol, told.generation) == ("Stable", "range", 1)
    member = told.members[1]
    assert (member.member_id, member.metadata, member.assignment) == (names[1], MEANT, b"m3")
    assert (member.client_id, member.client_host) == ("app", "10.0.0.1")
