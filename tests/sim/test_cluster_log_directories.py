"""Brokers of a cluster with two log directories, one of which fails or is missing.

The partition's log is in the second directory of each broker, that of another topic is in the
first. What lies in the first directory must not notice anything.
"""

import errno
from contextlib import AbstractAsyncContextManager
from pathlib import PurePath

import pytest
import trio

from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import DATA_DIRECTORY, SimulatedBroker
from tests.sim.trial import NAME, Trial, open_trial, play

SECOND = PurePath("/second")
DIRECTORIES = f"{DATA_DIRECTORY},{SECOND}"
BESIDE = TopicPartition("before", 0)


def open_harmed(*, replicas: int = 3, **settings: str) -> AbstractAsyncContextManager[Trial]:
    """A trial whose brokers have two directories. The checkers do not look on: they would read from
    the disk that fails."""
    return open_trial(
        is_watched=False, replicas=replicas, before=1, log_dirs=DIRECTORIES, **settings
    )


def victim_of(trial: Trial, who: str) -> SimulatedBroker:
    """The leader, or one of those who copy from it."""
    return trial.leader if who == "leader" else trial.followers[0]


def break_disk(broker: SimulatedBroker, *operations: str) -> None:
    """Let every use of the second directory fail from now on."""
    for operation in operations or ("append", "sync", "read", "open", "write_atomic", "lock"):
        broker.files.fail(operation, name=f"{SECOND}", times=1_000_000, number=errno.EIO)


def unmount(broker: SimulatedBroker) -> None:
    """Put an empty directory in the place of the second one."""
    broker.files.rename(SECOND, PurePath("/elsewhere"))
    broker.files.make_dir(SECOND)


def mount(broker: SimulatedBroker) -> None:
    """Put the second directory back."""
    broker.files.remove_tree(SECOND)
    broker.files.rename(PurePath("/elsewhere"), SECOND)


def has_log(broker: SimulatedBroker, name: TopicPartition) -> bool:
    """Whether a broker has a replica with a log."""
    return broker.replicas is not None and broker.replicas.get(name) is not None


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize(
    ("operation", "flush"), [("append", "never"), ("sync", "always"), ("sync", "interval")]
)
def test_a_failed_directory_takes_off_its_partitions_alone(
    who: str, operation: str, flush: str
) -> None:
    """Another replica leads, the broker goes on with its other logs, and after a repair and a
    restart all are in sync and equal."""

    async def scenario() -> None:
        async with open_harmed(flush=flush) as trial:
            await trial.send(10)
            victim = victim_of(trial, who)
            beside = victim.replicas.get(BESIDE) if victim.replicas else None
            assert beside is not None
            assert beside.log.directory.parent == DATA_DIRECTORY
            break_disk(victim, operation)
            await trial.send(10)
            agreed = await trial.until(lambda agreed: victim.node_id not in agreed.isr)
            assert agreed.leader != victim.node_id
            assert (victim.is_running, victim.life) == (True, 1)
            assert not has_log(victim, NAME)
            assert victim.replicas is not None
            assert "/second is offline" in victim.replicas.why_uncreated(NAME)
            assert victim.replicas.get(BESIDE) is beside
            await trial.send(5)
            await victim.kill()  # the disk is mended
            await victim.start()
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)


def test_no_other_replica_leads_without_the_records_of_a_failed_directory() -> None:
    """The only in-sync replica's directory fails: the partition waits for it."""

    async def scenario() -> None:
        async with open_harmed(min_insync_replicas="1") as trial:
            await trial.send(5)
            leader, others = trial.leader, trial.followers
            for broker in others:
                await broker.kill()
            await trial.send(5)
            await trial.until(lambda agreed: agreed.isr == (leader.node_id,))
            break_disk(leader)
            with pytest.raises(trio.TooSlowError):
                await trial.send(1, wait_s=5)
            for broker in others:
                await broker.start()
            await trial.until(lambda agreed: agreed.leader == -1)
            await trio.sleep(10)
            agreed = await trial.agreed()
            assert (agreed.leader, agreed.isr) == (-1, (leader.node_id,))
            await leader.kill()
            await leader.start()
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("is_unreadable", [False, True], ids=["unmounted", "unreadable"])
def test_a_broker_without_its_directory_does_not_lead_with_an_empty_log(
    is_unreadable: bool,
) -> None:
    """All brokers stop, and the leader comes back first, with an empty mount point or a broken
    disk: the others lead with all records. It has its replica again with its disk."""

    async def scenario() -> None:
        async with open_harmed() as trial:
            await trial.send(10)
            await trio.sleep(3)  # what is in the directory is known
            victim, others = trial.leader, trial.followers
            for broker in (victim, *others):
                await broker.kill()
            if is_unreadable:
                break_disk(victim)
            else:
                unmount(victim)
            await victim.start()
            await trio.sleep(5)
            assert not has_log(victim, NAME)
            assert has_log(victim, BESIDE)
            assert (await trial.agreed()).leader == -1
            for broker in others:
                await broker.start()
            await trial.until(lambda agreed: agreed.leader not in (-1, victim.node_id))
            await trial.send(5)
            await victim.kill()
            if not is_unreadable:
                mount(victim)
            await victim.start()
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)


def test_the_newest_log_of_a_missing_directory_is_not_made_anew() -> None:
    """The broker that alone has the partition forgot that it was there: it learns it from its
    roles, and does not lead an empty log. A topic that is new is made, though."""

    async def scenario() -> None:
        async with open_harmed(replicas=1, min_insync_replicas="1") as trial:
            await trial.send(10)
            victim = trial.leader
            await victim.kill()
            (logs,) = [
                name for name in victim.files.list(DATA_DIRECTORY) if name.startswith("logs-of-")
            ]
            victim.files.write_atomic(DATA_DIRECTORY / logs, b"0\n0\n")
            unmount(victim)
            await victim.start()
            await trio.sleep(5)
            agreed = await trial.agreed()
            assert (agreed.leader, agreed.isr) == (-1, (victim.node_id,))
            assert not has_log(victim, NAME)
            await victim.kill()
            mount(victim)
            await victim.start()
            await trial.settle()

    play(scenario)


def test_an_error_in_the_first_directory_ends_the_broker() -> None:
    """As with a single one: the marks of the broker are there."""

    async def scenario() -> None:
        async with open_harmed() as trial:
            await trial.send(5)
            victim = trial.leader
            victim.may_fail = True
            victim.files.fail("write_atomic", name=f"{DATA_DIRECTORY}/", times=1_000_000)
            await victim.wait_ended()
            assert victim.failure is not None
            victim.files.kill()  # the disk is mended
            await victim.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)
