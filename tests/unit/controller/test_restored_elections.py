"""Elections after a restore: from the logs alone, in an epoch above all of theirs."""

from dataclasses import replace

import pytest

from minibroker.broker.controller.elections import (
    EPOCHS_SKIPPED,
    UncleanElection,
    plan_unclean,
    recover,
    waiting_for_tails,
)
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE
from tests.unit.controller.electing import (
    CONFIG,
    NAME,
    UNCLEAN,
    broker,
    heard,
    partition,
    reviewed,
    state_of,
)

RESTORED = replace(partition(NO_NODE, unsafe=(1, 2, 3)), is_restored=True)
ALONE = replace(partition(NO_NODE, (1,), (1,), unsafe=(1,)), is_restored=True)


def test_the_epoch_is_above_those_of_all_logs():
    """The logs are newer than the backup. Epochs that nothing was written in are skipped too."""
    tails = heard({1: (40, 10), 2: (40, 12), 3: (39, 99)})
    [topic] = recover(state_of(RESTORED), CONFIG, [NAME], tails).state.topics.values()
    [record] = topic.partitions
    assert (record.leader, record.isr, record.unsafe, record.is_restored) == (2, (2,), (), False)
    assert record.leader_epoch == 40 + EPOCHS_SKIPPED + 1


def test_a_backup_may_know_a_newer_epoch():
    """No log has the epoch of the backup: nothing was written in it."""
    tails = heard({1: (3, 10), 2: (3, 10), 3: (3, 10)})
    record = recover(state_of(RESTORED), CONFIG, [NAME], tails).state.partition(NAME)
    assert record.leader_epoch == RESTORED.leader_epoch + EPOCHS_SKIPPED + 1


@pytest.mark.parametrize("configs", [{}, UNCLEAN], ids=["clean", "unclean"])
@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_all_replicas_are_waited_for(configs, min_isr):
    """Neither the size of the in-sync set nor the permission of unclean elections shortens it."""
    settings = {**configs, "min.insync.replicas": min_isr}
    state = state_of(RESTORED, live=(), configs=settings)
    record, plan = reviewed(state, broker(1), broker(2))
    assert record == RESTORED
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
    record, plan = reviewed(plan.state, broker(1), broker(2), broker(3, epoch=11))
    assert record == RESTORED
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {NAME: (1, 2, 3)}
    assert "its metadata come from a backup" in plan.reports[-1].text


def test_a_single_replica_is_asked_too():
    """Else its epoch would not be raised above that of its log."""
    record, plan = reviewed(state_of(ALONE, live=()), broker(1, epoch=11))
    assert record == ALONE
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {NAME: (1,)}


def test_a_damaged_log_is_waited_for():
    """It may be the only one that has what was acknowledged."""
    damaged = broker(2, epoch=11, damaged=frozenset({NAME}))
    record, plan = reviewed(state_of(RESTORED, live=()), broker(1), damaged, broker(3))
    assert record == RESTORED
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {}
    assert "partition recover t 0" in plan.reports[-1].text


def test_an_unclean_election_by_request_raises_the_epoch():
    """An operator may go on without a replica that is lost for good."""
    state = state_of(RESTORED, live=(2, 3))
    election = UncleanElection([NAME], heard({2: (40, 7), 3: (41, 5)}), state)
    record = without_pause(plan_unclean(state, election)).state.partition(NAME)
    assert (record.leader, record.is_restored) == (3, False)
    assert record.leader_epoch == record.unclean_epoch == 41 + EPOCHS_SKIPPED + 1


def test_brokers_that_are_not_compared_are_not_waited_for():
    """The operator named the brokers whose logs are compared."""
    named = replace(RESTORED, isr=(1,), unsafe=(1,))
    state = state_of(named, live=(), configs={"min.insync.replicas": "2"})
    _, plan = reviewed(state, broker(1), broker(2))
    assert waiting_for_tails(plan.state, CONFIG, [NAME]) == {NAME: (1, 2)}
