"""What a user of `format("minibroker")` may say, and how offsets are shared out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.audit.network.options import (
    EARLIEST,
    LATEST,
    batch_options,
    from_json,
    limited,
    parse_offsets,
    pieces,
    sink_options,
    spread,
    stream_options,
    to_json,
)
from minibroker.protocol.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ = {**SERVERS, "subscribe": "a"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_options_are_those_of_the_source_for_kafka() -> None:
    """Names in any case are understood; what begins with `kafka.` is the client's."""
    given_options = {
        "Kafka.Bootstrap.Servers": "h:1",
        "kafka.fetch.max.bytes": "1000",
        "subscribe": "b, a",
        "STARTINGOFFSETS": '{"a": {"0": 7, "1": -2}, "b": {"0": 0}}',
        "minpartitions": "4",
    }
    options = batch_options(given_options)
    assert options.topics == ("a", "b")
    assert options.starting == {A0: 7, A1: EARLIEST, B0: 0}
    assert options.ending == LATEST
    assert (options.split, options.limit, options.fails_on_data_loss) == (4, 0, True)
    assert options.client["bootstrap.servers"] == "h:1"
    assert options.client["fetch.max.bytes"] == "1000"
    assert options.client["auto.offset.reset"] == "none"
    assert batch_options({**SERVERS, "subscribe": "a"}).starting == EARLIEST
    assert stream_options({**SERVERS, "subscribe": "a"}).starting == LATEST


def test_partitions_and_times_may_be_chosen() -> None:
    """A time of all partitions goes before those of single ones."""
    options = batch_options(
        {
            **SERVERS,
            "assign": '{"a": [1, 0], "b": [0]}',
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"a": {"0": 6}}',
            "endingOffsetsByTimestamp": '{"a": {"0": 7, "1": 8}, "b": {"0": 9}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "includeHeaders": "false",
        }
    )
    assert (options.topics, options.assigned) == (("a", "b"), {A0, A1, B0})
    assert (options.starting_times, options.at_end_without_record) == (5, True)
    assert options.ending_times == {A0: 7, A1: 8, B0: 9}
    assert not options.has_headers
    plain = batch_options(READ)
    assert (plain.assigned, plain.starting_times, plain.ending_times) == (None, None, None)
    assert plain.has_headers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (SERVERS, "subscribe is missing"),
        ({**READ, "subscribe": "a,,b"}, "subscribe is missing"),
        ({**READ, "startingOffset": "latest"}, "the nearest is 'startingOffsets'"),
        ({**READ, "startingOffsets": "newest"}, "earliest, latest or JSON"),
        ({**READ, "startingOffsets": '{"a": {"0": -3}}'}, "earliest, latest or JSON"),
        ({**READ, "startingOffsets": '{"a": {"0": 1.5}}'}, "earliest, latest or JSON"),
        ({**READ, "startingOffsets": '{"a": 3}'}, "earliest, latest or JSON"),
        ({**READ, "startingOffsets": "[1]"}, "earliest, latest or JSON"),
        ({**READ, "startingOffsets": "latest"}, "cannot be latest"),
        ({**READ, "startingOffsets": '{"a": {"0": -1}}'}, "cannot be latest"),
        ({**READ, "endingOffsets": "earliest"}, "cannot be earliest"),
        ({**READ, "maxOffsetsPerTrigger": "5"}, "no option 'maxOffsetsPerTrigger'"),
        ({**READ, "minPartitions": "0"}, "a number of at least 1"),
        ({**READ, "assign": '{"a": [0]}'}, "both there"),
        ({**SERVERS, "assign": '{"a": 0}'}, "assign is JSON like"),
        ({**SERVERS, "assign": '{"a": ["0"]}'}, "assign is JSON like"),
        ({**SERVERS, "assign": "{}"}, "assign is JSON like"),
        ({**READ, "startingTimestamp": "-1"}, "startingTimestamp is a number of ms"),
        ({**READ, "endingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "is JSON with ms since 1970"),
        ({**READ, "startingOffsetsByTimestamp": "{}"}, "is JSON with ms since 1970"),
        ({**READ, "startingOffsetsByTimestampStrategy": "first"}, "is error or latest"),
        ({**READ, "includeHeaders": "no"}, "includeHeaders is true or false"),
        ({**READ, "failOnDataLoss": "no"}, "true or false"),
        ({**READ, "kafka.auto.offset.reset": "latest"}, "startingOffsets and failOnDataLoss"),
        ({**READ, "kafka.fetch.max.byte": "9"}, "no option 'fetch.max.byte'; the nearest is"),
        ({**READ, "kafka.fetch.max.bytes": "many"}, "fetch.max.bytes = 'many' is not allowed"),
        ({"subscribe": "a"}, "bootstrap.servers is missing"),
    ],
)
def test_a_source_refuses_what_it_would_not_do(options: dict[str, str], says: str) -> None:
    """An option that is wrong, misspelt or without effect is an error that helps."""
    with pytest.raises(ValueError, match=says):
        batch_options(options)


