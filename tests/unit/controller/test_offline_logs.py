"""A log in a log directory that failed or is missing: its broker does not live for that
partition."""

from dataclasses import replace

from minibroker.broker.controller.elections import waiting_for_tails
from minibroker.protocol.constants import NO_NODE
from tests.unit.controller.electing import (
    CONFIG,
    NAME,
    UNCLEAN,
    broker,
    outcome,
    partition,
    returned,
    reviewed,
    state_of,
)

OFFLINE = frozenset({NAME})


def test_another_in_sync_replica_leads() -> None:
    """The process goes on, and registers anew with what is offline now."""
    again = broker(1, epoch=20, offline=OFFLINE)
    record, _ = reviewed(state_of(partition()), again, broker(2), broker(3))
    assert outcome(record) == (2, (2, 3), 1, 1)


def test_a_follower_leaves_the_in_sync_set() -> None:
    """Without an election."""
    again = broker(2, epoch=20, offline=OFFLINE)
    record, _ = reviewed(state_of(partition()), broker(1), again, broker(3))
    assert outcome(record) == (1, (1, 3), 0, 1)


def test_nobody_leads_in_place_of_the_only_in_sync_replica() -> None:
    """It stays in the in-sync set, and leads once its log is there; unlike one that is damaged, it
    has lost nothing. Only a topic that allows unclean election does not wait."""
    state = state_of(partition(isr=(1,)), live=(1, 2, 3))
    again = broker(1, epoch=20, offline=OFFLINE)
    record, plan = reviewed(state, again, broker(2), broker(3))
    assert (record.leader, record.isr, record.unsafe) == (NO_NODE, (1,), ())
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
    assert "its log directory is offline on 1" in plan.reports[-1].text
    record, _ = reviewed(plan.state, replace(returned(1), epoch=30), broker(2), broker(3))
    assert (record.leader, record.isr) == (1, (1,))
    state = state_of(partition(isr=(1,)), live=(1, 2, 3), configs=UNCLEAN)
    record, _ = reviewed(state, again, broker(2), broker(3))
    assert (record.leader, record.isr) == (2, (2,))


def test_a_log_that_is_offline_is_awaited_where_all_must_be_compared() -> None:
    """The other member may have lost its end: what the missing log has is not given up."""
    state = state_of(partition(isr=(1, 2), replicas=(1, 2)), live=())
    others = returned(1, offline=OFFLINE), returned(2, tail_safe=False)
    record, plan = reviewed(state, *others)
    assert (record.leader, record.isr) == (NO_NODE, (1, 2))
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
