"""Who leads and who is in sync, as brokers come, go and leave: all cases of one partition."""

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.controller.elections import (
    LogTail,
    UncleanElection,
    plan_shutdown,
    plan_unclean,
    recover,
    review,
    unclean_candidates,
    waiting_for_tails,
)
from minibroker.broker.controller.state import Reassignment
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.control import ControlledShutdownRequest
from minibroker.protocol.types import TopicPartition
from tests.unit.controller.electing import (
    CONFIG,
    NAME,
    UNCLEAN,
    broker,
    heard,
    outcome,
    partition,
    returned,
    reviewed,
    state_of,
)


@pytest.mark.parametrize(
    ("before", "live", "configs", "after"),
    [
        (partition(), (1, 2, 3), {}, (1, (1, 2, 3), 0, 0)),
        (partition(), (2, 3), {}, (2, (2, 3), 1, 1)),
        (partition(), (1, 3), {}, (1, (1, 3), 0, 1)),
        (partition(isr=(3, 1, 2)), (2, 3), {}, (2, (3, 2), 1, 1)),
        (partition(replicas=(3, 2, 1)), (2, 3), {}, (3, (2, 3), 1, 1)),
        (partition(isr=(1,)), (2, 3), {}, (NO_NODE, (1,), 1, 1)),
        (partition(isr=(1, 2)), (3,), {}, (NO_NODE, (1, 2), 1, 1)),
        (partition(isr=(1,)), (2, 3), UNCLEAN, (2, (2,), 1, 1)),
        (partition(isr=(1, 3)), (3,), UNCLEAN, (3, (3,), 1, 1)),
        (partition(), (), UNCLEAN, (NO_NODE, (1, 2, 3), 1, 1)),
        (partition(leader=NO_NODE, isr=(1,)), (2, 3), {}, (NO_NODE, (1,), 0, 0)),
        (partition(leader=NO_NODE, isr=(2,)), (2, 3), {}, (2, (2,), 1, 1)),
        (partition(isr=(1,), replicas=(1,)), (2, 3), UNCLEAN, (NO_NODE, (1,), 1, 1)),
    ],
)
def test_who_is_gone(before, live, configs, after):
    """The first live in-sync replica in order leads; a dead follower raises the partition epoch
    alone; the ISR never empties (CTL-02, CTL-04, CTL-05, CTL-09)."""
    record, plan = reviewed(state_of(before, configs=configs), *map(broker, live))
    assert outcome(record) == after
    assert bool(plan.writes) == (record is not before)


@pytest.mark.parametrize(
    ("before", "live", "leaving", "fenced", "after"),
    [
        # A fenced leader is replaced by a heard member, and leaves the ISR.
        (partition(), (1, 2, 3), (), (1,), (2, (2, 3), 1, 1)),
        (partition(), (1, 2, 3), (), (1, 2), (3, (3,), 1, 1)),
        # Not by one that is out of sync, and not by one that is not heard.
        (partition(isr=(1,)), (1, 2, 3), (), (1,), (1, (1,), 0, 0)),
        (partition(isr=(1, 2)), (1, 2, 3), (), (1, 2), (1, (1, 2), 0, 0)),
        (partition(), (1, 2, 3), (), (1, 2, 3), (1, (1, 2, 3), 0, 0)),
        # A fenced follower stays; with a follower that is gone, too.
        (partition(), (1, 2, 3), (), (2,), (1, (1, 2, 3), 0, 0)),
        (partition(), (1, 2), (), (2,), (1, (1, 2), 0, 1)),
        # Another election leaves it out, unless nobody else is there.
        (partition(), (2, 3), (), (2,), (3, (3,), 1, 1)),
        (partition(), (2,), (), (2,), (2, (2,), 1, 1)),
        # Who leaves is better than who is not heard.
        (partition(isr=(1, 2)), (1, 2, 3), (1,), (2,), (1, (1, 2), 0, 0)),
        (partition(), (1, 2, 3), (2,), (1, 3), (2, (2,), 1, 1)),
        (partition(isr=(1, 2)), (1, 2, 3), (1,), (1, 2), (1, (1, 2), 0, 0)),
    ],
)
@pytest.mark.parametrize("configs", [{}, UNCLEAN], ids=["clean", "unclean"])
def test_who_is_fenced(before, live, leaving, fenced, after, configs):
    """Registered, and not heard by the controller: another leads if one is in sync and heard."""
    state = state_of(before, configs=configs)
    admissions = {
        node: replace(admission, is_leaving=node in leaving)
        for node, admission in state.admissions.items()
    }
    state = replace(state, admissions=admissions)
    record, plan = reviewed(state, *map(broker, live), fenced=fenced)
    assert outcome(record) == after
    assert plan.state.fenced == set(fenced)