def test_a_stream_has_no_end() -> None:
    """`endingOffsets` is a batch's, and a limit a stream's."""
    with pytest.raises(ValueError, match="no option 'endingOffsets'"):
        stream_options({**READ, "endingOffsets": "latest"})
    assert stream_options({**READ, "maxOffsetsPerTrigger": "5"}).limit == 5


def test_a_sink_does_not_write_with_less_than_all_acks() -> None:
    """Settings under which records get lost or doubled in a healthy run are refused."""
    options = sink_options({**SERVERS, "topic": "t", "kafka.acks": "-1", "queryName": "q"})
    assert (options.topic, options.client["acks"]) == ("t", "all")
    for name, value in (("kafka.acks", "1"), ("kafka.enable.idempotence", "false")):
        with pytest.raises(ValueError, match=f"{name} is "):
            sink_options({**SERVERS, "topic": "t", name: value})
    with pytest.raises(ValueError, match=r"a producer has no option 'lingerms'"):
        sink_options({**SERVERS, "topic": "t", "kafka.lingerMs": "5"})


def test_offsets_survive_the_checkpoint() -> None:
    """What Spark writes down is the same offsets again, always written in the same order."""
    offsets = {TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, A0: LATEST}
    text = json.dumps(to_json(offsets))
    assert text == '{"a": {"0": -1}, "b": {"9": 2, "10": 3}}'
    assert from_json(json.loads(text)) == offsets


def test_offsets_must_be_told_for_every_partition() -> None:
    """JSON that leaves a partition out, or names one too many, is refused by its name."""
    asked = parse_offsets("startingOffsets", '{"a": {"0": 3, "7": 1}}')
    with pytest.raises(ValueError, match=r"missing: a-1, unknown: a-7"):
        spread("startingOffsets", asked, [A0, A1])
    assert spread("startingOffsets", EARLIEST, [A1, A0]) == {A0: EARLIEST, A1: EARLIEST}


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(-50, 1000)), min_size=1, max_size=8),
    st.integers(1, 500),
)
def test_a_limit_is_kept_and_used_up(ranges: list[tuple[int, int]], limit: int) -> None:
    """A limited batch is inside the whole one, and as large as the limit where that is smaller."""
    start = {TopicPartition("t", at): first for at, (first, _) in enumerate(ranges)}
    end = {TopicPartition("t", at): first + size for at, (first, size) in enumerate(ranges)}
    found = limited(start, end, limit)
    waiting = sum(max(0, size) for _, size in ranges)
    assert sum(max(0, found[name] - start[name]) for name in end) == min(limit, waiting)
    for name in end:
        assert found[name] == end[name] or start[name] <= found[name] <= end[name]


def test_a_small_partition_does_not_wait_for_ever() -> None:
    """Beside a partition that always has more, the others' records are read too."""
    start = {A0: 0, A1: 0, B0: 0}
    for _ in range(10):
        end = limited(start, {A0: start[A0] + 1_000_000, A1: 3, B0: 2}, 2)
        assert sum(end.values()) == sum(start.values()) + 2
        start = end
    assert (start[A1], start[B0]) == (3, 2)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.integers(0, 50))
def test_ranges_are_split_as_wished(sizes: list[int], split: int) -> None:
    """Each range with records is a task or more, none without, and about as many as wished."""
    total = sum(sizes)
    counts = [pieces(size, total, split) for size in sizes]
    assert all(
        (count > 0) == (size > 0) and count <= size
        for count, size in zip(counts, sizes, strict=True)
    )
    if total > 100 * split:
        assert sum(counts) >= split - len(sizes) / 2


@pytest.mark.parametrize(
    "name", ["subscribePattern", "groupIdPrefix", "minOffsetsPerTrigger", "maxTriggerDelay"]
)
def test_options_of_sparks_own_source_that_are_missing_are_refused(name: str) -> None:
    """As docs/audit.md says: none is passed over, which would read something else."""
    with pytest.raises(ValueError, match=f"has no option '{name}'"):
        batch_options({**READ, name: "x"})
