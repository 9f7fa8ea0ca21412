"""The controller dies at every step of a scenario, and another one brings it to its end (Q2).

A step is a transaction, once before and once after it is made, or an order taken by a broker. What
was asked for is asked again until it is answered, as clients do; then the dead broker returns.
Wherever it died: the topics are those that were asked for, everybody knows them, nothing is left of
what was deleted, and nobody is in sync who must not be.
"""

import math

import pytest
import trio

from minibroker.broker.controller.entries import PARTITIONS
from minibroker.broker.controller.requests import is_refused
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
)
from tests.unit.controller.fleet import Fleet, open_fleet

OUTCOMES = {
    ApiKey.CREATE_TOPICS: (0, ErrorCode.TOPIC_ALREADY_EXISTS),
    ApiKey.CREATE_PARTITIONS: (0, ErrorCode.INVALID_PARTITIONS),
    ApiKey.DELETE_TOPICS: (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}

# `make test` takes every third step: of a transaction the one before and the one after, by turns.
STRIDE = 3
STORY_S = 20.0  # of virtual time: more than two sessions to wait out


async def insist(fleet: Fleet, api_key: ApiKey, request: object) -> None:
    """Ask until it is done."""
    while True:
        broker = fleet.running[-1]
        try:
            answer = await broker.node.call(api_key, request)
        except OSError:
            await trio.sleep(0.05)
            continue
        if answer.topics[0].error in OUTCOMES[api_key]:
            return
        assert is_refused(answer, ErrorCode.INVALID_REPLICATION_FACTOR), answer
        await trio.sleep(0.05)


async def scenario(fleet: Fleet) -> None:
    """Topics come and go while a broker is lost and returns, and stops."""
    await insist(fleet, ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("t", 2, 2),)))
    lost = fleet[2]
    if lost.is_running:
        await lost.kill()
    await insist(fleet, ApiKey.DELETE_TOPICS, DeleteTopicsRequest(("t",)))
    await insist(fleet, ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("t", 1, 2),)))
    await lost.start(tail_safe=False)
    await insist(fleet, ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("u", 2, 2),)))
    grow = CreatePartitionsRequest((NewPartitions("u", 4),))
    await insist(fleet, ApiKey.CREATE_PARTITIONS, grow)


async def run_scenario(dies_at: int, writes_max: float = math.inf) -> int:
    """How many steps it took; checked at the end."""
    async with open_fleet(4) as fleet:
        for broker in fleet.running:
            broker.store.writes_max = writes_max
        fleet.writes_max = writes_max
        began_at = fleet.steps
        fleet.dies_at = began_at + dies_at
        with trio.fail_after(STORY_S):
            await scenario(fleet)
        count = fleet.steps - began_at
        fleet.dies_at = -1
        for broker in fleet.brokers.values():
            if not broker.is_running:
                await broker.start()

        async def is_forgotten() -> bool:
            return not (await fleet.state()).tombstones

        await fleet.until(is_forgotten, "no tombstone")
        await fleet.settled()
        state = await fleet.state()
        assert {name: len(topic.partitions) for name, topic in state.topics.items()} == {
            "t": 1,
            "u": 4,
        }
        for broker in fleet.running:
            assert broker.directory == {
                name: state.topics[name.topic].id
                for name, record in state.partitions()
                if broker.node_id in record.replicas
            }
        for _, record in state.partitions():
            assert record.leader in record.isr
        assert len((await fleet.store.get(PARTITIONS)).entries) == len([*state.partitions()])
        return count


@pytest.mark.parametrize(
    ("writes_max", "stride"),
    [
        (math.inf, STRIDE),
        pytest.param(math.inf, 1, marks=pytest.mark.soak),
        pytest.param(2, 1, marks=pytest.mark.soak),
    ],
)
async def test_the_controller_dies_at_every_step(autojump_clock, writes_max, stride):
    """Q2: whichever step was the last one of the old controller, the new one goes on from there;
    also where the store takes so little at once that a decision has several steps."""
    step = 1
    while await run_scenario(step, writes_max) >= step:
        step += stride
    assert step > 20


@pytest.mark.parametrize("seed", range(3))
async def test_the_scenario_ends_without_a_death(autojump_clock, seed):
    """The scenario by itself comes to the same end."""
    assert await run_scenario(-1) > 20