def test_a_broker_that_was_just_admitted_is_not_fenced():
    """What was heard of an older registration says nothing of it."""
    record, plan = reviewed(state_of(partition()), returned(1), broker(2), broker(3), fenced=(1,))
    assert outcome(record) == (1, (1, 2, 3), 1, 1)
    assert plan.state.fenced == set()


def test_an_unclean_election_takes_who_is_heard():
    """Where it is allowed, and nobody in sync lives."""
    state = state_of(partition(isr=(1,)), configs=UNCLEAN)
    record, _ = reviewed(state, broker(2), broker(3), fenced=(2,))
    assert outcome(record) == (3, (3,), 1, 1)


RETURNS = {
    "clean or same boot": ({"tail_safe": True}, False),
    "the machine stopped": ({"tail_safe": False}, True),
    "synced before each ack": ({"tail_safe": False, "was_synced": True}, False),
    "a damaged log": ({"damaged": frozenset({NAME})}, True),
    "another log is damaged": ({"damaged": frozenset({TopicPartition("u", 0)})}, False),
}


@pytest.mark.parametrize(("said", "is_unsafe"), RETURNS.values(), ids=RETURNS)
def test_a_leader_that_returns(said, is_unsafe):
    """CTL-14, K2: it has a new epoch; it stays in sync and leads only if its tail is safe."""
    record, _ = reviewed(state_of(partition()), returned(1, **said), broker(2), broker(3))
    assert outcome(record) == ((2, (2, 3), 1, 1) if is_unsafe else (1, (1, 2, 3), 1, 1))


@pytest.mark.parametrize(("said", "is_unsafe"), RETURNS.values(), ids=RETURNS)
def test_a_follower_that_returns(said, is_unsafe):
    """K2: an unsafe member leaves the ISR while a safe one lives; a safe one changes nothing."""
    record, _ = reviewed(state_of(partition()), broker(1), returned(2, **said), broker(3))
    assert outcome(record) == ((1, (1, 3), 0, 1) if is_unsafe else (1, (1, 2, 3), 0, 0))


@pytest.mark.parametrize(
    "back",
    [
        replace(returned(2), directory_id="another"),
        replace(returned(2), run=1),
        replace(returned(2), run=0),
        replace(returned(2), directory_id="another", was_synced=True),
    ],
    ids=["empty directory", "older directory", "much older", "empty, whatever it says"],
)
def test_another_directory_is_unsafe(back):
    """K2: a broker with an empty or an older directory lacks what it had acknowledged; that is
    told, once."""
    record, plan = reviewed(state_of(partition()), broker(1), back, broker(3))
    assert outcome(record) == (1, (1, 3), 0, 1)
    what = "an older copy of its" if back.directory_id == "d2" else "another"
    _, warning = plan.reports
    assert warning.level == logging.WARNING
    assert f"Broker 2 came back with {what} data directory" in warning.text
    assert without_pause(review(plan.state, plan.state.brokers, CONFIG)).reports == ()


def test_a_leader_that_registers_anew_leads_on():
    """A process whose session ended unseen is elected nowhere anew: it has lost nothing, and nobody
    else led meanwhile. With a damaged log it does not lead on."""
    again = broker(1, epoch=20, tail_safe=False)
    record, plan = reviewed(state_of(partition()), again, broker(2), broker(3))
    assert outcome(record) == (1, (1, 2, 3), 0, 0)
    assert plan.state.admissions[1].epoch == 20
    damaged = broker(1, epoch=20, damaged=frozenset({NAME}))
    record, _ = reviewed(state_of(partition()), damaged, broker(2), broker(3))
    assert outcome(record) == (2, (2, 3), 1, 1)


