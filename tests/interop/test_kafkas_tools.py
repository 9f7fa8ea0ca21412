"""Apache Kafka's kafka-reassign-partitions and kafka-log-dirs, unmodified, on three brokers.

`make soak` runs it: it needs Java and Maven.
"""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin
from tests.interop.clients import Confluent, Record, Settings
from tests.interop.foreign_process import NEEDS_JAVA
from tests.support.apache_kafka import java
from tests.support.processes import running_cluster

TOPIC: Final = "moved"
TOOL_S_MAX: Final = 120.0
MOVED_S_MAX: Final = 60.0
THROTTLES: Final = {
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
}
RATES: Final = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}


def run(tool: str, bootstrap: str, *options: str) -> str:
    """Run a tool of Apache Kafka to its end, and return what it printed."""
    done = subprocess.run(
        java(f"org.apache.kafka.tools.{tool}", "--bootstrap-server", bootstrap, *options),
        capture_output=True,
        text=True,
        timeout=TOOL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plan(path: Path, brokers: list[int]) -> str:
    """Write a plan for the topic's one partition; return the file's name."""
    moved = {"topic": TOPIC, "partition": 0, "replicas": brokers}
    path.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    return str(path)


@pytest.mark.soak
@NEEDS_JAVA
def test_kafkas_tools_move_a_partition(kafka_libraries: None, tmp_path: Path) -> None:
    """A plan is made, carried out with a throttle, listed, verified and cancelled; the sizes of
    the logs are those on disk."""
    with running_cluster(tmp_path, 3) as cluster, Admin(cluster.addresses) as admin:
        bootstrap = cluster.addresses
        admin.create_topics(NewTopic(TOPIC, replica_assignments={0: (1, 2)}))
        Confluent().write(bootstrap, TOPIC, 0, [Record(b"v" * 500_000)] * 4, Settings())

        topics = tmp_path / "topics.json"
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
        to_move = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,3")
        made = run("reassign.ReassignPartitionsCommand", bootstrap, "--generate", *to_move)
        proposed = made.partition("Proposed partition reassignment configuration")[2]
        assert {*json.loads(proposed)["partitions"][0]["replicas"]} == {1, 3}

        file = ("--reassignment-json-file", plan(tmp_path / "plan.json", [1, 3]))
        slow = ("--throttle", "1000")
        started = run("reassign.ReassignPartitionsCommand", bootstrap, "--execute", *file, *slow)
        assert f"Successfully started partition reassignment for {TOPIC}-0" in started
        assert configs_of(admin) == THROTTLES | RATES
        listed = run("reassign.ReassignPartitionsCommand", bootstrap, "--list")
        assert re.search(rf"{TOPIC}-0: replicas: .*3.*adding: 3.*removing: 2", listed), listed
        cancelled = run("reassign.ReassignPartitionsCommand", bootstrap, "--cancel", *file)
        assert f"Successfully cancelled partition reassignment for: {TOPIC}-0" in cancelled
        assert configs_of(admin) == set()

        quick = ("--throttle", "50000000")
        run("reassign.ReassignPartitionsCommand", bootstrap, "--execute", *file, *quick)

        def is_moved() -> bool:
            [topic] = admin.describe_topics(TOPIC)
            return {*topic.partitions[0].isr} == {*topic.partitions[0].replicas} == {1, 3}

        deadline = time.monotonic() + MOVED_S_MAX
        while not is_moved():
            assert time.monotonic() < deadline, "the partition is not moved"
            time.sleep(0.1)
        verified = run("reassign.ReassignPartitionsCommand", bootstrap, "--verify", *file)
        assert f"Reassignment of partition {TOPIC}-0 is completed" in verified
        assert configs_of(admin) == set()

        told = run("LogDirsCommand", bootstrap, "--describe", "--topic-list", TOPIC)
        sizes = {
            broker["broker"]: {
                part["partition"]: part["size"]
                for directory in broker["logDirs"]
                for part in directory["partitions"]
            }
            for broker in json.loads(told.splitlines()[-1])["brokers"]
        }
        log = cluster.layout.data_dir(1) / f"{TOPIC}-0"
        size = sum(path.stat().st_size for path in log.glob("*.log"))
        assert sizes == {1: {f"{TOPIC}-0": size}, 2: {}, 3: {f"{TOPIC}-0": size}}


def configs_of(admin: Admin) -> set[str]:
    """Return the throttles that the topic and the brokers have of their own."""
    found = [admin.describe_configs(TOPIC)[TOPIC]]
    found += [admin.describe_broker_configs(node_id) for node_id in (1, 2, 3)]
    own = {one.name for configs in found for one in configs if not one.is_default}
    return own & (THROTTLES | RATES)
