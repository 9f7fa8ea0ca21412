"""The controller lease: how long it lasts, what confirms it, and what brings it back."""

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.controller.controller_lease import ControllerLease
from minibroker.broker.controller.heartbeats import BrokerHeartbeats
from minibroker.protocol.constants import NO_LAPSE, NO_STAMP, ErrorCode
from minibroker.protocol.messages.control import ProbeRequest
from tests.unit.controller.test_heartbeats import registered

EPOCH = 10


def begun_lease(at=0.0):
    """A broker that registered at this time, with a time-out of 2 s."""
    lease = ControllerLease(2.0)
    lease.begin(at)
    return lease


def probe(lease, now, confirmed=NO_STAMP, confirmed_lapse=NO_LAPSE, controller_epoch=1):
    return lease.on_probe(
        ProbeRequest(2, controller_epoch, EPOCH, confirmed, confirmed_lapse), EPOCH, now
    )


def test_a_registration_begins_with_a_whole_time_out():
    """And before the first there is no lease."""
    lease = ControllerLease(2.0)
    assert not lease.is_current(0.0)
    lease.begin(1.0)
    assert lease.is_current(2.999)
    assert not lease.is_current(3.0)
    assert lease.lapse == 1
    lease.begin(4.0)
    assert lease.is_current(5.9)
    assert lease.lapse == NO_LAPSE


def test_a_confirmation_counts_from_when_the_answer_was_sent():
    """Not from when the confirmation comes; an older one takes nothing back."""
    lease = begun_lease()
    first = probe(lease, 0.5).stamp
    second = probe(lease, 1.0).stamp
    probe(lease, 1.5, second)
    probe(lease, 1.6, first)
    assert lease.is_current(2.99)
    assert not lease.is_current(3.0)


def test_a_stamp_that_was_never_given_confirms_nothing():
    """It may come from anybody."""
    lease = begun_lease()
    probe(lease, 0.5, confirmed=10**12)
    assert not lease.is_current(2.0)


def test_standing_returns_when_roles_were_told_again():
    """For this lapse, by a stamp that is good still."""
    lease = begun_lease()
    stamp = probe(lease, 0.5).stamp
    answer = probe(lease, 2.1, stamp)
    assert answer.lapse == 1
    assert not lease.is_current(2.1)
    probe(lease, 2.3, answer.stamp)
    assert not lease.is_current(2.3)
    probe(lease, 2.4, answer.stamp, confirmed_lapse=1)
    assert lease.is_current(4.0)
    assert not lease.is_current(4.1)
    answer = probe(lease, 4.2)
    assert answer.lapse == 2
    probe(lease, 4.3, answer.stamp, confirmed_lapse=1)
    assert not lease.is_current(4.3)
    probe(lease, 7.0, answer.stamp, confirmed_lapse=2)
    assert not lease.is_current(7.0)


def test_who_was_replaced_or_means_another_registration_confirms_nothing():
    """And gets no stamp."""
    lease = begun_lease()
    stamp = probe(lease, 0.5, controller_epoch=2).stamp
    assert probe(lease, 1.0, stamp, controller_epoch=1).error == ErrorCode.STALE_CONTROLLER_EPOCH
    other = ProbeRequest(2, 2, EPOCH + 1, stamp)
    assert lease.on_probe(other, EPOCH, 1.0).error == ErrorCode.STALE_BROKER_EPOCH
    assert lease.on_probe(other, -1, 1.0).error == ErrorCode.STALE_BROKER_EPOCH
    assert not lease.is_current(2.0)


def test_while_nobody_governs_nobody_is_fenced():
    """As of when the store was asked; but what has lapsed needs roles first."""
    lease = begun_lease()
    lease.on_vacancy(1.0, 1.2)
    assert lease.is_current(2.9)
    assert not lease.is_current(3.0)
    lease.on_vacancy(3.0, 3.1)
    assert not lease.is_current(3.1)


WAYS = st.lists(
    st.tuples(
        *(st.floats(0, 1.5),) * 2,  # how long the probe and the answer are under way
        st.booleans(),  # whether the answer arrives
        st.booleans(),  # whether orders wait
        st.booleans(),  # whether one is acknowledged then
    ),
    min_size=1,
    max_size=40,
)


@given(WAYS)
def test_the_broker_stops_believing_before_the_controller_does(ways):
    """Whatever is late or lost: who is fenced has no lease, and who was gets none before it was
    judged to be heard and was told its roles again."""
    broker = registered(3)
    beats = BrokerHeartbeats(1, 10.0, 0.0)
    beats.set_registered({1: registered(1, timeout_ms=0), 3: broker}, 0.0)
    lease, now = begun_lease(), 0.0
    for there_s, back_s, arrives, is_obedient, acknowledges in ways:
        if beats.needs_roles(broker):
            beats.begin_roles(broker, 0)
        beats.on_acknowledged(broker, 0)
        confirmation = beats.confirmation(broker)
        now += there_s
        answer = lease.on_probe(ProbeRequest(1, 1, EPOCH, *confirmation), EPOCH, now)
        now += back_s
        if arrives:
            beats.on_answer(broker, answer.stamp, answer.lapse, now, is_obedient=is_obedient)
        if acknowledges:
            beats.on_acknowledgement(broker)
        if 3 in beats.judge(now):
            assert not lease.is_current(now)