def test_a_lost_session_loses_nothing():
    """A process that registered anew stays in sync, whatever it says of the run before its own."""
    again = broker(2, epoch=20, tail_safe=False)
    record, plan = reviewed(state_of(partition()), broker(1), again, broker(3))
    assert outcome(record) == (1, (1, 2, 3), 0, 0)
    assert plan.state.admissions[2].epoch == 20


def test_a_topic_that_was_not_synced_is_unsafe():
    """K2: `flush=always` of the broker does not count for a topic with another setting."""
    back = returned(2, tail_safe=False, was_synced=True)
    for configs, isr in (({"flush": "interval"}, (1, 3)), ({"flush": "always"}, (1, 2, 3))):
        state = state_of(partition(), configs=configs)
        record, _ = reviewed(state, broker(1), back, broker(3))
        assert record.isr == isr


def test_a_return_is_settled_with_its_admission():
    """The admission comes with what follows from the return, and last: were it written in parts, a
    controller that stops between them would leave a broker that was not admitted."""
    state = state_of(partition())
    _, plan = reviewed(state, broker(1), returned(2, tail_safe=False), broker(3))
    keys = [write.key for write in plan.writes]
    assert keys == [f"partitions/{(b'i' * 16).hex()}/0", "admissions/2"]
    again = without_pause(review(plan.state, plan.state.brokers, CONFIG))
    assert (again.writes, again.state) == ((), plan.state)


def test_a_broker_that_is_new_is_admitted():
    """A broker that nobody knew is live after its review, and unsafe for nothing."""
    state = replace(state_of(partition()), admissions={}, brokers={})
    record, plan = reviewed(state, broker(1), broker(2), broker(3))
    assert sorted(plan.state.admissions) == [1, 2, 3]
    assert outcome(record) == (1, (1, 2, 3), 1, 1)


