"""Reading topics into Spark: what a batch and its tasks get from a real broker."""

import struct
from pathlib import Path
from time import monotonic

import pytest
from crc32c import crc32c

from minibroker.audit.network.options import batch_options
from minibroker.audit.network.source import (
    ARROW_SCHEMA,
    BatchReader,
    DataLoss,
    Range,
    ReadTimeout,
    plan_ranges,
)
from minibroker.client.blocking import Admin, Producer
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.types import TopicPartition
from tests.audit.network.topics import consumers, create, expected, options, read_all, send, values
from tests.support.processes import BrokerProcess, running_broker

NOW_MS = 1_700_000_000_000


def test_a_record_comes_with_all_it_has(broker: BrokerProcess) -> None:
    """Key, value, headers and time arrive as sent; what was not set, or is no time, is null."""
    create(broker, "full", 1)
    headers = [("a", b"\x00"), ("a", None), ("ü", b"")]
    with Producer(broker.address) as producer:
        producer.send("full", b"v", b"k", headers, 0, NOW_MS + 1)
        producer.send("full", None, b"", (), 0, 2**62)
    reader = BatchReader(batch_options(options(broker, "full")))
    (wanted,) = reader.partitions()
    (batch,) = reader.read(wanted)
    assert batch.schema == ARROW_SCHEMA
    first, second = batch.to_pylist()
    assert first.pop("timestamp").timestamp() * 1000 == NOW_MS + 1
    assert first == {
        "topic": "full",
        "partition": 0,
        "offset": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    assert second == {
        "topic": "full",
        "partition": 0,
        "offset": 1,
        "timestamp": None,
        "key": b"",
        "value": None,
        "headers": [],
    }


def test_a_batch_reads_what_was_asked(broker: BrokerProcess) -> None:
    """Offsets may be words, numbers or -1 and -2; each record comes once, in however many tasks."""
    create(broker, "asked")
    send(broker, "asked", 0, 100)
    plain = BatchReader(batch_options(options(broker, "asked")))
    ranges = plain.partitions()
    assert ranges == [Range("asked", 0, 0, 100), Range("asked", 1, 0, 100)]
    assert values(read_all(plain, ranges)) == expected((0, 0, 100), (1, 0, 100))
    asked = {
        "startingOffsets": '{"asked": {"0": 10, "1": -2}}',
        "endingOffsets": '{"asked": {"0": -1, "1": 30}}',
    }
    split = BatchReader(batch_options(options(broker, "asked", minPartitions="6", **asked)))
    ranges = split.partitions()
    assert len(ranges) == 6
    assert values(read_all(split, ranges)) == expected((0, 10, 100), (1, 0, 30))
    nothing = {"startingOffsets": '{"asked": {"0": 100, "1": 100}}'}
    assert BatchReader(batch_options(options(broker, "asked", **nothing))).partitions() == []


def test_a_batch_reads_what_lies_between_two_times(broker: BrokerProcess) -> None:
    """Of the partitions that are assigned, without the column that is not wanted. A time after the
    last record is an error, or the end."""
    create(broker, "timed")
    with Producer(broker.address) as producer:
        for partition in (0, 1):
            for at in range(10):
                value = b"%d/%d" % (partition, at)
                producer.send("timed", value, partition=partition, timestamp_ms=NOW_MS + at)
                producer.flush()

    def reader(**more: str) -> BatchReader:
        asked = options(broker, "timed", includeHeaders="false", **more)
        if "assign" in more:
            del asked["subscribe"]
        return BatchReader(batch_options(asked))

    between = reader(
        startingTimestamp=str(NOW_MS + 3),
        endingOffsetsByTimestamp=f'{{"timed": {{"0": {NOW_MS + 5}, "1": {NOW_MS + 99}}}}}',
    )
    rows = read_all(between, between.partitions())
    assert values(rows) == expected((0, 3, 5), (1, 3, 10))
    assert "headers" not in rows[0]
    one = reader(assign='{"timed": [1]}', startingTimestamp=str(NOW_MS + 8))
    assert values(read_all(one, one.partitions())) == expected((1, 8, 10))
    late = {"startingTimestamp": str(NOW_MS + 10)}
    with pytest.raises(ValueError, match="no record of timed-0, timed-1 is as late as asked"):
        reader(**late).partitions()
    at_end = reader(**late, startingOffsetsByTimestampStrategy="latest")
    assert at_end.partitions() == []
    with pytest.raises(ValueError, match="assign names partitions that do not exist: timed-7"):
        reader(assign='{"timed": [7]}').partitions()


def test_a_batch_says_what_it_cannot_read(broker: BrokerProcess) -> None:
    """No such topic, an end before the start, offsets that the log never had."""
    create(broker, "refused")
    send(broker, "refused", 0, 10)

    def reader(topic: str = "refused", **more: str) -> BatchReader:
        return BatchReader(batch_options(options(broker, topic, **more)))

    with pytest.raises(BrokerError, match="there is no topic 'missing'"):
        reader("missing").partitions()
    backwards = '{"refused": {"0": 5, "1": 0}}', '{"refused": {"0": 4, "1": 9}}'
    with pytest.raises(ValueError, match="refused-0 is to be read from offset 5 to 4"):
        reader(startingOffsets=backwards[0], endingOffsets=backwards[1]).partitions()
    ahead = reader(endingOffsets='{"refused": {"0": 11, "1": 0}}')
    with pytest.raises(DataLoss, match="up to offset 11, but ends at 10"):
        read_all(ahead, ahead.partitions())


def test_what_retention_took_is_not_passed_over(broker: BrokerProcess) -> None:
    """A range that begins before the log fails; only who allows it gets what is left."""
    create(broker, "aging", 1)
    with Producer(broker.address) as producer:
        for at in range(10):
            producer.send("aging", b"0/%d" % at, partition=0, timestamp_ms=1)
    strict = BatchReader(batch_options(options(broker, "aging")))
    lax = BatchReader(batch_options(options(broker, "aging", failOnDataLoss="false")))
    (wanted,) = strict.partitions()
    assert isinstance(wanted, Range)
    name = TopicPartition("aging", 0)
    with Admin(broker.address) as admin:
        admin.alter_configs({"aging": {"retention.ms": "3600000"}})
        give_up_at = monotonic() + 30
        while admin.list_offsets([name], -2)[name].offset < 10:
            assert monotonic() < give_up_at, "retention does not delete"
    send_later = Range("aging", 0, wanted.start, 12)
    with Producer(broker.address) as producer:
        for at in range(10, 12):
            producer.send("aging", b"0/%d" % at, partition=0)
    with pytest.raises(DataLoss, match="from offset 0 on, but begins at 10"):
        read_all(strict, [send_later])
    assert values(read_all(lax, [send_later])) == expected((0, 10, 12))
    assert values(read_all(strict, [Range("aging", 0, -2, 12)])) == expected((0, 10, 12))


def test_a_range_may_end_in_offsets_without_records(tmp_path: Path) -> None:
    """Where compaction took the last records, the task ends at the end of the range."""
    with running_broker(tmp_path) as broker:
        create(broker, "compacted", 1)
        send(broker, "compacted", 0, 10, 1)
        assert broker.stop() == 0
    segment = tmp_path / "compacted-0" / f"{0:020}.log"
    segment.write_bytes(_without_its_last_record(bytearray(segment.read_bytes())))
    with running_broker(tmp_path) as broker:
        reader = BatchReader(batch_options(options(broker, "compacted")))
        assert reader.partitions() == [Range("compacted", 0, 0, 10)]
        assert values(read_all(reader, reader.partitions())) == expected((0, 0, 9))


def _without_its_last_record(batch: bytearray) -> bytearray:
    """A batch of ten records of one size as compaction would leave it."""
    header = read_header(batch)
    assert (header.size, header.record_count) == (len(batch), 10)
    del batch[-(header.size - 61) // 10 :]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, 9)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def test_an_abandoned_reader_leaves_no_consumer(broker: BrokerProcess) -> None:
    """A query that wants no more rows closes the iterator, and that the consumer."""
    create(broker, "left")
    send(broker, "left", 0, 50)
    reader = BatchReader(batch_options(options(broker, "left", kafka_max_poll_records="10")))
    ranges = reader.partitions()
    assert consumers() == 0
    rows = reader.read(ranges[0])
    assert next(rows).num_rows == 10
    rows.close()  # type: ignore[attr-defined]
    assert consumers() == 0


def test_a_silent_broker_is_an_error_in_time(tmp_path: Path) -> None:
    """A broker that stops answering while it is read from ends the task, not the patience."""
    with running_broker(tmp_path) as broker:
        create(broker, "silent", 1)
        with Producer(broker.address) as producer:
            for _ in range(4000):
                producer.send("silent", b"x" * 1000, partition=0)
        strict_options = {"kafka.default.api.timeout.ms": "1000", "kafka.max.poll.records": "100"}
        reader = BatchReader(batch_options(options(broker, "silent", **strict_options)))
        rows = reader.read(reader.partitions()[0])
        next(rows)
        broker.pause()
        with pytest.raises(ReadTimeout, match=r"nothing of silent-0 at offset \d+, to be read to"):
            list(rows)
        assert consumers() == 0


def test_tasks_have_ranges_without_holes() -> None:
    """However a batch is split, its ranges meet, and an earliest start is asked for by a task."""
    name = TopicPartition("t", 0)
    for split in (0, 1, 3, 100):
        ranges = plan_ranges({name: 5}, {name: 17}, split)
        assert [each.start for each in ranges] == [5, *(each.end for each in ranges[:-1])]
        assert ranges[-1].end == 17
        assert len(ranges) == max(1, min(split, 12))
    assert plan_ranges({name: 20}, {name: 17}, 3) == []
