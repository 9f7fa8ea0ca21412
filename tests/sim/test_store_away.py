"""No broker reaches the metadata store: what is answered and in what time, and what is logged.

Served is what epochs allow, nothing new is decided, who asks for more hears why not, each broker
says once that it begins and once that it is over, and it ends by itself.
"""

import logging

import pytest
import trio

from minibroker.broker.controller.producer_ids import BLOCK_SIZE
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ACKS_LEADER, ApiKey, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import PORT
from tests.sim.trial import LAG_S, SESSION_S, TOPIC, Trial, open_trial, play

WAIT_MS = 1_500
CUT = "the metadata store cannot be used: the metadata store does not answer"
BEGINS = "The metadata store cannot be used: the metadata store does not answer"
DOUBTS = "Its session was not renewed for"
ENDS = "The metadata store can be used again, after"


def cut_all(trial: Trial) -> None:
    for broker in trial.cluster.brokers:
        broker.link.cut()


def heal_all(trial: Trial) -> None:
    for broker in trial.cluster.brokers:
        broker.link.heal()


def logged(caplog: pytest.LogCaptureFixture, node_id: int) -> list[str]:
    """The first words of what a broker has said of the store."""
    head = f"[Broker id={node_id}] "
    known = (BEGINS, DOUBTS, ENDS)
    said = [text.removeprefix(head) for text in caplog.messages if text.startswith(head)]
    return [words for text in said for words in known if text.startswith(words)]


def test_it_is_said_once_and_ends_by_itself(caplog: pytest.LogCaptureFixture):
    """Each broker logs when it begins, when its own session is in doubt, and when it is over;
    nothing else warns, however long it lasts."""
    caplog.set_level(logging.INFO, "minibroker")

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            caplog.clear()
            cut_all(trial)
            await trio.sleep(60)
            await trial.send(5, wait_s=2)
            heal_all(trial)
            await trial.send(5)
            await trial.settle()
            await trio.sleep(3)
            for node_id in (1, 2, 3):
                assert logged(caplog, node_id) == [BEGINS, DOUBTS, ENDS]
            warnings = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
            # Their leases have ended meanwhile, which they hear when it is over.
            ended = ("registering anew", "not the controller any more")
            assert len([text for text in warnings if not text.endswith(ended)]) == 2 * 3

    play(scenario)


def test_what_needs_the_store_is_refused_in_time():
    """Topics are neither made, deleted nor changed, and who asks hears why in the time that it
    has given; producers get ids as long as there are some, then they hear why, too; records are
    read and, with acks=all, taken."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            controller = trial.cluster.broker(await trial.controller())
            cut_all(trial)
            await trio.sleep(2 * SESSION_S)
            for api_key, request, within_s in (
                (ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("new", 1, 3),), WAIT_MS), 1.6),
                (ApiKey.DELETE_TOPICS, DeleteTopicsRequest((TOPIC,), WAIT_MS), 1.6),
                (ApiKey.ALTER_CONFIGS, RETENTION, 8.1),
            ):
                with trio.fail_after(within_s):
                    answer = await trial.ask(controller, api_key, request)
                assert answer.topics[0].error == ErrorCode.REQUEST_TIMED_OUT
                assert answer.topics[0].error_message.endswith(f"it may still happen ({CUT})")
            refusal = await exhaust_producer_ids(trial)
            assert refusal.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert refusal.error_message == CUT
            await trial.send(1, wait_s=2)
            fetch = FetchRequest(partitions=(PartitionFetch(TOPIC, 0, 0),))
            answer = await trial.ask(trial.leader, ApiKey.FETCH, fetch)
            assert (answer.partitions[0].error, answer.partitions[0].high_watermark) == (0, 6)
            assert await produce_with_acks_1(trial) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            heal_all(trial)
            await trial.send(5)
            await trial.settle()

    play(scenario)


RETENTION = AlterConfigsRequest(
    (TopicConfigChanges(TOPIC, (ConfigChange("retention.ms", "1000000"),)),)
)


async def exhaust_producer_ids(trial: Trial) -> InitProducerIdResponse:
    """The first answer without an id."""
    network = trial.world.network.host("stranger")
    place = Endpoint(trial.leader.name, PORT)
    async with open_channel(network, place, ChannelOptions()) as channel:
        for _ in range(BLOCK_SIZE + 1):
            given = await channel.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest())
            if given.error:
                break
    return given


async def produce_with_acks_1(trial: Trial) -> int:
    """The error."""
    records = encode_batch([(1, None, b"weak", ())])
    request = ProduceRequest(ACKS_LEADER, 1000, (PartitionProduce(TOPIC, 0, records),))
    return (await trial.ask(trial.leader, ApiKey.PRODUCE, request)).partitions[0].error


def test_in_sync_sets_wait_for_the_store(caplog: pytest.LogCaptureFixture):
    """A follower that dies is not taken out: acks=all waits for it, its leader says once why, and
    once that it is over, which it is by itself."""
    caplog.set_level(logging.INFO, "minibroker")

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            cut_all(trial)
            await trial.followers[0].kill()
            leader = trial.leader.node_id
            with pytest.raises(trio.TooSlowError):
                await trial.send(1, wait_s=15 * LAG_S)
            said = [text for text in caplog.messages if "In-sync sets can" in text]
            text = "In-sync sets cannot be changed: no controller answered in time"
            assert said == [f"[Broker id={leader}] {text} ({CUT}); asking again until they can"]
            assert sorted((await trial.agreed()).isr) == [1, 2, 3]
            heal_all(trial)
            await trial.send(5)
            await trial.cluster.start()
            await trial.settle()
            said = [text for text in caplog.messages if "In-sync sets can be changed again" in text]
            assert said == [f"[Broker id={leader}] In-sync sets can be changed again"]

    play(scenario)


def test_a_stop_does_not_wait_for_the_store():
    """Brokers that are told to stop do so within seconds, and come back as they were."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            cut_all(trial)
            await trio.sleep(2 * SESSION_S)
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    for broker in trial.cluster.brokers:
                        nursery.start_soon(broker.stop)
            heal_all(trial)
            await trial.cluster.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)
