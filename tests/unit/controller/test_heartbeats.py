"""Whom the controller hears: answers, orders, silence, and what it confirms."""

import pytest

from minibroker.broker.controller.heartbeats import BrokerHeartbeats, Confirmation
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.protocol.types import Endpoint

TIMEOUT_S = 2.0
INTERVAL_S = 0.25


def registered(node, epoch=10, timeout_ms=2_000):
    return BrokerRegistration(
        node, epoch, Endpoint("h", node), "d", 1, "p", fence_timeout_ms=timeout_ms
    )


class Hearing:
    """The heartbeats of brokers 1 to `count`, of which 1 is the controller's own; at time 0."""

    def __init__(self, count=3, **settings):
        self.brokers = {node: registered(node, **settings) for node in range(1, count + 1)}
        self.beats = BrokerHeartbeats(1, INTERVAL_S, 0.0)
        self.beats.set_registered(self.brokers, 0.0)

    def run(self, since, until, *nodes, is_obedient=True, lapse=0):
        """Probe these brokers every interval; the stamp is the time in ms."""
        steps = round((until - since) / INTERVAL_S)
        for step in range(1, steps + 1):
            now = since + step * INTERVAL_S
            self.beats.tick(now)
            for node in nodes:
                stamp = round(now * 1000)
                self.beats.on_answer(self.brokers[node], stamp, lapse, now, is_obedient=is_obedient)
        return until

    def confirmed(self, node):
        return self.beats.confirmation(self.brokers[node])


def test_who_is_silent_for_its_time_out_is_fenced():
    """Counted from the receipt of the last answer; who answers is heard."""
    hearing = Hearing()
    at = hearing.run(0.0, 1.0, 1, 2, 3)
    assert not hearing.beats.is_due(at)
    hearing.run(1.0, 2.75, 1, 2)
    assert hearing.beats.judge(2.75) == frozenset()
    hearing.run(2.75, 3.0, 1, 2)
    assert hearing.beats.is_due(3.0)
    assert hearing.beats.judge(3.0) == {3}
    assert not hearing.beats.is_due(3.0)


def test_a_new_registration_and_a_new_controller_give_a_whole_time_out():
    """Whatever came before: nothing of an older registration counts."""
    hearing = Hearing()
    hearing.run(0.0, 1.75, 1, 2)
    assert hearing.beats.judge(1.75) == frozenset()
    older = hearing.brokers[3]
    hearing.brokers[3] = registered(3, epoch=20)
    hearing.beats.set_registered(hearing.brokers, 1.75)
    hearing.beats.on_answer(older, 5, 0, 1.75, is_obedient=True)
    assert hearing.confirmed(3) == Confirmation()
    hearing.run(1.75, 3.5, 1, 2)
    assert hearing.beats.judge(3.5) == frozenset()
    hearing.run(3.5, 3.75, 1, 2)
    assert hearing.beats.judge(3.75) == {3}


def test_who_obeys_no_order_is_not_heard():
    """An answer counts once an order was acknowledged after it, as of when it was received."""
    hearing = Hearing()
    hearing.run(0.0, 1.0, 1, 2)
    hearing.run(0.0, 1.0, 3, is_obedient=False)
    assert hearing.confirmed(3) == Confirmation()
    hearing.beats.on_acknowledgement(hearing.brokers[3])
    assert hearing.confirmed(3).stamp == 1_000
    hearing.run(1.0, 2.75, 1, 2)
    hearing.beats.on_acknowledgement(hearing.brokers[3])
    assert hearing.beats.judge(2.75) == frozenset()
    hearing.run(2.75, 3.0, 1, 2)
    assert hearing.beats.judge(3.0) == {3}


def test_time_in_which_the_controller_stood_still_counts_for_nobody():
    """SIGSTOP, or a loop that was busy: all brokers get that much more."""
    hearing = Hearing()
    hearing.run(0.0, 1.0, 1, 2, 3)
    hearing.beats.tick(11.0)
    assert hearing.beats.judge(11.0) == frozenset()
    hearing.run(11.0, 12.5, 1, 2)
    assert hearing.beats.judge(12.5) == frozenset()
    hearing.run(12.5, 12.75, 1, 2)
    assert hearing.beats.judge(12.75) == {3}


