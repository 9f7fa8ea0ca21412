"""Whole pytest sessions of a user: what they show, and that nothing stays when they have ended."""

import re
import signal
import time
from pathlib import Path

import pytest

from minibroker import testing
from minibroker.testing import running_cluster
from minibroker.testing.kit.failure_report import log_lines
from tests.kit.inner import Inner

MANY = """
    import pytest

    @pytest.mark.parametrize("number", range({count}))
    def test_a_record_comes_back(kafka_broker, number):
        topic = kafka_broker.topic()
        with kafka_broker.producer() as producer:
            producer.send(topic, b"%d" % number).result(10)
        with kafka_broker.consumer() as consumer:
            consumer.subscribe(topic)
            [record] = consumer.poll(10)
        assert record.value == b"%d" % number
"""


def test_five_lines_without_a_conftest(inner: Inner) -> None:
    """All that is needed is that minibroker is installed."""
    inner.write(
        """
        def test_orders(kafka_broker):
            with kafka_broker.producer() as producer:
                done = producer.send(kafka_broker.topic(), b"an order").result(10)
            assert done.offset == 0
        """
    )
    session = inner.run()
    assert session.code == 0, session.text
    assert not inner.left_files()
    assert not inner.left_processes()


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.soak)])
def test_two_workers_leave_nothing(inner: Inner, count: int) -> None:
    """Each has a cluster of its own, all tests of a worker share it."""
    inner.write(MANY.format(count=count))
    session = inner.run("-n", "2")
    assert session.code == 0, session.text
    assert f"{count} passed" in session.text
    assert not inner.left_files()
    assert not inner.left_processes()


def test_nothing_runs_on_when_pytest_is_killed(inner: Inner) -> None:
    """Also a broker that stands still; what lies on the disk goes with the next session."""
    inner.write(
        """
        import time
        from pathlib import Path

        def test_long(kafka_cluster):
            kafka_cluster.pause(2)
            Path("running").touch()
            time.sleep(600)
        """
    )
    process = inner.start()
    while not (inner.directory / "running").exists():
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.05)
    assert len(inner.left_processes()) == 3
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while inner.left_processes():
        assert time.monotonic() < deadline, inner.left_processes()
        time.sleep(0.05)
    assert inner.left_files()
    inner.write(MANY.format(count=1))
    session = inner.run()
    assert session.code == 0, session.text
    assert not inner.left_files()


def test_what_a_failed_test_shows(inner: Inner) -> None:
    """What was done to the cluster, what its brokers said and its clients asked in this test, in
    the order of their times, and where its files are."""
    inner.write(
        """
        def send(cluster, topic):
            with cluster.producer(client_id="the-shop") as producer:
                producer.send(topic, b"an order").result(10)

        def test_passes(kafka_broker):
            send(kafka_broker, kafka_broker.topic("before"))

        def test_fails(kafka_broker):
            topic = kafka_broker.topic("orders")
            with kafka_broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", topic=topic):
                send(kafka_broker, topic)
            kafka_broker.restart(1)
            kafka_broker.note("now it comes")
            assert False, "as it must"
        """
    )
    session = inner.run()
    assert session.code == 1
    assert "1 failed, 1 passed" in session.text
    shown = session.text.partition("What happened in this test:")[2]
    times = re.findall(r"^(\d\d:\d\d:\d\d\.\d{3})  ", shown, re.MULTILINE)
    assert times == sorted(times)
    at = r"\d\d:\d\d:\d\d\.\d{3}  "
    asked = f"{at}client 'the-shop' asked broker 1: PRODUCE orders-0"
    texts = [
        f"{at}test test_fails\n",
        f"{at}created topic 'orders'\n",
        f"{at}fail PRODUCE",
        f"{asked}: NOT_LEADER_OR_FOLLOWER, by a fault of the test\n",
        f"{at}stop 1\n",
        f"{at}broker 1: Kafka Server started\n",
        f"{at}now it comes\n",
        r"client 'the-shop': .*2 PRODUCE",
        f"  {asked} at 0: done\n",
    ]
    assert re.search("(?:.*\n)*.*".join(texts), shown), session.text
    assert "before" not in shown.partition("short test summary")[0]
    assert "Elected, with 0 topics" not in shown  # as the cluster started, before this test
    kept = re.search(r"will be kept in (\S+)", session.text)
    assert kept
    assert (Path(kept[1]) / "broker-1" / "meta.properties").exists()
    assert not inner.left_files()


