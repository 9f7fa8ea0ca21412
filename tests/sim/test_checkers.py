"""The checkers of the simulation, on hand-made histories: each finds the fault in one.

In these histories each record is one byte long, so an offset is a position too.
"""

import pytest

from minibroker.broker.metadata.store import Entry, Snapshot
from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import (
    ActiveController,
    Agreed,
    Committed,
    Ledger,
    NewestController,
    OneLeader,
    PatientCandidates,
    Proposal,
    Replica,
    Resting,
    RisingHighWatermark,
    Shown,
    Sight,
    SoleLeader,
    SoundIsr,
    UnaskedChanges,
    Violation,
    WakefulSessions,
)
from tests.sim.sights import Watcher, active_controller

NAME = TopicPartition("t", 0)
KEY = ("id", 0)


def replica(broker: int, log: bytes, committed: int, **other) -> Replica:
    """A follower in epoch 1, unless `other` says otherwise."""
    usual = {
        "life": 1,
        "key": KEY,
        "name": NAME,
        "is_leader": False,
        "leader_epoch": 1,
        "log_start": 0,
        "log_end": len(log),
        "generation": 0,
        "read": lambda start, end: log[start:end],
    }
    return Replica(broker=broker, high_watermark=committed, **(usual | other))


def leader(broker: int, log: bytes, committed: int, epoch: int = 1, **other) -> Replica:
    """A leader."""
    return replica(broker, log, committed, is_leader=True, leader_epoch=epoch, **other)


def sight(*replicas: Replica, isr: tuple[int, ...] = (1, 2), **other) -> Sight:
    """Some replicas; broker 1 leads as far as the store knows."""
    return Sight(replicas, {KEY: Agreed(NAME, 1, 1, isr, (1, 2, 3))}, **other)


def test_sound_histories_pass():
    """Append, commit, fail over and cut what was not committed: no checker minds."""
    scenario = [
        sight(leader(1, b"", 0), replica(2, b"", 0)),
        sight(leader(1, b"abc", 0), replica(2, b"ab", 0)),
        sight(leader(1, b"abc", 2), replica(2, b"ab", 0)),
        sight(leader(1, b"abc", 2), replica(2, b"abc", 2), replica(3, b"a", 0)),
        sight(leader(2, b"abcX", 2, 2), replica(1, b"abcd", 2)),
        sight(leader(2, b"abcX", 4, 2), replica(1, b"abcX", 2, generation=1)),
    ]
    for checker in (OneLeader(), RisingHighWatermark(), Committed(), SoundIsr()):
        for each in scenario:
            checker.look(each)


@pytest.mark.parametrize("second", [leader(2, b"", 0), leader(1, b"", 0, life=2)])
def test_two_leaders_of_one_epoch_are_found(second):
    """Another broker, or another process of the same one, leads in an epoch that had a leader."""
    checker = OneLeader()
    checker.look(sight(leader(1, b"", 0)))
    with pytest.raises(Violation, match="led in this epoch"):
        checker.look(sight(second))


def test_a_high_watermark_that_falls_is_found():
    """Within a term it never falls; in the next one it may begin lower."""
    checker = RisingHighWatermark()
    checker.look(sight(leader(1, b"abc", 2)))
    checker.look(sight(leader(1, b"abc", 1, 2)))
    with pytest.raises(Violation, match="fell from 2 to 1"):
        checker.look(sight(leader(1, b"abc", 1)))


def test_a_high_watermark_above_the_log_is_found():
    """Nothing is committed that the log lacks."""
    with pytest.raises(Violation, match="outside of the log"):
        RisingHighWatermark().look(sight(replica(1, b"abc", 4)))