def test_an_earlier_version_is_heard_by_its_lease():
    """It answers no probe, and counts as heard as long as it is registered."""
    hearing = Hearing(timeout_ms=0)
    hearing.run(0.0, 100.0)
    assert hearing.beats.judge(100.0) == frozenset()
    assert not hearing.beats.is_isolated(100.0)


@pytest.mark.parametrize(
    ("count", "heard", "is_isolated"),
    [
        (1, [1], False),
        (2, [1], False),
        (3, [1], True),
        (3, [1, 2], False),
        (4, [1, 2], False),
        (4, [1], True),
        (5, [1, 2], True),
        (5, [1, 2, 3], False),
    ],
)
def test_who_hears_fewer_than_half_is_isolated(count, heard, is_isolated):
    """Itself counted, of three or more; it doubts that before, and fences nobody meanwhile."""
    hearing = Hearing(count)
    hearing.run(0.0, 1.5, *heard)
    assert hearing.beats.is_doubtful(1.5) == is_isolated
    hearing.run(1.5, 2.0, *heard)
    assert hearing.beats.is_isolated(2.0) == is_isolated
    assert hearing.beats.is_due(2.0) == (len(heard) < count)
    silent = set(range(1, count + 1)) - set(heard)
    assert hearing.beats.judge(2.0) == (set() if is_isolated else silent)


def test_nobody_is_fenced_while_others_are_about_to_fall_silent():
    """Two brokers are cut off at once, and one answered a little later than the other."""
    hearing = Hearing()
    hearing.run(0.0, 0.5, 1, 2, 3)
    hearing.run(0.5, 1.0, 1, 2)
    hearing.run(1.0, 2.5, 1)
    assert not hearing.beats.is_isolated(2.5)
    assert not hearing.beats.is_due(2.5)
    assert hearing.beats.judge(2.5) == frozenset()
    hearing.run(2.5, 3.0, 1)
    assert hearing.beats.is_isolated(3.0)


def test_a_fenced_broker_is_confirmed_only_after_the_next_judgement():
    """Until then its fence may not have been written; and what roles it was told counts no more."""
    hearing = Hearing()
    hearing.run(0.0, 2.0, 1, 2)
    assert hearing.beats.judge(2.0) == {3}
    hearing.run(2.0, 3.0, 1, 2, 3, lapse=1)
    assert hearing.confirmed(3) == Confirmation()
    assert not hearing.beats.needs_roles(hearing.brokers[3])
    assert hearing.beats.is_due(3.0)
    assert hearing.beats.judge(3.0) == frozenset()
    assert hearing.confirmed(3) == Confirmation(3_000, 0)
    assert hearing.beats.needs_roles(hearing.brokers[3])


def test_roles_are_told_again_once_for_each_lapse():
    """From what the broker says to what it was told; a later lapse or a fence begins anew."""
    hearing = Hearing()
    broker = hearing.brokers[3]
    hearing.run(0.0, 0.5, 3)
    assert not hearing.beats.needs_roles(broker)
    hearing.run(0.5, 1.0, 3, lapse=1)
    assert hearing.beats.needs_roles(broker)
    hearing.beats.begin_roles(broker, 7)
    assert not hearing.beats.needs_roles(broker)
    hearing.beats.on_acknowledged(broker, 6)
    assert hearing.confirmed(3) == Confirmation(1_000, 0)
    hearing.beats.on_acknowledged(broker, 7)
    assert hearing.confirmed(3) == Confirmation(1_000, 1)
    hearing.run(1.0, 1.5, 3, lapse=1)
    assert not hearing.beats.needs_roles(broker)
    hearing.run(1.5, 2.0, 3, lapse=2)
    assert hearing.beats.needs_roles(broker)
    hearing.beats.begin_roles(broker, 9)
    hearing.run(2.0, 2.5, 3, lapse=3)
    hearing.beats.on_acknowledged(broker, 9)
    assert hearing.confirmed(3).confirmed_lapse == 1
    hearing.run(2.5, 4.5, 1, 2)
    assert hearing.beats.judge(4.5) == {3}
    hearing.run(4.5, 5.0, 1, 2, 3, lapse=1)
    assert hearing.beats.judge(5.0) == frozenset()
    assert hearing.confirmed(3) == Confirmation(5_000, 0)
    assert hearing.beats.needs_roles(broker)
