"""Faults inside of brokers meet real clients, which recover or say the right error."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import KafkaError, Producer

from minibroker.client.errors import ClientError
from minibroker.protocol.errors import BrokerError
from minibroker.testing import Fault, KafkaCluster, WaitTimeout
from minibroker.testing.kit.injected_faults import cut_links
from minibroker.testing.kit.node_orders import OrderRefused, give_order
from minibroker.testing.kit.waiting import Look, wait_for
from minibroker.testing.node.faults import LinkFaults
from minibroker.testing.node.settings import PORT, TOKEN
from tests.kit.clients import AIOKAFKA, CONFLUENT, OURS, VALUES, WITHIN_S, Client

Make = Callable[[KafkaCluster, int, str], Fault]


def cut_leader_off(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """Its clients hear nothing."""
    return cluster.cut_from_clients(leader)


def delay_leader(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """By more than a batch lingers."""
    return cluster.delay(leader, ms=100, jitter_ms=50)


def throttle_leader(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """To some answers a second."""
    return cluster.throttle(leader, bytes_per_s=2_000)


def drop_produced(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """What was stored is not acknowledged."""
    return cluster.drop_response("PRODUCE", topic=topic, times=3)


def fail_produce(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """As if another one led."""
    return cluster.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2, topic=topic, partition=0)


def hold_produce(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """For as long as the others are sent."""
    return cluster.hold("PRODUCE", topic=topic)


def slow_disk(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """Each append takes its time."""
    return cluster.disk(leader).slow(ms=30)


def fill_disk(cluster: KafkaCluster, leader: int, topic: str) -> Fault:
    """Each append is refused."""
    return cluster.disk(leader).full()


BY_REQUEST = (drop_produced, fail_produce, hold_produce)


def _met(make: Make, client: Client, lasts_s: float, *marks: pytest.MarkDecorator) -> object:
    name = f"{make.__name__}-{client.name}"
    return pytest.param(make, client, lasts_s, id=name, marks=marks)


@pytest.mark.parametrize(
    ("make", "client", "lasts_s"),
    [
        _met(cut_leader_off, OURS, 0.5),
        _met(cut_leader_off, CONFLUENT, 0.5, pytest.mark.soak),
        _met(cut_leader_off, AIOKAFKA, 0.5, pytest.mark.soak),
        _met(delay_leader, OURS, 0),
        _met(throttle_leader, CONFLUENT, 0),
        _met(drop_produced, OURS, 0),
        _met(drop_produced, CONFLUENT, 0),
        _met(drop_produced, AIOKAFKA, 0, pytest.mark.soak),
        _met(fail_produce, OURS, 0),
        _met(fail_produce, CONFLUENT, 0),
        _met(fail_produce, AIOKAFKA, 0, pytest.mark.soak),
        _met(hold_produce, OURS, 0.5),
        _met(hold_produce, CONFLUENT, 0.5, pytest.mark.soak),
        _met(hold_produce, AIOKAFKA, 0.5),
        _met(slow_disk, AIOKAFKA, 0),
        _met(fill_disk, OURS, 0.5),
        _met(fill_disk, CONFLUENT, 0.5, pytest.mark.soak),
    ],
)
def test_a_producer_goes_on(
    kafka_cluster: KafkaCluster, make: Make, client: Client, lasts_s: float
) -> None:
    """All that was acknowledged is there, once, in order. A fault that would never end by itself is
    undone from another thread, and until then the client waits."""
    topic = kafka_cluster.topic()
    made: list[Fault] = []
    began: list[float] = []

    def act() -> None:
        began.append(time.monotonic())
        made.append(make(kafka_cluster, kafka_cluster.leader(topic), topic))
        if lasts_s:
            undoing.start()

    def undo() -> None:
        time.sleep(lasts_s)
        made[0].undo()

    undoing = Thread(target=undo)
    client.produce(kafka_cluster, topic, act)
    took_s = time.monotonic() - began[0]
    if lasts_s:
        undoing.join()
    made[0].undo()
    asked = [each for each in kafka_cluster.requests() if each.partitions == ((topic, 0),)]
    assert took_s >= lasts_s
    assert any(each.has_met_fault for each in asked) == (make in BY_REQUEST)
    assert client.read(kafka_cluster, topic) == VALUES
    kafka_cluster.wait_for_isr(topic)
    for broker in kafka_cluster.node_ids:
        assert [record.value for record in kafka_cluster.log(topic, 0, broker)] == VALUES


@pytest.mark.parametrize("client", [OURS, CONFLUENT, AIOKAFKA], ids=repr)
def test_a_consumer_goes_on(kafka_cluster: KafkaCluster, client: Client) -> None:
    """Its answers are lost, its fetches refused, its connections reset; it reads all, in order."""
    topic = kafka_cluster.topic()
    client.produce(kafka_cluster, topic, kafka_cluster.reset_connections)
    kafka_cluster.drop_response("FETCH", times=2, topic=topic)
    kafka_cluster.fail("FETCH", "NOT_LEADER_OR_FOLLOWER", times=1, topic=topic)
    kafka_cluster.fail("FIND_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", times=1)
    kafka_cluster.drop_response("JOIN_GROUP", times=1)
    kafka_cluster.fail("SYNC_GROUP", "REBALANCE_IN_PROGRESS", times=1)
    assert client.read(kafka_cluster, topic) == VALUES
    fetches = [each for each in kafka_cluster.requests() if each.api == "FETCH"]
    met = [each.errors for each in fetches if each.partitions == ((topic, 0),) and each.errors]
    assert met == [("NOT_LEADER_OR_FOLLOWER",)]


def test_a_group_waits_for_a_join_that_is_held(kafka_cluster: KafkaCluster) -> None:
    """It has no members until the fault is undone."""
    topic = kafka_cluster.topic()
    with kafka_cluster.consumer(group_id=topic) as consumer:
        with kafka_cluster.hold("JOIN_GROUP"):
            consumer.subscribe(topic)
            consumer.poll(0.3)
            with pytest.raises(WaitTimeout, match="to be Stable"):
                kafka_cluster.wait_for_group(topic, timeout_s=0.3)
        consumer.poll(0.1)
        assert len(kafka_cluster.wait_for_group(topic).members) == 1


def test_a_commit_that_fails_is_said(kafka_broker: KafkaCluster) -> None:
    """Under the error that the test has chosen."""
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"one").result(WITHIN_S)
    with kafka_broker.consumer(group_id=topic, enable_auto_commit=False) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(WITHIN_S)
        error = "INVALID_COMMIT_OFFSET_SIZE"
        with kafka_broker.fail("OFFSET_COMMIT", error, topic=topic):
            with pytest.raises((ClientError, BrokerError), match=error):
                consumer.commit()
            assert kafka_broker.committed(topic) == {}
        consumer.commit()
    assert kafka_broker.wait_for_commit(topic, topic, 1) == 1


def test_an_error_that_this_broker_has_no_name_for(kafka_broker: KafkaCluster) -> None:
    """By its number: a client of Kafka's knows what it means."""
    topic = kafka_broker.topic()
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    with kafka_broker.fail("PRODUCE", 29, topic=topic):
        producer.produce(topic, b"no", on_delivery=lambda error, _: told.append(error))
        producer.flush(WITHIN_S)
    [error] = told
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("direction", ["both", "to", "from"])
def test_brokers_that_are_cut_from_each_other(kafka_cluster: KafkaCluster, direction: str) -> None:
    """Either another one leads, or the follower is in sync no more; both come back."""
    topic = kafka_cluster.topic()
    leader = kafka_cluster.leader(topic)
    follower = next(node_id for node_id in kafka_cluster.node_ids if node_id != leader)
    with kafka_cluster.producer() as producer:
        with kafka_cluster.cut(leader, follower, direction):  # type: ignore[arg-type]
            sent = producer.send(topic, b"in between")
            assert len(kafka_cluster.wait_for_isr(topic, count=2)) == 2
            sent.result(WITHIN_S)
        kafka_cluster.wait_for_isr(topic)
    for broker in kafka_cluster.node_ids:
        assert [each.value for each in kafka_cluster.log(topic, 0, broker)] == [b"in between"]