def test_a_difference_below_the_high_watermark_is_found():
    """Two replicas that call different bytes committed."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 2), replica(2, b"aXc", 1), isr=(1,)))
    with pytest.raises(Violation, match="differ from the committed"):
        checker.look(sight(leader(1, b"abc", 2), replica(2, b"aXc", 2), isr=(1,)))


def test_a_committed_record_that_changes_is_found():
    """A replica that was equal is cut and written anew: it is compared from its start."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 3), replica(2, b"abc", 3)))
    checker.look(sight(leader(1, b"abc", 3), replica(2, b"abc", 3, generation=1)))
    with pytest.raises(Violation, match="differ from the committed"):
        checker.look(sight(leader(1, b"abc", 3), replica(2, b"abX", 3, generation=2)))


def test_a_leader_that_lacks_committed_records_is_found():
    """Whoever leads next has all that was committed before, whatever it knows of it."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 3), isr=(1,)))
    with pytest.raises(Violation, match="is a leader and ends at 2"):
        checker.look(sight(leader(2, b"ab", 1, 2), isr=(1,)))


def test_a_leader_of_another_log_is_found():
    """It is long enough, but what lies below the committed end is something else."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 3), isr=(1,)))
    with pytest.raises(Violation, match="differ from the committed"):
        checker.look(sight(leader(2, b"abXd", 1, 2), isr=(1,)))


def test_an_old_leader_may_lack_what_the_next_one_committed():
    """A broker that was cut off goes on believing that it leads: only its own term binds it."""
    checker = Committed()
    checker.look(sight(leader(2, b"abc", 3, 2), leader(1, b"a", 1, 1), isr=(2,)))


