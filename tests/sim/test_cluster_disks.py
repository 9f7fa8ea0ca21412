"""Disks and data directories that fail in a cluster of three: rows of docs/faults.md.

Each scenario damages the disk or the directory of one broker. It ends with all replicas in sync and
equal, and with every acknowledged record at its offset. Where a scenario corrupts bytes on purpose,
the checkers do not run and the scenario compares the logs itself.
"""

import copy

import pytest
import trio

from minibroker.broker.log.directory import DataDirectoryError
from minibroker.client.errors import CorruptRecords
from minibroker.testing.cluster import DATA_DIRECTORY, SimulatedBroker
from minibroker.testing.disk import SimulatedFiles
from tests.sim.trial import LAG_S, LOG, SESSION_S, Trial, open_trial, play, rot

LOOK_S = 3.0  # a broker looks at its disk every two seconds


def victim_of(trial: Trial, who: str) -> SimulatedBroker:
    """The leader, or one of those who copy from it."""
    return trial.leader if who == "leader" else trial.followers[0]


# -- rot


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("offset", [4, 9], ids=["middle", "tail"])
def test_rot_that_a_restart_finds_is_copied_anew(
    who: str, offset: int, caplog: pytest.LogCaptureFixture
):
    """A batch on one disk is not what it was, in the middle or at the end, below the high
    watermark: recovery finds it, the replica leaves the in-sync set, is cut and copies again."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(10)
            await trio.sleep(6)  # high watermarks are on the disk
            victim = victim_of(trial, who)
            await victim.kill()
            rot(victim, offset)
            started = await victim.start()
            assert started is not None
            assert started.damaged == ()  # nobody has to do anything
            await trial.send(5)
            await trial.settle()
            assert victim.files.exists(LOG / f"{offset:020}.damaged-accepted")

    play(scenario)
    assert "is damaged" in caplog.text
    assert f"cut at offset {offset}, where records were lost" in caplog.text


@pytest.mark.parametrize("name", ["partition.metadata", f"{0:020}.log", "directory"])
def test_who_lost_a_file_of_a_log_does_not_lead_with_what_is_left(
    name: str, caplog: pytest.LogCaptureFixture
):
    """The leader comes back first, and a file of its log has no byte: it waits for a sound
    replica, which leads, and copies all again from it."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(10)
            await trio.sleep(6)  # high watermarks are on the disk
            victim, others = trial.leader, trial.followers
            for broker in (victim, *others):
                await broker.kill()
            if name == "directory":
                victim.files.remove_tree(LOG)
            else:
                victim.files.write_atomic(LOG / name, b"")
            await victim.start()
            await trio.sleep(5)
            assert (await trial.agreed()).leader == -1
            for broker in others:
                await broker.start()
            await trial.until(lambda agreed: agreed.leader not in (-1, victim.node_id))
            await trial.send(5)
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)
    assert "is damaged" in caplog.text


def test_rot_on_a_running_follower_harms_nobody():
    """A follower whose log rots while it runs serves nothing of it."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(10)
            rot(trial.followers[0], 4)
            await trial.send(5)
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)


def test_rot_that_only_consumers_meet_is_mended_by_hand():
    """A consumer is told the position, and reads on from the next leader; the damaged replica
    whose directory somebody takes away is copied anew, though it was in sync."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(10)
            victim = trial.leader
            rot(victim, 4)
            with pytest.raises(CorruptRecords, match="4"):
                await trial.consume()
            await victim.stop()
            assert await trial.consume() == [*trial.acked.values()]
            victim.files.remove_tree(LOG)
            await victim.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("offset", [4, 9], ids=["middle", "tail"])
def test_rot_under_a_running_leader_is_found_by_who_copies_it(
    offset: int, caplog: pytest.LogCaptureFixture
):
    """A follower refuses a bad batch and asks again; the leader looks at its bytes, gives the
    partition up to a sound replica, and copies again what it lacks (FOL-14, REC-03)."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(10)
            leader, empty = trial.leader, trial.followers[0]
            await empty.kill()
            empty.files = SimulatedFiles(trial.world.rng("new disk"))
            rot(leader, offset)
            await empty.start()
            await trial.until(lambda agreed: agreed.leader not in (-1, leader.node_id))
            await trial.send(5)
            await trial.settle()
            assert leader.life == 1
            assert leader.files.exists(LOG / f"{offset:020}.damaged-accepted")
            await leader.kill()
            await leader.start()
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)
    assert f"has bad bytes at offset {offset}: the checksum of the batch" in caplog.text
    assert f"cut at offset {offset}, where records were lost" in caplog.text


def test_rot_under_a_leader_that_is_alone_is_told(caplog: pytest.LogCaptureFixture):
    """It may have the only copy of all the rest: it goes on, and says what nobody can copy."""

    async def scenario() -> None:
        async with open_trial(is_watched=False, min_insync_replicas="1") as trial:
            await trial.send(10)
            leader, others = trial.leader, trial.followers
            for other in others:
                await other.kill()
            await trial.until(lambda agreed: agreed.isr == (leader.node_id,))
            await trial.send(5)
            rot(leader, 12)
            for other in others:
                await other.start()
            await trio.sleep(5)
            agreed = await trial.agreed()
            assert (agreed.leader, agreed.isr) == (leader.node_id, (leader.node_id,))
            with pytest.raises(CorruptRecords, match="12"):
                await trial.consume()

    play(scenario)
    assert "has bad bytes at offset 12" in caplog.text


# -- full disks, failed syncs


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_full_disk_passes(who: str, caplog: pytest.LogCaptureFixture):
    """A leader without room refuses appends until there is some; a follower leaves the in-sync set
    and returns. Neither changes who leads."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            victim = victim_of(trial, who)
            victim.files.space_bytes = victim.files.used_bytes + 10
            if who == "leader":
                with pytest.raises(trio.TooSlowError):
                    await trial.send(1, wait_s=2 * LAG_S)
            else:
                await trial.send(5, wait_s=2 * LAG_S)
                await trial.until(lambda agreed: victim.node_id not in agreed.isr)
            victim.files.space_bytes = None
            await trial.send(5)
            await trial.settle()
            assert (await trial.agreed()).leader_epoch == 0

    play(scenario)
    assert "the disk is full" in caplog.text