def test_a_broker_without_its_store_leads_no_more(kafka_cluster: KafkaCluster) -> None:
    """Its session ends, another one leads, and a client goes there."""
    topic = kafka_cluster.topic()
    leader = kafka_cluster.leader(topic)

    def another_leads() -> Look[bool]:
        leads = kafka_cluster.leader(topic)
        return Look(leads != leader or None, f"broker {leads} leads")

    with kafka_cluster.producer() as producer, kafka_cluster.cut_from_store(leader):
        wait_for("another leader", another_leads, WITHIN_S)
        producer.send(topic, b"elsewhere").result(WITHIN_S)
    kafka_cluster.wait_for_isr(topic)


def test_a_flipped_bit_is_told_and_can_be_undone(kafka_broker: KafkaCluster) -> None:
    """The consumer does not hand the record out."""
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"x" * 100).result(WITHIN_S)
    with kafka_broker.consumer() as consumer:
        consumer.subscribe(topic)
        damage = kafka_broker.disk(1).flip_bit(topic, 0, 0)
        with damage, pytest.raises(ClientError, match="checksum"):
            consumer.poll(WITHIN_S)
        consumer.seek_to_beginning()
        [record] = consumer.poll(WITHIN_S)
    assert record.value == b"x" * 100


def test_what_a_client_asked_is_told_in_order(kafka_broker: KafkaCluster) -> None:
    """With the errors of the answers."""
    topic = kafka_broker.topic()
    with kafka_broker.producer(client_id=topic) as producer:
        kafka_broker.fail("PRODUCE", "KAFKA_STORAGE_ERROR")
        producer.send(topic, b"one").result(WITHIN_S)
    asked = [each for each in kafka_broker.requests(topic) if each.api == "PRODUCE"]
    assert [each.errors for each in asked] == [("KAFKA_STORAGE_ERROR",), ()]
    assert {each.partitions for each in asked} == {((topic, 0),)}
    assert {each.client_id for each in asked} == {topic}
    assert asked[0].at_s <= asked[1].at_s <= kafka_broker.timeline()[-1].at_s + WITHIN_S