def test_an_in_sync_member_that_lacks_committed_records_is_found():
    """The store calls a replica in sync that does not have everything."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 3), replica(3, b"ab", 1)))
    with pytest.raises(Violation, match="a member of the in-sync set and ends at 2"):
        checker.look(sight(leader(1, b"abc", 3), replica(3, b"ab", 1), isr=(1, 3)))


def test_of_a_lost_tail_nothing_is_asked():
    """A machine lost power where that was allowed: its log counts again once it is admitted."""
    checker = Committed()
    checker.look(sight(leader(1, b"abc", 3), replica(2, b"abc", 3)))
    checker.look(sight(replica(2, b"a", 1, life=2), lost_tails=frozenset({2})))
    with pytest.raises(Violation, match="in-sync set"):
        checker.look(sight(replica(2, b"a", 1, life=2)))


def test_records_that_vanish_from_the_front_are_found():
    """No simulation lets retention run, so a log starts at 0."""
    with pytest.raises(Violation, match="the log starts at 1"):
        Committed().look(sight(replica(1, b"abc", 2, log_start=1)))


@pytest.mark.parametrize(
    "agreed",
    [
        Agreed(NAME, 3, 1, (1, 2), (1, 2, 3)),
        Agreed(NAME, 1, 1, (1, 4), (1, 2, 3)),
        Agreed(NAME, -1, 1, (), (1, 2, 3)),
        Agreed(NAME, 1, 0, (1, 2), (1, 2, 3)),
    ],
)
def test_an_impossible_state_in_the_store_is_found(agreed):
    """A leader out of sync, a stranger in sync, nobody in sync, an epoch that falls."""
    checker = SoundIsr()
    checker.look(sight())
    with pytest.raises(Violation):
        checker.look(Sight((), {KEY: agreed}))


def test_a_controller_that_was_replaced_and_is_obeyed_is_found():
    """Each process of a broker follows controllers in the order of their epochs."""
    checker = NewestController()
    checker.look(sight(obeyed={(1, 1): 2, (2, 1): 1}))
    checker.look(sight(obeyed={(1, 2): 1, (2, 1): 2}))
    with pytest.raises(Violation, match="broker 2 obeyed controller epoch 2, and now 1"):
        checker.look(sight(obeyed={(2, 1): 1}))


def test_a_leader_that_was_replaced_and_promises_alone_is_found():
    """Unless it has asked to stop: then it leads until others do."""
    agreed = {KEY: Agreed(NAME, 2, 2, (2, 3), (1, 2, 3))}
    old = leader(1, b"", 0, promises=True)
    checker = SoleLeader()
    checker.look(sight(old))
    checker.look(Sight((old._replace(promises=False),), agreed))
    checker.look(Sight((old,), agreed, leaving=frozenset({1})))
    with pytest.raises(Violation, match="believes that it leads alone"):
        checker.look(Sight((old,), agreed))


ELECTED = Agreed(NAME, 2, 2, (2,), (1, 2, 3), partition_epoch=1)
SHRUNK = Agreed(NAME, 1, 1, (1,), (1, 2, 3))


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (("isr", (1, 2)), ELECTED, None),
        (("isr", (1, 3)), ELECTED, "not in sync, and elected"),
        (("unsafe", (1,)), ELECTED, None),
        (("isr", (1, 3)), ELECTED._replace(partition_epoch=2), None),
        (("isr", (1, 2)), SHRUNK, "nobody asked for it"),
        (("isr", (1, 3)), SHRUNK, None),
    ],
)
def test_a_change_that_nobody_asked_for_is_found(before, after, complaint):
    """Broker 2 lives on, broker 3 has registered anew."""
    what, nodes = before
    first = Agreed(NAME, 1, 1, (1, 2), (1, 2, 3))._replace(**{"isr": (1, 3), what: nodes})
    checker = UnaskedChanges(())
    checker.look(Sight((), {KEY: first}, admitted={1: 1, 2: 2, 3: 3}))
    then = Sight((), {KEY: after}, admitted={1: 1, 2: 2, 3: 4})
    if complaint is None:
        checker.look(then)
    else:
        with pytest.raises(Violation, match=complaint):
            checker.look(then)


def test_a_leader_may_ask_for_a_smaller_set():
    """In its own epoch."""
    nodes = {1: 1, 2: 2, 3: 3}
    proposal = Proposal(1, 1, 2)
    for proposals in ({proposal}, {proposal._replace(leader_epoch=2)}):
        checker = UnaskedChanges(proposals)
        checker.look(sight(admitted=nodes))
        if proposal in proposals:
            checker.look(sight(isr=(1,), admitted=nodes))
        else:
            with pytest.raises(Violation, match="nobody asked"):
                checker.look(sight(isr=(1,), admitted=nodes))


def test_who_stands_again_at_once_is_found():
    """Not another broker, nor another registration, nor who waited."""

    def governed(at: float, node_id: int, revision: int, broker_epoch: int) -> Sight:
        return sight(active_controller=ActiveController(node_id, revision, broker_epoch), now=at)

    former = {
        "controller": Entry(b'{"node_id": 1}', 5),
        "brokers/1": Entry(b"{}", 6),
    }
    assert active_controller(Snapshot(7, former)) == ActiveController(1, 5, -1)
    assert active_controller(
        Snapshot(8, former | {"controller": Entry(b'{"node_id": 1}', 8)})
    ) == ActiveController(1, 8, 6)

    checker = PatientCandidates(0.5)
    for at, *held in (
        (0.0, 1, 5, 1),
        (0.1, 1, 5, 1),
        (0.2, 2, 6, 2),
        (0.3, 1, 7, 1),
        (0.4, 1, 8, 9),
        (1.0, 1, 9, 9),
    ):
        checker.look(governed(at, *held))
    checker.look(sight(now=1.1))
    with pytest.raises(Violation, match="was elected again after"):
        checker.look(governed(1.2, 1, 10, 9))


def test_a_session_that_overlooks_what_came_is_found():
    """Its follower fetches and goes on resting below the leader's end; not if it did not fetch
    since, or rests at a later end."""

    def led(log_end: int, *resting: Resting) -> Sight:
        return sight(leader(1, bytes(log_end), 0, resting=resting))

    checker = WakefulSessions()
    for log_end, resting in ((3, Resting(2, 3, 1.0)), (4, Resting(2, 3, 2.0))):
        checker.look(led(log_end, resting))
    checker.look(led(4, Resting(2, 3, 2.0)))
    checker.look(led(5, Resting(2, 4, 3.0)))
    checker.look(led(5))
    checker.look(led(6, Resting(2, 5, 4.0)))
    with pytest.raises(Violation, match="broker 2 has fetched and still rests at 5"):
        checker.look(led(6, Resting(2, 5, 4.5)))


def test_a_consumer_that_is_shown_a_gap_or_a_change_is_found():
    """One after the other, each with one value for all."""
    shown = Shown()
    shown.note("c", NAME, 0, b"a")
    shown.note("d", NAME, 0, b"a")
    with pytest.raises(Violation, match="instead of 1"):
        shown.note("c", NAME, 2, b"c")
    with pytest.raises(Violation, match="instead of 1"):
        shown.note("c", NAME, 0, b"a")
    shown.note("c", NAME, 1, b"b")
    with pytest.raises(Violation, match="was shown as b'b', now it is b'X'"):
        shown.note("d", NAME, 1, b"X")


def ledger(*values: bytes) -> Ledger:
    """A ledger of values sent, and acknowledged in this order."""
    made = Ledger()
    for offset, value in enumerate(values):
        made.note_sent("t", value)
        made.note_acked(NAME, offset, value)
    return made


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ([(0, b"1:0")], "acknowledged, None is there"),
        ([(0, b"1:0"), (1, b"1:5")], "b'1:5' is there"),
        ([(0, b"1:0"), (1, b"1:1"), (2, b"1:1")], "comes behind"),
        ([(0, b"1:0"), (1, b"1:1"), (2, b"2:0")], "never sent"),
        ([(0, b"1:0"), (2, b"1:1")], "in the place of"),
    ],
)
def test_records_lost_changed_or_doubled_are_found(stored, complaint):
    """What is stored is what was sent, once, in order, where it was acknowledged."""
    with pytest.raises(Violation, match=complaint):
        ledger(b"1:0", b"1:1").judge({NAME: stored})


def test_a_double_on_another_partition_is_found():
    """In order on each, but there twice."""
    other = TopicPartition("t", 1)
    with pytest.raises(Violation, match="holds records twice"):
        ledger(b"1:0").judge({NAME: [(0, b"1:0")], other: [(0, b"1:0")]})


def test_a_record_that_was_sent_and_is_not_there_is_found():
    """Also one whose acknowledgement named no offset."""
    made = ledger(b"1:0")
    made.note_sent("t", b"1:1")
    made.note_acked(NAME, -1, b"1:1")
    with pytest.raises(Violation, match="missing"):
        made.judge({NAME: [(0, b"1:0")]})


def test_one_offset_acknowledged_twice_is_found():
    """An offset holds one record."""
    with pytest.raises(Violation, match="acknowledged for"):
        ledger(b"1:0").note_acked(NAME, 0, b"1:1")


def test_a_deleted_topic_is_not_judged():
    """Its records are gone on purpose."""
    made = ledger(b"1:0")
    made.forget("t")
    made.judge({})


@pytest.mark.parametrize(
    ("isr", "lost", "broker", "may"),
    [
        ((1, 2, 3), (), 1, True),
        ((1, 2, 3), (2, 3), 1, False),  # it has the last whole tail
        ((1, 2), (), 3, True),
        ((1, 2), (1,), 3, True),
        ((1,), (1,), 3, False),  # left when 1 had lost its tail, and nobody knew
        ((1,), (1,), 4, True),  # has no replica
    ],
)
def test_the_last_whole_tail_is_kept(
    isr: tuple[int, ...], lost: tuple[int, ...], broker: int, may: bool
) -> None:
    """Power is taken from a replica only while another one that is in sync has its whole tail."""
    watcher = Watcher(None, None)  # type: ignore[arg-type]
    watcher._last = Sight((), {("id", 0): Agreed(NAME, 1, 1, isr, (1, 2, 3))})
    for each in lost:
        watcher.note_power_off(each, is_tail_lost=True)
    assert watcher.may_lose_power(broker) is may