class TestNobodySafe:
    """One machine lost its power: every member of the ISR may have lost its end (K2)."""

    def test_one_after_the_other(self):
        """Nobody leads until all members of the ISR are back; then their ends are compared."""
        state = state_of(partition(), live=())
        record, plan = reviewed(state, returned(2, tail_safe=False))
        assert outcome(record) == (NO_NODE, (1, 2, 3), 1, 1)
        assert record.unsafe == (2,)
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
        two = returned(2, tail_safe=False), returned(3, tail_safe=False)
        record, plan = reviewed(plan.state, *two)
        assert (outcome(record), record.unsafe) == ((NO_NODE, (1, 2, 3), 1, 1), (2, 3))
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
        record, plan = reviewed(plan.state, *two, returned(1, tail_safe=False))
        assert record.unsafe == (1, 2, 3)
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {NAME: (1, 2, 3)}

    def test_a_safe_member_ends_the_wait(self):
        """A safe member that comes back leads at once, and the unsafe ones leave the ISR."""
        state = state_of(partition(leader=NO_NODE, unsafe=(2, 3)), live=(2, 3))
        record, _ = reviewed(state, returned(1), broker(2), broker(3))
        assert outcome(record) == (1, (1,), 1, 1)
        assert record.unsafe == ()

    def test_a_loss_is_not_forgotten(self):
        """An unsafe member that restarts cleanly is still unsafe: what it lost stays lost."""
        state = state_of(partition(leader=NO_NODE, unsafe=(2,)), live=(2,))
        record, _ = reviewed(state, returned(2))
        assert (record.leader, record.unsafe) == (NO_NODE, (2,))

    @pytest.mark.parametrize(
        ("tails", "leader"),
        [
            ({1: (3, 10), 2: (3, 12), 3: (2, 99)}, 2),
            ({1: (3, 10), 2: (3, 10), 3: (3, 9)}, 1),
            ({1: (0, 0), 2: (0, 0), 3: (1, 1)}, 3),
        ],
    )
    def test_the_longest_log_leads(self, tails, leader, caplog):
        """The largest (last epoch, log end) leads alone; what may be lost is reported."""
        state = state_of(partition(leader=NO_NODE, unsafe=(1, 2, 3)))
        plan = recover(
            state, CONFIG, [NAME], {node: {NAME: LogTail(*tail)} for node, tail in tails.items()}
        )
        record = plan.state.topics["t"].partitions[0]
        assert outcome(record) == (leader, (leader,), 1, 1)
        assert record.unsafe == ()
        (report,) = plan.reports
        assert report.level == logging.WARNING
        assert f"Broker {leader} leads" in report.text

    def test_all_of_them_must_be_heard(self):
        """While one of the live replicas was not asked, nobody is elected."""
        state = state_of(partition(leader=NO_NODE, unsafe=(1, 2, 3)))
        plan = recover(
            state, CONFIG, [NAME], {1: {NAME: LogTail(1, 1)}, 2: {NAME: LogTail(1, 1)}, 3: {}}
        )
        assert (plan.writes, plan.state) == ((), state)

    def test_a_replica_that_fell_behind_may_have_the_most(self):
        """A live replica outside the ISR is compared too: it may hold what the ISR lost (K2)."""
        state = state_of(partition(leader=NO_NODE, isr=(1,), unsafe=(1,)))
        assert waiting_for_tails(state, CONFIG, [NAME]) == {NAME: (1, 2, 3)}
        tails = {1: (3, 5), 2: (3, 9), 3: (3, 7)}
        plan = recover(
            state, CONFIG, [NAME], {node: {NAME: LogTail(*tail)} for node, tail in tails.items()}
        )
        assert plan.state.topics["t"].partitions[0].leader == 2

    def test_an_isr_too_small_to_commit_waits_for_all_replicas(self):
        """With fewer in sync than min.insync.replicas, what was acknowledged before may be only on
        replicas that left the ISR: the last member that lost its end does not lead alone (K2)."""
        two = {"min.insync.replicas": "2"}
        state = state_of(partition(leader=2, isr=(2,)), live=(), configs=two)
        alone = returned(2, tail_safe=False)
        record, plan = reviewed(state, alone, broker(3))
        assert (record.leader, record.unsafe) == (NO_NODE, (2,))
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
        assert "waits for its replicas on brokers 1" in plan.reports[-1].text
        record, plan = reviewed(plan.state, alone, broker(3), returned(1))
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {NAME: (1, 2, 3)}
        tails = {1: {NAME: LogTail(3, 9)}, 2: {NAME: LogTail(3, 5)}, 3: {NAME: LogTail(3, 7)}}
        plan = recover(plan.state, CONFIG, [NAME], tails)
        assert outcome(plan.state.topics["t"].partitions[0])[:2] == (1, (1,))

    def test_a_single_replica_leads_at_once(self):
        """A single replica leads with a warning; the next epoch shows what it has."""
        state = state_of(partition(isr=(1,), replicas=(1,)), live=())
        record, plan = reviewed(state, returned(1, tail_safe=False))
        assert outcome(record) == (1, (1,), 1, 1)
        assert [report.level for report in plan.reports] == [logging.INFO, logging.WARNING]