def test_a_broker_that_starts_again_is_still_broken(kafka_cluster: KafkaCluster) -> None:
    """Until the fault is undone; a paused one is told when it goes on."""
    topic = kafka_cluster.topic()
    with kafka_cluster.pause(1):
        fault = kafka_cluster.fail("INIT_PRODUCER_ID", "UNSUPPORTED_VERSION", times=0)
    kafka_cluster.restart(2)
    kafka_cluster.wait_until_in_sync()
    for _ in kafka_cluster.node_ids:  # whichever broker it asks
        with (
            kafka_cluster.producer() as producer,
            pytest.raises((ClientError, BrokerError), match="UNSUPPORTED_VERSION"),
        ):
            producer.send(topic, b"no").result(WITHIN_S)
    fault.undo()
    with kafka_cluster.producer() as producer:
        producer.send(topic, b"yes").result(WITHIN_S)


def test_what_is_not_undone_is_undone_after_the_test(kafka_cluster: KafkaCluster) -> None:
    """Also one that overlaps with another, which ends first."""
    topic = kafka_cluster.topic()
    first = kafka_cluster.cut_from_clients(*kafka_cluster.node_ids)
    second = kafka_cluster.cut_from_clients(1)
    first.undo()
    assert [fault.text for fault in kafka_cluster.heal()] == ["cut from clients 1"]
    assert second.is_undone
    with kafka_cluster.producer() as producer:
        producer.send(topic, b"through").result(WITHIN_S)