def test_a_broker_that_ends_by_itself_is_an_error(inner: Inner) -> None:
    """Of the test that used it; the next one gets another cluster."""
    inner.write(
        """
        import os, signal

        def test_ends(kafka_broker):
            os.kill(kafka_broker.pid(1), signal.SIGKILL)
            os.waitid(os.P_PID, kafka_broker.pid(1), os.WEXITED | os.WNOWAIT)

        def test_goes_on(kafka_broker):
            kafka_broker.topic()
        """
    )
    session = inner.run()
    assert session.code == 1
    assert "2 passed, 1 error" in session.text
    assert "BrokerFailed: broker 1 ended by itself, with exit code -9" in session.text
    assert re.search(r"What happened in this test:\n\S+  test test_ends\n", session.text)


WRONG_MARKERS = {
    "kafka_broker('big')": "the marker kafka_broker takes keywords only",
    "kafka_broker(brokers=5)": "multiple values for keyword argument 'brokers'",
    "kafka_broker(replicas=3)": "unexpected keyword argument 'replicas'",
    "kafka_broker(properties={'node.id': 7})": "leave node.id out of the properties",
    "kafka_broker(properties={'log.retention.seconds': 7})": "log.retention.seconds",
}


def test_ports_that_are_set(inner: Inner) -> None:
    """By the option or in the ini file. With room for one cluster, the one before ends."""
    inner.write(
        """
        import pytest

        def check(cluster):
            [port] = [int(each.rpartition(":")[2]) for each in cluster.bootstrap.split(",")]
            assert 23_000 <= port < 23_100

        def test_one(kafka_broker):
            check(kafka_broker)

        @pytest.mark.kafka_broker(properties={"num.partitions": 2})
        def test_other(kafka_broker):
            check(kafka_broker)
        """
    )
    (inner.directory / "pytest.ini").write_text("[pytest]\nminibroker_ports = 23000-23100\n")
    session = inner.run()
    assert "2 passed" in session.text, session.text
    session = inner.run("--minibroker-ports", "23000")
    assert session.code == 1
    assert "--minibroker-ports: '23000': expected FIRST-LAST" in session.text


def test_a_cluster_in_a_shell() -> None:
    """It is started and closed by calls, and shows where and how it is."""
    cluster = running_cluster(brokers=1)
    assert repr(cluster) == "<KafkaCluster of 1 brokers, is not started>"
    with pytest.raises(RuntimeError, match=r"neither a with block nor start\(\) has begun it"):
        cluster.topic()
    assert cluster.start() is cluster
    try:
        assert repr(cluster) == f"<KafkaCluster at {cluster.bootstrap}, running: 1>"
        fault = cluster.kill(1)
        at = f"<KafkaCluster at {cluster.bootstrap}"
        assert repr(cluster) == f"{at}, running: none, faults: kill 1>"
        assert cluster.start() is cluster
        assert cluster.topic("orders") == "orders"
    finally:
        cluster.close()
    assert repr(cluster) == "<KafkaCluster of 1 brokers, has ended>"
    for start in (cluster.start, fault.undo):
        with pytest.raises(RuntimeError, match="this cluster has ended"):
            start()


def test_names_for_annotations() -> None:
    """All that fixtures return can be imported, and stands in the docs."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
        assert f"`{name}" in page


def test_lines_of_a_log_have_its_times() -> None:
    """A line without a time has that of the line before it."""
    text = "Listening\n[2026-11-29 13:43:28,013] WARN disk (log)\n  Traceback\n"
    at_s = time.mktime((2026, 11, 29, 13, 43, 28, 0, 0, -1)) + 0.013
    assert [*map(str, log_lines(text, at_s - 1, "broker 2"))] == [
        "13:43:27.013  broker 2: Listening",
        "13:43:28.013  broker 2: WARN disk (log)",
        "13:43:28.013  broker 2:   Traceback",
    ]


def test_a_wrong_marker_says_what_is_wrong(inner: Inner) -> None:
    """Before any test has run with other settings than were meant."""
    tests = "".join(
        f"""
        @pytest.mark.{marker}
        def test_{number}(kafka_broker):
            pass
        """
        for number, marker in enumerate(WRONG_MARKERS)
    )
    inner.write(f"""
        import pytest
        {tests}""")
    session = inner.run()
    assert session.code == 1
    assert f"{len(WRONG_MARKERS)} errors" in session.text
    for said in WRONG_MARKERS.values():
        assert said in session.text
    assert not inner.left_processes()