class TestShutdown:
    """CTL-11, CTL-12."""

    def shut(self, state, node, epoch=10):
        plan = without_pause(plan_shutdown(state, CONFIG, ControlledShutdownRequest(node, epoch)))
        return plan.state.topics["t"].partitions[0], plan

    def test_a_leader_hands_over(self):
        """A live in-sync replica leads; the leaving broker is out of the ISR."""
        record, plan = self.shut(state_of(partition()), 1)
        assert outcome(record) == (2, (2, 3), 1, 1)
        assert (plan.answer.error, plan.answer.remaining) == (0, ())

    def test_a_follower_leaves_the_isr(self):
        """It is removed from the ISRs that it follows, without an election."""
        record, _ = self.shut(state_of(partition()), 2)
        assert outcome(record) == (1, (1, 3), 0, 1)

    def test_the_last_member_stays(self):
        """What nobody else can lead is returned, and stays led."""
        record, plan = self.shut(state_of(partition(isr=(1,))), 1)
        assert outcome(record) == (1, (1,), 0, 0)
        assert plan.answer.remaining == (NAME,)

    def test_a_single_replica_is_not_touched(self):
        """A partition with one replica stays as it is, and is not returned."""
        record, plan = self.shut(state_of(partition(isr=(1,), replicas=(1,))), 1)
        assert outcome(record) == (1, (1,), 0, 0)
        assert plan.answer.remaining == ()

    def test_two_leave(self):
        """Who is leaving is no heir while another one stays; of two leaving the last leads on."""
        record, plan = self.shut(state_of(partition(isr=(1, 2))), 2)
        assert outcome(record) == (1, (1,), 0, 1)
        record, plan = self.shut(plan.state, 1)
        assert outcome(record) == (1, (1,), 0, 1)
        assert plan.answer.remaining == (NAME,)

    def test_asking_again_changes_nothing(self):
        """A repeated request is answered alike, without a write."""
        _, plan = self.shut(state_of(partition()), 1)
        assert plan.writes
        _, again = self.shut(plan.state, 1)
        assert (again.writes, again.answer) == ((), plan.answer)

    def test_an_old_epoch_is_refused(self):
        """CTL-12: STALE_BROKER_EPOCH for an old registration, and for an unknown broker."""
        for node, epoch in ((1, 9), (4, 10)):
            _, plan = self.shut(state_of(partition()), node, epoch)
            assert plan.answer.error == ErrorCode.STALE_BROKER_EPOCH
            assert plan.writes == ()

    def test_it_is_not_forgotten(self):
        """A new controller reads from the store who is leaving: it gives them no leadership."""
        _, plan = self.shut(state_of(partition()), 2)
        record, _ = reviewed(plan.state, broker(2), broker(3))
        assert record.leader == 3

    def test_a_return_is_a_new_life(self):
        """A broker that left and came back is not leaving any more."""
        _, plan = self.shut(state_of(partition()), 1)
        _, plan = reviewed(plan.state, broker(2), broker(3))
        _, plan = reviewed(plan.state, returned(1), broker(2), broker(3))
        assert not plan.state.is_leaving(1)


NODES = st.lists(st.sampled_from((1, 2, 3)), unique=True, min_size=1).map(tuple)
LIVES = st.fixed_dictionaries(
    {
        node: st.sampled_from(("down", "up", "back", "unsafe", "damaged", "empty"))
        for node in (1, 2, 3)
    }
)


def lives_of(lives):
    made = {
        "up": broker,
        "back": returned,
        "unsafe": lambda node: returned(node, tail_safe=False),
        "damaged": lambda node: returned(node, damaged=frozenset({NAME})),
        "empty": lambda node: replace(returned(node), directory_id="another"),
    }
    return [made[life](node) for node, life in lives.items() if life != "down"]


@given(NODES, st.booleans(), LIVES)
def test_elections_in_general(isr, is_led, lives):
    """Whatever happened to the brokers: who leads lives, and is safe if any in-sync replica is;
    the ISR never empties or grows; the epochs tell every election; a review is done once."""
    old = partition(leader=isr[0] if is_led else NO_NODE, isr=isr)
    record, plan = reviewed(state_of(old), *lives_of(lives))
    safe = {node for node in isr if lives[node] in ("up", "back")}
    if safe:
        assert record.leader in safe
        assert set(record.isr) == safe
    elif record.leader != NO_NODE:
        assert lives[record.leader] not in ("down", "damaged")
        assert all(lives[node] != "down" for node in isr)
    else:
        assert record.isr == isr
    is_same_term = record.leader == old.leader and lives.get(old.leader, "up") == "up"
    assert record.leader_epoch == old.leader_epoch + (not is_same_term)
    assert (record.partition_epoch > old.partition_epoch) == (
        not is_same_term or record.isr != old.isr
    )
    assert without_pause(review(plan.state, plan.state.brokers, CONFIG)).writes == ()


# -- unclean elections by request

GONE = partition(leader=NO_NODE, isr=(1,))
AHEAD = {2: (5, 70), 3: (5, 90)}


