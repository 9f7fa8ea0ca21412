"""Moves of a replica between the log directories of its broker, under load and with crashes."""

import random
from pathlib import PurePath

import pytest
import trio

from minibroker.broker.log import log_move
from minibroker.client import Admin
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ReplicaLogDirAltered,
    WantedLogDirectory,
)
from minibroker.testing.cluster import DATA_DIRECTORY, SimulatedBroker
from minibroker.testing.disk import Tail
from tests.sim.test_cluster_log_directories import DIRECTORIES, SECOND
from tests.sim.trial import NAME, Trial, open_trial, play

BOTH = DATA_DIRECTORY, SECOND
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
SLICE_S = 0.3  # between two crashes, at most


def place(trial: Trial, broker: SimulatedBroker) -> PurePath | None:
    """The log directory that has the partition's log; None without one."""
    partition = trial.partition(broker)
    return None if partition is None else partition.log.directory.parent


async def move(trial: Trial, broker: SimulatedBroker, path: PurePath) -> ErrorCode:
    """Ask for a move; return the error."""
    request = AlterReplicaLogDirsRequest((WantedLogDirectory(*NAME, str(path)),))
    answer = await trial.ask(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
    return ErrorCode(answer.partitions[0].error)


@pytest.mark.parametrize("flush", ["always", "interval"])
def test_replicas_are_moved_under_load(flush: str) -> None:
    """The leader's and a follower's, there and back: no record is lost or doubled, nobody leaves
    the in-sync set, and the logs are equal."""

    async def scenario() -> None:
        async with open_trial(log_dirs=DIRECTORIES, flush=flush) as trial:
            await trial.send(20)
            before = await trial.agreed()
            for _ in BOTH:
                for broker in (trial.leader, trial.followers[0]):
                    (other,) = {*BOTH} - {place(trial, broker)}
                    assert await move(trial, broker, other) == ErrorCode.NONE
                    while place(trial, broker) != other:
                        await trial.send(2)
            await trial.send(5)
            assert await trial.agreed() == before
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_brokers_crash_while_replicas_are_moved(seed: int) -> None:
    """At any moment, the process or the machine: no acknowledged record is lost, each broker
    starts, and has each log once."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with open_trial(log_dirs=DIRECTORIES, flush="always") as trial:
            await trial.send(20)
            for _ in range(8):
                broker = rng.choice(trial.cluster.brokers)
                await move(trial, broker, rng.choice(BOTH))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trial.send, 5)
                    await trio.sleep(rng.uniform(0, 0.7))
                    if rng.random() < 0.5:
                        await broker.kill()
                    else:
                        await trial.power_off(broker, rng.choice([*Tail]))
                    await trio.sleep(rng.uniform(0, SLICE_S))
                    await broker.start()
                await trial.until(lambda agreed: len(agreed.isr) == 3)
            await trial.settle()
            assert await trial.consume() == [*trial.acked.values()]

    play(scenario)


def test_an_application_moves_replicas_and_sees_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As fast as the brokers' property allows, which changes while they run."""
    monkeypatch.setattr(log_move, "SLICE_BYTES", 500)
    monkeypatch.setattr(log_move, "LAST_BYTES", 500)

    async def scenario() -> None:
        async with (
            open_trial(log_dirs=DIRECTORIES) as trial,
            Admin(trial.cluster.address, seams=trial.world.seams("mover")) as admin,
        ):
            await trial.send(50)
            broker = trial.leader
            here, node = place(trial, broker), broker.node_id
            (other,) = {*BOTH} - {here}
            await admin.alter_broker_configs({node: {RATE: "0"}})
            moved = await admin.alter_replica_log_dirs(
                {(*NAME, node): str(other), (*NAME, 9): str(other), ("none", 0, node): "/second"}
            )
            assert moved.accepted == ((*NAME, node),)
            assert {name: code for name, (code, _) in moved.failed.items()} == {
                (*NAME, 9): ErrorCode.NETWORK_EXCEPTION,
                ("none", 0, node): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
            await trio.sleep(3)
            told = (await admin.describe_log_dirs([NAME])).answers[node]
            logs = {told.directory: told.logs} | {one.directory: one.logs for one in told.others}
            [present], [future] = logs[str(here)], logs[str(other)]
            assert (present.is_future, future.is_future) == (False, True)
            assert 0 < future.lag <= 50
            await admin.alter_broker_configs({node: {RATE: None}})
            await trio.sleep(3)
            assert place(trial, broker) == other
            await trial.settle()

    play(scenario)


def test_what_is_asked_in_vain_is_answered() -> None:
    """Each partition once, by the last that is asked of it."""

    async def scenario() -> None:
        async with open_trial(log_dirs=DIRECTORIES) as trial:
            wanted = [
                WantedLogDirectory("t", 0, "/nowhere"),
                WantedLogDirectory("t", -1, "/second"),
                WantedLogDirectory("", 0, "/second"),
                WantedLogDirectory("t", 0, "second"),
            ]
            request = AlterReplicaLogDirsRequest(tuple(wanted))
            told = await trial.ask(trial.leader, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert told == AlterReplicaLogDirsResponse(
                (
                    ReplicaLogDirAltered(
                        "t",
                        0,
                        ErrorCode.LOG_DIR_NOT_FOUND,
                        "second is no log directory of this broker: name one of its log.dirs",
                    ),
                    ReplicaLogDirAltered("t", -1, unknown, "there is no t--1"),
                    ReplicaLogDirAltered("", 0, unknown, "there is no -0"),
                )
            )

    play(scenario)
