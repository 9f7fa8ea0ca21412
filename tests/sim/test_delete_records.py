"""Records that were deleted stay deleted, whatever fails (DELETE_RECORDS, FOL-17)."""

from typing import Any

import pytest
import trio

from minibroker.client import Admin
from minibroker.client.errors import ClientTimeout
from minibroker.testing.disk import Tail
from tests.sim.trial import NAME, Trial, open_trial, play

SMALL = {"log_segment_bytes": "200", "log_retention_check_interval_ms": "500"}


async def delete(trial: Trial, offset: int, **options: Any) -> None:
    """Delete what is below, and have it noted."""
    seams = trial.world.seams("admin")
    async with Admin(trial.cluster.address, seams=seams, **options) as admin:
        trial.watcher.deletions.note_asked(NAME, offset)
        low_watermarks = await admin.delete_records({NAME: offset})
    trial.watcher.deletions.note_told(NAME, low_watermarks[NAME])
    trial.acked = {at: value for at, value in trial.acked.items() if at >= offset}


def starts(trial: Trial) -> list[int]:
    """Where the log of each broker starts."""
    partitions = [trial.partition(broker) for broker in trial.cluster.brokers]
    return [partition.log.log_start for partition in partitions if partition is not None]


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_failover_brings_nothing_back(is_power_cut: bool) -> None:
    """The new leader begins where the old one did, and so does the old one when it returns."""

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(10)
            await delete(trial, 6)
            assert starts(trial) == [6, 6, 6]
            leader = trial.leader
            if is_power_cut:
                await trial.power_off(leader, Tail.LOST)
            else:
                await leader.kill()
            await trial.send(5)
            assert len(await trial.consume()) == 9
            await leader.start()
            await trial.settle()
            assert starts(trial) == [6, 6, 6]

    play(scenario)


def test_a_broker_that_was_away_begins_at_the_log_start() -> None:
    """Its log ends below what was deleted, in the middle of nothing; it copies from there on, and
    is in sync again (FOL-17)."""

    async def scenario() -> None:
        async with open_trial(**SMALL) as trial:
            await trial.send(4)
            away = trial.followers[0]
            await away.kill()
            await trial.until(lambda agreed: away.node_id not in agreed.isr)
            await trial.send(20)
            await delete(trial, 15)
            await trial.send(5)
            await away.start()
            await trial.settle()
            assert starts(trial) == [15, 15, 15]
            await trial.leader.kill()
            await trial.send(1)
            assert len(await trial.consume()) == 15

    play(scenario)


def test_all_machines_lose_power() -> None:
    """The log starts are durable when the request is answered."""

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(10)
            await delete(trial, 10)
            for broker in trial.cluster.brokers:
                await trial.power_off(broker, Tail.LOST)
            await trial.cluster.start()
            await trial.send(3)
            await trial.settle()
            assert starts(trial) == [10, 10, 10]
            assert len(await trial.consume()) == 3

    play(scenario)


def test_a_follower_that_hangs_is_waited_for() -> None:
    """It is in sync, and may lead next: the request is done when it has gone on, or left."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(10)
            slow = trial.followers[0]
            slow.pause()
            with pytest.raises(ClientTimeout, match="records are not deleted on all replicas"):
                await delete(trial, 6, default_api_timeout_ms=500, request_timeout_ms=400)
            slow.resume()
            await delete(trial, 6)
            assert starts(trial) == [6, 6, 6]
            with trio.fail_after(30):
                await trial.settle()

    play(scenario)
