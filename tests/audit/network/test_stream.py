"""Reading topics into Spark as a stream: the offsets of micro-batches, with a real broker."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from minibroker.audit.network.options import stream_options
from minibroker.audit.network.source import DataLoss, Range
from minibroker.audit.network.stream import StreamReader
from minibroker.client.blocking import Admin
from tests.audit.network.topics import consumers, create, expected, options, read_all, send, values
from tests.support.processes import BrokerProcess


@contextmanager
def running(wanted: dict[str, str]) -> Iterator[StreamReader]:
    """A reader as Spark's driver has it while a query runs."""
    reader = StreamReader(stream_options(wanted))
    try:
        yield reader
    finally:
        reader.stop()


def test_a_stream_begins_where_it_was_told_also_after_a_crash(broker: BrokerProcess) -> None:
    """A first batch that Spark runs again reads the same, though the log has grown meanwhile."""
    create(broker, "begun")
    send(broker, "begun", 0, 10)

    def reader(start: str) -> AbstractContextManager[StreamReader]:
        return running(options(broker, "begun", startingOffsets=start))

    with reader("latest") as first:
        start = first.initialOffset()
        end = first.latestOffset(start, ReadAllAvailable())
        assert end == {"begun": {"0": 10, "1": 10}}
    send(broker, "begun", 10, 5)
    with reader("latest") as second:
        assert second.initialOffset() == start
        assert second.partitions(start, end) == []
        later = second.latestOffset(end, ReadAllAvailable())
        rows = read_all(second, second.partitions(end, later))
        assert values(rows) == expected((0, 10, 15), (1, 10, 15))
    with reader("earliest") as third:
        rows = read_all(third, third.partitions(third.initialOffset(), end))
        assert values(rows) == expected((0, 0, 10), (1, 0, 10))
    with reader('{"begun": {"0": 3, "1": -1}}') as fourth:
        rows = read_all(fourth, fourth.partitions(fourth.initialOffset(), end))
        assert values(rows) == expected((0, 3, 10))
    assert consumers() == 0


def test_a_stream_reads_assigned_partitions_from_a_time_on(broker: BrokerProcess) -> None:
    """And no others, whatever comes later."""
    create(broker, "assigned")
    send(broker, "assigned", 0, 10)
    wanted = options(broker, "assigned", assign='{"assigned": [1]}', startingTimestamp="0")
    del wanted["subscribe"]
    with running(wanted) as reader:
        start = reader.initialOffset()
        assert start == {"assigned": {"1": 0}}
        send(broker, "assigned", 10, 5)
        end = reader.latestOffset(start, ReadAllAvailable())
        rows = read_all(reader, reader.partitions(start, end))
        assert values(rows) == expected((1, 0, 15))


def test_a_stream_keeps_its_limit_and_its_target(broker: BrokerProcess) -> None:
    """A batch takes no more than asked; AvailableNow stops at what was there when it began."""
    create(broker, "limited")
    send(broker, "limited", 0, 10)
    wanted = options(broker, "limited", startingOffsets="earliest", maxOffsetsPerTrigger="7")
    with running(wanted) as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(7)
        reader.prepareForTriggerAvailableNow()
        send(broker, "limited", 10, 10)
        start, sizes, rows = reader.initialOffset(), [], []
        while (end := reader.latestOffset(start, ReadMaxRows(7))) != start:
            read = read_all(reader, reader.partitions(start, end))
            sizes.append(len(read))
            rows += read
            start = end
        assert sizes == [7, 7, 6]
        assert values(rows) == expected((0, 0, 10), (1, 0, 10))
        assert reader.reportLatestOffset() == {"limited": {"0": 10, "1": 10}}


def test_a_stream_reads_new_partitions_and_misses_lost_topics(broker: BrokerProcess) -> None:
    """A partition that the last batch did not know is read from its beginning; a topic that is
    deleted stops the query, or is left out where the user allows it."""
    create(broker, "grown")
    create(broker, "doomed")
    send(broker, "grown", 0, 5)
    start = {"doomed": {"0": 0, "1": 0}, "grown": {"0": 3}}
    strict_options = {"kafka.default.api.timeout.ms": "1000"}
    strict = options(broker, "grown,doomed", **strict_options)
    lax = {**strict, "failOnDataLoss": "false"}
    with (
        running(strict) as strict_reader,
        running(lax) as lax_reader,
    ):
        end = strict_reader.latestOffset(start, ReadAllAvailable())
        assert end == {"doomed": {"0": 0, "1": 0}, "grown": {"0": 5, "1": 5}}
        rows = read_all(strict_reader, strict_reader.partitions(start, end))
        assert values(rows) == expected((0, 3, 5), (1, 0, 5))
        assert lax_reader.latestOffset(start, ReadAllAvailable()) == end
        with Admin(broker.address) as admin:
            admin.delete_topics("doomed")
        with pytest.raises(DataLoss, match="topic 'doomed' does not exist"):
            strict_reader.latestOffset(end, ReadAllAvailable())
        later = lax_reader.latestOffset(end, ReadAllAvailable())
        assert later == {"grown": {"0": 5, "1": 5}}
        gone = [Range("doomed", 0, 0, 3)]
        assert read_all(lax_reader, gone) == []
        with pytest.raises(DataLoss, match="topic 'doomed' does not exist"):
            read_all(strict_reader, gone)


def test_a_log_that_shrank_stops_a_stream(broker: BrokerProcess) -> None:
    """An end before what was read says that records are gone, or are others now."""
    create(broker, "shrunk", 1)
    send(broker, "shrunk", 0, 5, 1)
    start = {"shrunk": {"0": 9}}
    with (
        running(options(broker, "shrunk")) as reader,
        pytest.raises(DataLoss, match="read up to offset 9, but ends at 5"),
    ):
        reader.latestOffset(start, ReadAllAvailable())
