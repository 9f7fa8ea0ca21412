"""A log that is damaged never leads: found at the start, or while its broker lives (REC-03)."""

import logging
from dataclasses import replace

import pytest
import trio

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
from tests.unit.controller.fleet import T0, open_fleet


class TestDamage:
    """A log that recovery found damaged (REC-03)."""

    damaged = frozenset({NAME})

    @pytest.mark.parametrize("configs", [{}, UNCLEAN])
    def test_a_single_replica_is_offline(self, configs):
        """It never leads, whatever the topic allows, and the report names the command."""
        state = state_of(partition(isr=(1,), replicas=(1,)), live=(), configs=configs)
        record, plan = reviewed(state, returned(1, damaged=self.damaged))
        assert (record.leader, record.isr, record.unsafe) == (NO_NODE, (1,), (1,))
        assert "minibroker partition recover t 0" in plan.reports[-1].text
        _, plan = reviewed(plan.state, replace(returned(1, damaged=self.damaged), epoch=30, run=3))
        assert "minibroker partition recover t 0" in plan.reports[-1].text

    def test_a_recovered_replica_leads(self):
        """Once the operator has accepted the loss, the replica leads with a warning."""
        state = state_of(partition(NO_NODE, (1,), (1,), unsafe=(1,)), live=())
        record, plan = reviewed(state, returned(1))
        assert outcome(record) == (1, (1,), 1, 1)
        assert plan.reports[-1].level == logging.WARNING

    def test_the_undamaged_lead(self):
        """Of unsafe members one whose log is damaged is no candidate."""
        state = state_of(partition(isr=(1, 2), replicas=(1, 2)), live=())
        record, _ = reviewed(state, returned(1, damaged=self.damaged), returned(2, tail_safe=False))
        assert outcome(record) == (2, (2,), 1, 1)

    def test_who_left_the_isr_is_no_heir_of_a_damaged_log(self):
        """What the last member of an ISR has lost, others that live may never have had: nobody
        leads, unless the topic allows unclean election."""
        state = state_of(partition(isr=(1,)), live=(2, 3))
        record, plan = reviewed(state, returned(1, damaged=self.damaged), broker(2), broker(3))
        assert (record.leader, record.isr, record.unsafe) == (NO_NODE, (1,), (1,))
        assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
        assert "minibroker partition recover t 0" in plan.reports[-1].text
        state = state_of(partition(isr=(1,)), live=(2, 3), configs=UNCLEAN)
        record, _ = reviewed(state, returned(1, damaged=self.damaged), broker(2), broker(3))
        assert outcome(record) == (2, (2,), 1, 1)


def test_damage_that_a_process_has_found_meanwhile_counts():
    """REC-03: who registers anew because a log has turned out to be damaged leads it no more."""
    again = broker(1, epoch=20, damaged=frozenset({NAME}))
    record, _ = reviewed(state_of(partition()), again, broker(2), broker(3))
    assert outcome(record) == (2, (2, 3), 1, 1)


async def test_a_leader_that_became_damaged_is_replaced(autojump_clock):
    """It registers anew with what is damaged now: another member of the ISR leads, and it is out
    of the ISR, though its process never died."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        damaged = []
        broker = fleet[(await fleet.record()).leader]
        await broker.kill()
        await broker.start(damaged=lambda: damaged)
        await fleet.settled()
        before = await fleet.record()
        assert before.leader == broker.node_id
        epoch = broker.node.broker_epoch
        damaged.append(T0)
        broker.node.register_anew()
        await trio.sleep(1)
        await fleet.settled()
        record = await fleet.record()
        assert broker.node.broker_epoch > epoch
        assert record.leader in record.isr == tuple(n for n in before.isr if n != broker.node_id)
