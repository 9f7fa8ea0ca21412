"""Writing tables to topics: a task with a real broker, and both ways through a Spark session."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.network import register
from minibroker.audit.network.options import WriteOptions
from minibroker.audit.network.sink import Written, check_schema, write_batches
from minibroker.audit.network.source import SCHEMA
from minibroker.client import DeliveryFailed
from minibroker.client.blocking import Consumer, Producer
from minibroker.protocol.errors import BrokerError
from tests.audit.network.driver import started
from tests.audit.network.topics import create, options
from tests.support.processes import BrokerProcess

NOW_MS = 1_700_000_000_000


def arrow(**columns: Any) -> pa.RecordBatch:
    """A batch as Spark gives it."""
    return pa.RecordBatch.from_pydict(columns)


def write(broker: BrokerProcess, batch: pa.RecordBatch, topic: str | None) -> Written:
    """The work of one task."""
    client = {"bootstrap.servers": broker.address, "acks": "all", "max.request.size": "10000"}
    return write_batches(iter([batch]), WriteOptions(client, topic))


def test_a_task_writes_what_its_rows_say(broker: BrokerProcess) -> None:
    """Text and bytes, tombstones, partitions and topics by column, and the option before it."""
    create(broker, "one")
    create(broker, "two")
    batch = arrow(
        topic=["one", "two", "one"],
        value=["ä", None, "c"],
        key=[b"k", b"gone", None],
        partition=pa.array([1, 0, None], pa.int32()),
        offset=[7, 8, 9],
    )
    assert write(broker, batch, None) == Written(3)
    assert write(broker, arrow(value=[b"\xff"], topic=["two"]), "one") == Written(1)
    with Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("one", "two")
        records = []
        while len(records) < 4:
            records += consumer.poll(30)
    found = {(record.topic, record.key, record.value) for record in records}
    assert found == {
        ("one", b"k", "ä".encode()),
        ("two", b"gone", None),
        ("one", None, b"c"),
        ("one", None, b"\xff"),
    }
    places = {record.key: record.partition for record in records if record.key}
    assert places == {b"k": 1, b"gone": 0}


def test_a_record_that_is_not_stored_fails_the_task(broker: BrokerProcess) -> None:
    """A record without a topic, one that is too large, one for a partition that is not there."""
    create(broker, "failing", 1)
    with pytest.raises(ValueError, match="a record's topic is null"):
        write(broker, arrow(topic=["failing", None], value=[b"a", b"b"]), None)
    with pytest.raises(ValueError, match=r"larger than max\.request\.size"):
        write(broker, arrow(value=[b"x" * 20_000]), "failing")
    with pytest.raises((DeliveryFailed, BrokerError), match="failing-7"):
        write(broker, arrow(value=[b"x"], partition=pa.array([7], pa.int32())), "failing")


TEXT, BYTES, INT, LONG = pa.string(), pa.binary(), pa.int32(), pa.int64()


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ({"key": BYTES}, "t", "no column 'value'"),
        ({"value": INT}, "t", "'value' is int, but must be binary or string"),
        ({"value": TEXT}, None, "set the option or make a column 'topic'"),
        ({"value": TEXT, "keys": TEXT}, "t", "column 'keys' is none of a record's"),
        ({"value": TEXT, "partition": LONG}, "t", "'partition' is bigint, but must be int"),
        ({"value": TEXT, "headers": pa.map_(TEXT, BYTES)}, "t", "must be array<struct<key:string,"),
    ],
)
def test_a_table_that_is_no_records_is_refused(
    columns: dict[str, pa.DataType], topic: str | None, says: str
) -> None:
    """Before anything is written, and in words that say what to change."""
    with pytest.raises(ValueError, match=says):
        check_schema(from_arrow_schema(pa.schema(columns.items())), WriteOptions({}, topic))
    check_schema(SCHEMA, WriteOptions({}, None))


def test_spark_copies_a_topic(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """A batch, a stream that ends and their sinks: what was read is what is there afterwards."""
    register(spark)
    for topic in ("origin", "copied", "streamed"):
        create(broker, topic)
    with Producer(broker.address) as producer:
        for at in range(1000):
            headers = [("h", b"%d" % at)] if at % 3 else ()
            producer.send("origin", b"v%d" % at, b"k", headers, at % 2, NOW_MS + at)

    def table(topic: str) -> Any:
        return spark.read.format("minibroker").options(**options(broker, topic)).load()

    def rows(topic: str) -> list[Any]:
        return sorted(table(topic).drop("topic").collect())

    origin = table("origin")
    written = origin.drop("topic").write.format("minibroker").mode("append")
    written.option("bootstrap.servers", broker.address).option("topic", "copied").save()
    sent = rows("origin")
    assert len(sent) == 1000
    assert rows("copied") == sent

    stream = spark.readStream.format("minibroker").options(
        **options(broker, "origin", startingOffsets="earliest", maxOffsetsPerTrigger="400")
    )
    query = started(
        stream.load()
        .drop("topic")
        .writeStream.format("minibroker")
        .option("kafka.bootstrap.servers", broker.address)
        .option("topic", "streamed")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
    )
    query.awaitTermination()
    assert [each["numInputRows"] for each in query.recentProgress] == [400, 400, 200]
    assert rows("streamed") == sent

    with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
        table("nowhere").collect()
    with pytest.raises(PySparkException, match="a topic is not overwritten"):
        written.mode("overwrite").save()
