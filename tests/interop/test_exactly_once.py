"""Programs that read, transform and write in transactions, while `kill -9` ends them and brokers.

Nothing is done about it from outside, but that a program is started again. Each record is
transformed once: a foreign reader of committed records says so, and the audit, from the brokers'
files.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.interop.exactly_once import (
    APPLICATION,
    DIRECTORY,
    OUTPUT,
    SETTINGS,
    Trial,
    read_to_end,
    trial,
)
from tests.interop.features import Feature, shows
from tests.interop.foreign_process import NEEDS_JAVA, Command, of_java, of_python, with_package
from tests.interop.replicas import stop_in_order
from tests.support.audited import assert_clean
from tests.support.processes import running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFLUENT: Final = of_python("confluent_transform.py")
ROUNDS: Final = (
    (APPLICATION,),
    (OUTPUT,),
    (TRANSACTIONS_TOPIC,),
    (APPLICATION, DIRECTORY, TRANSACTIONS_TOPIC),
    (OFFSETS_TOPIC,),
    (APPLICATION, OUTPUT),
)


def judge(bootstrap: str, name: str, tried: Trial) -> None:
    """Each record was transformed once; of what was aborted only other readers know."""
    assert read_to_end(bootstrap, f"{name}-out", "read_committed") == tried.expected
    everything = read_to_end(bootstrap, f"{name}-out", "read_uncommitted")
    aborted = sum(map(len, everything.values())) - sum(map(len, tried.expected.values()))
    print(f"{tried}; {aborted} records of aborted transactions")
    assert aborted > 0


@shows(Feature.EXACTLY_ONCE, "confluent-kafka")
def test_a_program_and_a_broker_are_killed(tmp_path: Path) -> None:
    """In the middle of a transaction: the program and, with it, the leader of its output."""
    with (
        running_cluster(tmp_path / "brokers", settings=SETTINGS) as cluster,
        trial(cluster, "numbers", CONFLUENT, tmp_path / "numbers") as tried,
    ):
        tried.kill_while_open([APPLICATION, OUTPUT])
        judge(cluster.addresses, "numbers", tried)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("confluent", CONFLUENT),
        ("aiokafka", of_python("aiokafka_transform.py")),
        ("kafka-python", of_python("kafka_python_transform.py")),
        pytest.param("java", of_java("Transform.java"), marks=NEEDS_JAVA),
        pytest.param("streams", of_java("ExactlyOnce.java"), marks=NEEDS_JAVA),
        ("quix", with_package("quixstreams==3.28.1", "quix_exactly_once.py")),
    ],
    ids=["confluent", "aiokafka", "kafka-python", "java", "streams", "quix"],
)
def test_each_record_is_transformed_once(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spark: "SparkSession",
    name: str,
    command: Command,
) -> None:
    """Killed in the middle of transactions are the program, the leader of its output and the
    coordinators, alone and together."""
    if name in ("java", "streams"):
        request.getfixturevalue("kafka_libraries")
    with running_cluster(tmp_path / "brokers", settings=SETTINGS) as cluster:
        with trial(cluster, name, command, tmp_path / name) as tried:
            for killed in ROUNDS:
                tried.kill_while_open(killed)
            judge(cluster.addresses, name, tried)
            tried.heal()
        stop_in_order(cluster)
    ledgers = sorted((tmp_path / name).glob("*.jsonl"))
    assert_clean(spark, tmp_path / "brokers", tmp_path / "audit", ledgers)