@pytest.mark.parametrize(
    ("before", "tails", "wanted", "leader"),
    [
        (GONE, AHEAD, -1, 3),
        (GONE, AHEAD, 2, 2),
        (GONE, {2: (5, 70), 3: (4, 90)}, -1, 2),
        (GONE, {2: (5, 90), 3: (5, 90)}, -1, 2),
        (GONE, {3: (5, 0)}, -1, 3),
        (partition(leader=NO_NODE, isr=(1, 3), unsafe=(3,)), AHEAD, -1, 3),
    ],
)
def test_by_request_the_longest_log_leads_or_the_named_one(before, tails, wanted, leader):
    """Alone, in the next epoch, which says from where on logs may be cut below what they committed;
    the topic does not allow it."""
    state = state_of(before, live=(2, 3))
    plan = without_pause(
        plan_unclean(state, UncleanElection([NAME, NAME], heard(tails), state, wanted))
    )
    assert [one.error for one in plan.answer] == [0]
    record = plan.state.partition(NAME)
    assert (*outcome(record), record.unclean_epoch) == (leader, (leader,), 1, 1, 6)
    assert reviewed(plan.state, *map(broker, (2, 3)))[0] is record
    assert "unclean election of broker" in plan.reports[0].text


@pytest.mark.parametrize(
    ("before", "tails", "wanted", "code", "reason"),
    [
        (partition(), AHEAD, -1, ErrorCode.ELECTION_NOT_NEEDED, "broker 1 leads"),
        (partition(), AHEAD, 3, ErrorCode.ELECTION_NOT_NEEDED, "broker 1 leads"),
        (GONE, {}, -1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "none of its replicas can lead"),
        (GONE, AHEAD, 1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "broker 1 cannot lead"),
        (GONE, AHEAD, 9, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "broker 9 has no replica"),
        (GONE, {2: (-1, -1)}, -1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "an undamaged log"),
    ],
)
def test_a_request_that_cannot_be_carried_out_changes_nothing(before, tails, wanted, code, reason):
    """The answer says why."""
    state = state_of(before, live=(2, 3))
    plan = without_pause(plan_unclean(state, UncleanElection([NAME], heard(tails), state, wanted)))
    [result] = plan.answer
    assert (result.error, plan.writes, plan.state.topics) == (code, (), state.topics)
    assert reason in result.error_message
    [unknown] = without_pause(
        plan_unclean(state, UncleanElection([TopicPartition("u", 0)], {}, state))
    ).answer
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_damaged_log_and_one_that_never_was_in_sync_do_not_lead_by_request():
    """Broker 2 is damaged, and a reassignment adds 3."""
    adding = replace(GONE, reassignment=Reassignment((1, 2), (1, 2, 3)))
    state = state_of(adding, live=(2, 3))
    damaged = replace(state, brokers={**state.brokers, 2: broker(2, damaged=frozenset([NAME]))})
    [result] = without_pause(
        plan_unclean(damaged, UncleanElection([NAME], heard(AHEAD), damaged))
    ).answer
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    [result] = without_pause(
        plan_unclean(state, UncleanElection([NAME], heard(AHEAD), state))
    ).answer
    assert result.error == 0


def test_logs_that_may_have_changed_meanwhile_are_not_compared():
    """Of a broker that registered again, and of a partition that had a leader in between."""
    asked = state_of(GONE, live=(2, 3))
    again = replace(asked, brokers={**asked.brokers, 3: broker(3, epoch=99)})
    for state, leader in ((asked, 3), (again, 2)):
        plan = without_pause(plan_unclean(state, UncleanElection([NAME], heard(AHEAD), asked)))
        assert (plan.answer[0].error, plan.state.partition(NAME).leader) == (0, leader)
    led = state_of(replace(GONE, leader_epoch=GONE.leader_epoch + 2), live=(2, 3))
    [result] = without_pause(plan_unclean(led, UncleanElection([NAME], heard(AHEAD), asked))).answer
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_who_is_asked_for_its_log_end():
    """Whoever may lead and is heard; a named broker though it is fenced."""
    state = replace(state_of(GONE, live=(2, 3)), fenced=frozenset([3]))
    assert unclean_candidates(state, [NAME], NO_NODE) == (2,)
    assert unclean_candidates(state, [NAME], 3) == (3,)
    assert unclean_candidates(state, [TopicPartition("u", 0)], NO_NODE) == ()
    assert unclean_candidates(state_of(partition()), [NAME], NO_NODE) == ()