def test_what_cannot_be_broken_is_refused(kafka_cluster: KafkaCluster) -> None:
    """In a sentence, and nothing is broken."""
    with pytest.raises(ValueError, match="there is no request 'PRODUCT'; there are PRODUCE, FETCH"):
        kafka_cluster.fail("product", "CORRUPT_MESSAGE")
    with pytest.raises(ValueError, match="there is no error 'BAD'"):
        kafka_cluster.fail("PRODUCE", "BAD")
    with pytest.raises(ValueError, match="CREATE_TOPICS cannot be made to fail"):
        kafka_cluster.fail("CREATE_TOPICS", "INVALID_TOPIC_EXCEPTION")
    with pytest.raises(ValueError, match="there is no broker 7"):
        kafka_cluster.cut(1, 7)
    with pytest.raises(ValueError, match="name two brokers"):
        kafka_cluster.cut(1, 1)
    with pytest.raises(ValueError, match="direction='up'"):
        kafka_cluster.cut(1, 2, "up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="partition= needs topic="):
        kafka_cluster.hold("PRODUCE", partition=1)
    with pytest.raises(ValueError, match="name at least one broker"):
        kafka_cluster.delay(ms=5)
    with pytest.raises(ValueError, match="disk_delay_ms=-5: expected a number from 0 on"):
        kafka_cluster.disk(1).slow(ms=-5)
    with pytest.raises(ValueError, match="bytes_per_s=0: expected more than 0"):
        kafka_cluster.throttle(1, bytes_per_s=0)
    with pytest.raises(ValueError, match="JOIN_GROUP names no topic"):
        kafka_cluster.hold("JOIN_GROUP", topic="orders")
    with kafka_cluster.kill(1), pytest.raises(ValueError, match="there is no error 'BAD'"):
        kafka_cluster.fail("PRODUCE", "BAD", broker=1)
    with pytest.raises(ValueError, match="there is no record 5 of"):
        kafka_cluster.disk(1).flip_bit(kafka_cluster.topic(), 0, 5)
    assert kafka_cluster.heal() == []


def test_orders_need_the_token(kafka_broker: KafkaCluster) -> None:
    """And are orders that there are."""
    broker = kafka_broker._brokers[1]
    with pytest.raises(OrderRefused, match="the token is wrong"):
        give_order(broker._orders_port, "guessed", "requests")
    with pytest.raises(
        OrderRefused, match="there is no order 'explode'; there are set_faults, reset_connections"
    ):
        give_order(broker._orders_port, broker._token, "explode")
    with pytest.raises(OrderRefused, match="faults have another form"):
        give_order(broker._orders_port, broker._token, "set_faults", faults={"is_full": 1})


@pytest.mark.parametrize(
    "faults",
    [
        {"disk_delay_ms": "30"},
        {"disk_delay_ms": -1},
        {"links": {"clients": {"bytes_per_s": "many"}}},
        {"links": {"clients": {"delay_ms": float("nan")}}},
        {"links": ["clients"]},
        {"rules": [{"number": 1, "api": [], "action": "fail"}]},
        {"rules": [{"number": 1, "api": "FETCH", "action": "fail", "error": 29}]},
        {"rules": [{"number": 1, "api": "FETCH", "action": "fail", "error": "99999"}]},
        {"rules": [{"number": 1, "api": "FETCH", "action": "hold", "times": "2"}]},
        {"is_disk_full": 1},
        7,
    ],
    ids=repr,
)
def test_no_order_ends_the_broker(kafka_broker: KafkaCluster, faults: object) -> None:
    """What cannot be obeyed is refused, and the broker serves on."""
    broker = kafka_broker._brokers[1]
    with pytest.raises(OrderRefused):
        give_order(broker._orders_port, broker._token, "set_faults", faults=faults)
    with pytest.raises(OrderRefused, match="the token is wrong"):
        give_order(broker._orders_port, "gue\u00df", "requests")
    with socket.create_connection(("127.0.0.1", broker._orders_port)) as connection:
        connection.sendall(b"[" * 200_000 + b"\n")
        assert b"one JSON object a line" in connection.recv(1000)
    kafka_broker.topic()


def test_a_bit_is_not_flipped_back_in_a_sound_batch(kafka_cluster: KafkaCluster) -> None:
    """The broker has copied it again meanwhile."""
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        producer.send(topic, b"x" * 100).result(WITHIN_S)
    leader = kafka_cluster.leader(topic)
    follower = next(node_id for node_id in kafka_cluster.node_ids if node_id != leader)
    kafka_cluster.wait_for_isr(topic)
    with kafka_cluster.disk(follower).flip_bit(topic, 0, 0):
        with kafka_cluster.kill(follower):
            pass
        kafka_cluster.wait_until_in_sync()
    [record] = kafka_cluster.log(topic, 0, follower)
    assert record.value == b"x" * 100


def test_faults_that_hinder_a_start_are_undone_before_it(kafka_cluster: KafkaCluster) -> None:
    """At the end of the test, in whichever order they came."""
    topic = kafka_cluster.topic()
    kafka_cluster.cut_from_store(1)
    kafka_cluster.kill(1)
    kafka_cluster.disk(2).full()
    kafka_cluster.kill(2)
    assert len(kafka_cluster.heal()) == 4
    assert len(kafka_cluster.wait_for_isr(topic, timeout_s=0)) == 3


def test_connections_of_brokers_that_run_are_reset(kafka_cluster: KafkaCluster) -> None:
    """One that is down has none."""
    with kafka_cluster.kill(1):
        kafka_cluster.reset_connections()
    with kafka_cluster.pause(1), pytest.raises(ValueError, match="broker 1 is paused"):
        kafka_cluster.reset_connections(1)


def test_faults_may_come_while_brokers_restart(kafka_cluster: KafkaCluster) -> None:
    """From another thread than that which restarts them; none is left in the end."""
    topic = kafka_cluster.topic()
    rolling = Thread(target=kafka_cluster.roll)
    rolling.start()
    while rolling.is_alive():
        with kafka_cluster.hold("PRODUCE", topic=topic), kafka_cluster.delay(1, 2, 3, ms=1):
            time.sleep(0.05)
    rolling.join()
    with kafka_cluster.producer() as producer:
        producer.send(topic, b"through").result(WITHIN_S)


def test_the_end_of_a_throttle_ends_what_waits(kafka_broker: KafkaCluster) -> None:
    """Also in the middle of an answer."""
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"x" * 900_000).result(WITHIN_S)
    with kafka_broker.consumer() as consumer:
        consumer.subscribe(topic)
        with kafka_broker.throttle(1, bytes_per_s=2_000):
            assert consumer.poll(1) == []
        assert consumer.poll(WITHIN_S)