def test_a_disk_that_is_nearly_full_refuses_records_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
):
    """A leader at its limit refuses records, and so do followers below half of it, until there is
    room: then what waits is written, without a restart, and once."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            leader, follower = trial.leader, trial.followers[0]
            room = leader.machine._replace(disk_free_bytes=20, disk_total_bytes=200)
            leader.machine = follower.machine = room._replace(disk_free_bytes=9)
            await trio.sleep(LOOK_S)
            with pytest.raises(trio.TooSlowError):
                await trial.send(1, wait_s=2 * LAG_S)
            leader.machine = room
            await trio.sleep(LOOK_S)
            await trial.send(1)  # the follower copies below the limit
            follower.machine = room._replace(disk_free_bytes=4)
            await trio.sleep(LOOK_S)
            await trial.send(1, wait_s=2 * LAG_S)
            await trial.until(lambda agreed: follower.node_id not in agreed.isr)
            follower.machine = room
            await trial.send(5)
            await trial.settle()
            assert (await trial.agreed()).leader_epoch == 0

    play(scenario)
    assert "records are refused: 9 bytes are free on the disk" in caplog.text
    assert "there is room again: records are taken" in caplog.text


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("operation", ["sync", "append"])
def test_a_failed_fsync_ends_its_broker_alone(operation: str, who: str):
    """An I/O error: the broker ends and says why; others lead, and at its return its tail counts as
    lost: it leaves the in-sync set, and joins when it has caught up."""

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(5)
            victim = victim_of(trial, who)
            victim.may_fail = True
            victim.files.fail(operation, name=".log")
            await trial.send(5, wait_s=LAG_S + 3 * SESSION_S)
            await victim.wait_ended()
            assert isinstance(victim.failure, ExceptionGroup)
            assert victim.failure.subgroup(OSError) is not None
            assert victim.files.exists(DATA_DIRECTORY / "tail-unsafe")
            await victim.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


def test_a_read_error_ends_its_broker_alone():
    """A leader that cannot read what a follower asks for ends; the others lead, and it returns."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            leader = trial.leader
            leader.may_fail = True
            leader.files.fail("read", name=".log")
            await trial.send(5, wait_s=LAG_S + 3 * SESSION_S)
            await leader.wait_ended()
            assert leader.failure is not None
            await leader.start()
            await trial.settle()

    play(scenario)


def test_a_disk_that_is_full_at_the_start_is_told():
    """The broker does not start and says what to do; it starts when there is room."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            victim = trial.followers[0]
            await victim.kill()
            victim.files.space_bytes = victim.files.used_bytes
            victim.may_fail = True
            await victim.start()
            assert isinstance(victim.failure, DataDirectoryError)
            assert "the disk is full: make room" in str(victim.failure)
            await trial.send(5)
            victim.files.space_bytes = None
            await victim.start()
            await trial.settle()

    play(scenario)


# -- data directories


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_an_empty_directory_is_filled(who: str):
    """A broker that returns with nothing is not in sync, whatever it was, and copies all (K2)."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(10)
            victim = victim_of(trial, who)
            await victim.kill()
            victim.files = SimulatedFiles(trial.world.rng("new disk"))
            await victim.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_an_older_directory_is_found_out(who: str):
    """A copy from yesterday, stopped cleanly and put back today, is not in sync (K2)."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            victim = victim_of(trial, who)
            await victim.stop()
            yesterday = copy.deepcopy(victim.files)
            await victim.start()
            await trial.settle()
            await trial.send(5)
            await victim.kill()
            victim.files = yesterday
            await victim.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


def test_all_directories_empty_are_not_taken_for_a_new_topic(caplog: pytest.LogCaptureFixture):
    """Everything is gone: the partition says that it may have lost records, and goes on."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(5)
            await trial.cluster.kill()
            for broker in trial.cluster.brokers:
                broker.files = SimulatedFiles(trial.world.rng(f"new {broker.name}"))
            await trial.cluster.start()
            await trial.until(lambda agreed: agreed.leader >= 0)
            trial.acked.clear()
            await trial.send(5)
            await trial.settle()

    play(scenario)
    assert "may have lost the end of its log" in caplog.text


@pytest.mark.parametrize("whose", ["cluster", "node"])
def test_a_foreign_directory_is_refused(whose: str):
    """One of another cluster, or of another broker of this one: that broker does not start and
    changes nothing in it; the others go on."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            victim, other = trial.followers
            await victim.stop()
            own = victim.files
            if whose == "node":
                await other.stop()
                victim.files = copy.deepcopy(other.files)
                await other.start()
            else:
                victim.files = copy.deepcopy(own)
                meta = DATA_DIRECTORY / "meta.properties"
                text = own.read_bytes(meta)
                (line,) = [line for line in text.splitlines() if line.startswith(b"cluster.id")]
                victim.files.write_atomic(meta, text.replace(line, b"cluster.id=elsewhere"))
            before = victim.files.operation_count
            victim.may_fail = True
            await victim.start()
            assert isinstance(victim.failure, DataDirectoryError)
            assert "belongs to another broker or cluster" in str(victim.failure)
            assert victim.files.operation_count - before <= 2  # its lock
            await trial.send(5)
            victim.files = own
            await victim.start()
            await trial.settle()

    play(scenario)
