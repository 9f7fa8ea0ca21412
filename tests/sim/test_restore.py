"""A backup of the metadata is restored under newer logs: nothing acknowledged is lost.

The backup is taken early. Then other replicas lead, some fall behind, and the store is lost. Each
part of a restore that keeps records from being lost is taken out once, and a scenario must fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import trio

from minibroker.broker.controller import elections, entries, restore_plan
from minibroker.broker.controller.backup import Backup, backup_of, dump, load
from minibroker.broker.controller.restore import carry_out
from minibroker.broker.controller.restore_plan import RestorePlan, plan_restore
from minibroker.broker.controller.state import PartitionRecord
from minibroker.broker.metadata.store import Delete, Put, Snapshot
from minibroker.client import Admin, Producer
from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.trial import NAME, TOPIC, Trial, open_trial, play

WAIT_S = 5.0
PRODUCERS = 3


async def take_backup(trial: Trial) -> Backup:
    """A backup as a file has it."""
    return load(dump(backup_of(await trial.world.store.get(""), trial.world.wall_ms())))


async def lose_store(world: SimulatedWorld) -> None:
    """Remove everything from the store."""
    snapshot = await world.store.get("")
    await world.store.transact([], [Delete(key) for key in snapshot.entries])


async def restore(trial: Trial, backup: Backup) -> RestorePlan:
    """Restore a backup into the store as it is."""
    world = trial.world
    plan = plan_restore(backup, await world.store.get(""), world.wall_ms())
    await carry_out(world.store, plan)
    return plan


async def produce_anew(trial: Trial) -> None:
    """Have one record of each of some new producers acknowledged."""
    for number in range(PRODUCERS):
        seams = trial.world.seams(f"producer-{number}")
        async with Producer(trial.cluster.address, seams=seams, linger_ms=0) as producer:
            value = b"%d:%d" % (number + 1, len(trial.acked))
            told = await producer.send_and_wait(TOPIC, value, partition=0)
            assert told.offset not in trial.acked, "two records at one offset"
            trial.acked[told.offset] = value


async def fall_behind(trial: Trial) -> None:
    """Elect twice; then the first leader, which the backup names, lacks acknowledged records."""
    for node in (1, 2):
        await trial.cluster.broker(node).kill()
        await trial.send(3)
        await trial.cluster.broker(node).start()
        await trial.settle()
    await produce_anew(trial)
    await trial.cluster.broker(1).stop()
    await trial.send(5)
    await trial.cluster.kill()


def older_backup(*, early: Sequence[int] = (1, 2), leader: int = NO_NODE) -> None:
    """An older backup is restored into an empty store. Brokers `early` start first; after a while
    broker `leader` leads."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(5)
            backup = await take_backup(trial)
            await fall_behind(trial)
            before = dict(trial.acked)
            await lose_store(trial.world)
            plan = await restore(trial, backup)
            assert (plan.brokers, plan.returning) == ((1, 2, 3), (TOPIC,))
            for node in early:
                await trial.cluster.broker(node).start()
            await trio.sleep(WAIT_S)
            assert (await trial.agreed()).leader == leader
            await trial.cluster.start()
            await trial.send(5)
            await produce_anew(trial)
            assert before.items() <= trial.acked.items(), "an acknowledged record was replaced"
            await trial.settle()
            assert await trial.consume() == [value for _, value in sorted(trial.acked.items())]

    play(scenario)


def moved_partition() -> None:
    """Since the backup the only replica has moved to another broker."""

    async def scenario() -> None:
        async with open_trial(is_watched=False, replicas=1) as trial:
            await trial.send(5)
            [first] = (await trial.agreed()).replicas
            backup = await take_backup(trial)
            async with Admin(trial.cluster.address, seams=trial.world.seams("admin")) as admin:
                await admin.alter_partition_reassignments({NAME: [first % 3 + 1]})
            await trial.until(lambda agreed: agreed.replicas == (first % 3 + 1,))
            await trial.send(5)
            before = dict(trial.acked)
            await trial.cluster.kill()
            await lose_store(trial.world)
            await restore(trial, backup)
            await trial.cluster.start()
            await trial.send(5)
            assert before.items() <= trial.acked.items(), "an acknowledged record was replaced"
            await trial.until(lambda agreed: agreed.replicas == (first,))
            await trial.settle()

    play(scenario)


def test_an_older_backup_loses_nothing() -> None:
    """All acknowledged records are there; no leader before all logs were compared."""
    older_backup()


def test_a_moved_partition_is_found() -> None:
    """Its records are where it was moved to, and it goes back to where it was."""
    moved_partition()


def test_a_store_that_is_intact_keeps_what_is_newer() -> None:
    """A topic that was deleted returns, one that is newer stays with its records."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(5)
            async with Admin(trial.cluster.address, seams=trial.world.seams("admin")) as admin:
                await admin.create_topics("old")
                backup = await take_backup(trial)
                await admin.delete_topics("old")
                await admin.create_topics("new")
            await trial.cluster.kill()
            await trio.sleep(WAIT_S)
            await trial.world.store.transact([], [])  # their leases have ended
            plan = await restore(trial, backup)
            assert (plan.returning, plan.newer) == (("old",), ("new",))
            await trial.cluster.start()
            await trial.send(5)
            async with Admin(trial.cluster.address, seams=trial.world.seams("admin")) as admin:
                assert {"new", "old", TOPIC} <= {*await admin.list_topics()}
            await trial.settle()

    play(scenario)


# -- planted

Patch = pytest.MonkeyPatch


def forget_epochs(patch: Patch) -> None:
    """Begin after the leader epoch of the backup, as an ordinary election does."""
    patch.setattr(elections, "EPOCHS_SKIPPED", 0)
    elected = elections._elected

    def next_one(
        record: PartitionRecord, leader: int, isr: tuple[int, ...], _: int = NO_EPOCH
    ) -> PartitionRecord:
        return elected(record, leader, isr)

    patch.setattr(elections, "_elected", next_one)


def trust_in_sync_set(patch: Patch) -> None:
    """Elect from the in-sync set of the backup, in a later epoch."""

    def trusted(record: PartitionRecord, _: Sequence[int]) -> PartitionRecord:
        epoch = record.leader_epoch + elections.EPOCHS_SKIPPED
        return replace(record, leader=NO_NODE, leader_epoch=epoch)

    patch.setattr(restore_plan, "_waiting", trusted)


def repeat_producer_ids(patch: Patch) -> None:
    """Go on with the counter of the backup."""
    raised = restore_plan._raised

    def repeated(backup: Backup, snapshot: Snapshot, now_ms: int) -> list[Put]:
        epoch, _ = raised(backup, snapshot, now_ms)
        return [epoch, entries.producer_ids_put(entries.read_producer_ids(backup.entries))]

    patch.setattr(restore_plan, "_raised", repeated)


def trust_assignment(patch: Patch) -> None:
    """Compare the logs of the assigned replicas only."""
    waiting = restore_plan._waiting
    patch.setattr(restore_plan, "_waiting", lambda record, _: waiting(record, record.replicas))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plant", "scenario"),
    [
        (forget_epochs, older_backup),
        (trust_in_sync_set, partial(older_backup, early=(1,), leader=1)),
        (repeat_producer_ids, older_backup),
        (trust_assignment, moved_partition),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[Patch], None], scenario: Callable[[], None], monkeypatch: Patch
) -> None:
    """A scenario that was never seen to fail proves nothing."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, trio.TooSlowError, ExceptionGroup)):
        scenario()
