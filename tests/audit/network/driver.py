"""A Spark driver to be killed: two streams out of one topic, into files and into another topic.

    python -m tests.audit.network.driver SERVERS DIRECTORY

Both read everything that is there in micro-batches, with their checkpoints in the directory. Run
so, the task of the second partition in the second micro-batch stops for ever before it hands on a
record, and says so on the FIFO `halted` in the directory. Who calls `run` goes on from there.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from minibroker.audit.network import register
from minibroker.audit.session import spark_session

PARTITIONS = 2
RECORDS_PER_TRIGGER = 200
# What Spark says of a worker that was not there within its 10 s, which no setting changes.
TOO_SLOW = "Python worker failed to connect back"
INITIALIZING = "Initializing sources"
COLUMNS = "partition INT, offset BIGINT, value STRING"
Rows = Iterator[pa.RecordBatch]


def halting(fifo: Path, sink: str) -> Callable[[Rows], Rows]:
    """What passes rows on, and stops for ever in the middle of the second micro-batch."""

    def hand_on(batches: Rows) -> Rows:
        for batch in batches:
            partition, offset = (batch.column(at)[0].as_py() for at in range(2))
            if partition == 1 and offset >= RECORDS_PER_TRIGGER // PARTITIONS:
                with open(fifo, "w") as told:
                    told.write(f"{sink}\n")
                signal.pause()
            yield batch

    return hand_on


def run(spark: SparkSession, servers: str, directory: Path, does_halt: bool = False) -> None:
    """Run both streams to their ends."""
    register(spark)
    source = (
        spark.readStream.format("minibroker")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_TRIGGER)
    )
    queries = []
    for sink in ("files", "topic"):
        rows = source.load().selectExpr("partition", "offset", "STRING(value) AS value")
        if does_halt:
            rows = rows.mapInArrow(halting(directory / "halted", sink), COLUMNS)
        if sink == "files":
            writer = rows.writeStream.format("json").option("path", str(directory / "files"))
        else:
            writer = (
                rows.select("value", "partition")
                .writeStream.format("minibroker")
                .option("kafka.bootstrap.servers", servers)
                .option("topic", "out")
            )
        checkpoint = str(directory / f"checkpoint-{sink}")
        writer = writer.option("checkpointLocation", checkpoint)
        queries.append(started(writer.trigger(availableNow=True)))
    for query in queries:
        query.awaitTermination()


def started(writer: DataStreamWriter) -> StreamingQuery:
    """A query that has the worker for its source, however busy the machine is: as whoever runs one
    would, it is started again, from its checkpoint, until that was quick enough."""
    while True:
        query = writer.start()
        while query.isActive and query.status["message"] == INITIALIZING:
            time.sleep(0.05)
        failure = query.exception()
        if failure is None or TOO_SLOW not in str(failure):
            return query


def main() -> None:
    """A driver for itself; all four tasks must have begun before any can be waited for."""
    spark = spark_session("local[4]", settings={"spark.sql.shuffle.partitions": "2"})
    run(spark, sys.argv[1], Path(sys.argv[2]), does_halt=True)


if __name__ == "__main__":
    main()