def test_without_an_answer_there_is_no_error(kafka_broker: KafkaCluster) -> None:
    """A record with acks=0 is lost with its connection, and the producer goes on."""
    topic = kafka_broker.topic()

    def it_was_received() -> Look[bool]:
        found = [each for each in kafka_broker.requests() if each.has_met_fault]
        return Look(True if found else None, "no request has met the fault")

    with kafka_broker.producer(acks=0, enable_idempotence=False) as producer:
        with kafka_broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", topic=topic):
            producer.send(topic, b"lost").result(WITHIN_S)
            wait_for("the request that fails", it_was_received, WITHIN_S)
        for _ in range(2):  # the first one may find the connection broken
            producer.send(topic, b"kept")
            producer.flush()
        kafka_broker.wait_for_high_watermark(topic, 1)


def test_each_side_of_a_cut_knows_what_is_lost() -> None:
    """What one sends is what the other one does not get."""

    def address_of(node_id: int) -> str:
        return f"broker-{node_id}"

    cut = cut_links("to", 1, 2, address_of)
    assert cut[1].links == {"broker-2": LinkFaults(are_sends_lost=True)}
    assert cut[2].links == {"broker-1": LinkFaults(are_receives_lost=True)}
    assert cut_links("from", 1, 2, address_of) == cut_links("to", 2, 1, address_of)


@pytest.mark.parametrize("has_token", [False, True])
def test_it_runs_only_where_a_kit_has_been(tmp_path: Path, has_token: bool) -> None:
    """Not on a data directory of somebody's, and not by hand."""
    told = {PORT: "0", TOKEN: "secret"} if has_token else {}
    ended = subprocess.run(
        [sys.executable, "-m", "minibroker.testing.node", f"log.dirs={tmp_path}"],
        env=os.environ | told,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    wanted = "a test did not make it" if has_token else "the testing kit starts this command"
    assert wanted in ended.stderr
    assert not list(tmp_path.iterdir())
