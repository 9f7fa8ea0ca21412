"""Conversations about records and where they are: Produce, Fetch, ListOffsets and others."""

from collections.abc import Iterator
from typing import Any, Final

from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.records.record import encode_batch
from tests.interop.conversations.case import Case, Request, Script, requests, scripts
from tests.interop.conversations.talk import BATCH, Fields, Talk, Topic

UNKNOWN_ID: Final = bytes(15) + b"\x07"
NO_ID: Final = bytes(16)
TEN: Final = bytes(encode_batch([(1_000 + n, b"k", b"v%d" % n, ()) for n in range(10)]))
KEYLESS: Final = bytes(encode_batch([(1_000, b"k", b"v", ()), (1_000, None, b"v", ())]))
LARGE: Final = bytes(encode_batch([(1_000, b"k", bytes(5_000), ())]))
FUTURE: Final = bytes(encode_batch([(2**42, b"k", b"v", ())]))
DAMAGED: Final = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
OLD_MAGIC: Final = BATCH[:16] + b"\1" + BATCH[17:]
COMMON_PREFIX: Final = BATCH[:30]


def of_producer(producer_id: int, epoch: int, sequence: int) -> bytes:
    """A batch with one record of an idempotent producer."""
    return bytes(
        encode_batch(
            [(1_000, b"k", b"v", ())], producer=ProducerStamp(producer_id, epoch, sequence)
        )
    )


def producing(*topics: tuple[Topic, list[tuple[int, Any]]], **more: Any) -> Fields:
    """The fields of a Produce with records for these partitions."""
    data = [
        {
            "name": topic.name,
            "topic_id": topic.id,
            "partition_data": [{"index": index, "records": data} for index, data in partitions],
        }
        for topic, partitions in topics
    ]
    return {"acks": -1, "timeout_ms": 5_000, "topic_data": data, **more}


def unknown(talk: Talk) -> Topic:
    """A topic that does not exist."""
    return Topic(f"{talk.name}-unknown", UNKNOWN_ID)


def produced_one(data: Any, **configs: str) -> Request:
    """A Produce of these bytes to a topic with these settings."""
    return lambda talk: producing((talk.topic(**configs), [(0, data)]))


PRODUCE: Final[dict[str, Request]] = {
    "one batch": produced_one(BATCH),
    "acks 1": lambda talk: producing((talk.topic(), [(0, BATCH)]), acks=1),
    "acks 2": lambda talk: producing((talk.topic(), [(0, BATCH)]), acks=2),
    "acks -2": lambda talk: producing((talk.topic(), [(0, BATCH)]), acks=-2),
    "no topics": lambda talk: producing(),
    "no partitions": lambda talk: producing((talk.topic(), [])),
    "an unknown topic": lambda talk: producing((unknown(talk), [(0, BATCH)])),
    "no topic id": lambda talk: producing((Topic(f"{talk.name}-x", NO_ID), [(0, BATCH)])),
    "an empty topic name": lambda talk: producing((Topic("", NO_ID), [(0, BATCH)])),
    "an unknown partition": lambda talk: producing((talk.topic(), [(0, BATCH), (9, BATCH)])),
    "partition -1": lambda talk: producing((talk.topic(), [(-1, BATCH)])),
    "one of two topics": lambda talk: producing(
        (talk.topic(), [(0, BATCH)]), (unknown(talk), [(0, BATCH)])
    ),
    "two partitions": lambda talk: producing((talk.topic(partitions=2), [(0, BATCH), (1, TEN)])),
    "null records": produced_one(None),
    "empty records": produced_one(b""),
    "a damaged batch": produced_one(DAMAGED),
    "a batch cut short": produced_one(BATCH[:-3]),
    "a header cut short": produced_one(COMMON_PREFIX),
    "an older format": produced_one(OLD_MAGIC),
    "two batches": produced_one(BATCH + BATCH),
    "a batch too large": produced_one(LARGE, max_message_bytes="1000"),
    "a record without a key": produced_one(KEYLESS, cleanup_policy="compact"),
    "a record of the future": produced_one(FUTURE),
    "log append time": produced_one(TEN, message_timestamp_type="LogAppendTime"),
    "a transactional id": lambda talk: producing(
        (talk.topic(), [(0, BATCH)]), transactional_id="x"
    ),
    "timeout -1": lambda talk: producing((talk.topic(), [(0, BATCH)]), timeout_ms=-1),
    "too few in sync": produced_one(BATCH, min_insync_replicas="2"),
    "an unknown producer": produced_one(of_producer(10**15, 0, 0)),
    "an unknown producer's later batch": produced_one(of_producer(10**15, 3, 7)),
    "producer epoch -1": produced_one(of_producer(10**15, -1, 0)),
    "sequence -1": produced_one(of_producer(10**15, 0, -1)),
}


def no_acks(talk: Talk, version: Version) -> None:
    """acks=0 has no answer."""
    topic = talk.topic()
    talk.send(apis.PRODUCE, version, producing((topic, [(0, BATCH)]), acks=0))
    talk.expect_silence()
    asked = fetching((topic, [{"partition": 0}]))
    talk.ask(apis.FETCH, 12, asked)


def no_acks_unknown(talk: Talk, version: Version) -> None:
    """An error ends the connection, since it has no answer."""
    talk.send(apis.PRODUCE, version, producing((unknown(talk), [(0, BATCH)]), acks=0))
    talk.expect_silence()


def sequences(*batches: tuple[int, int]) -> Script:
    """Batches of one producer, with these epochs and sequences, one after another."""

    def run(talk: Talk, version: Version) -> None:
        topic = talk.topic()
        made = talk.prepare(apis.INIT_PRODUCER_ID, {"transactional_id": None})
        for epoch, sequence in batches:
            batch = of_producer(made.producer_id, epoch, sequence)
            talk.ask(apis.PRODUCE, version, producing((topic, [(0, batch)])))

    return run


PRODUCE_SCRIPTS: Final[dict[str, Script]] = {
    "acks 0": no_acks,
    "acks 0, an unknown topic": no_acks_unknown,
    "sequences": sequences((0, 0), (0, 1), (0, 2)),
    "a repeated batch": sequences((0, 0), (0, 0)),
    "an older repeated batch": sequences((0, 0), (0, 1), (0, 0)),
    "a gap in the sequences": sequences((0, 0), (0, 5)),
    "a newer producer epoch": sequences((0, 0), (1, 0), (0, 1)),
    "a newer producer epoch that does not begin at 0": sequences((0, 0), (1, 4)),
}


def fetching(*topics: tuple[Topic, list[Fields]], **more: Any) -> Fields:
    """The fields of a Fetch of these partitions."""
    wanted = [
        {
            "topic": topic.name,
            "topic_id": topic.id,
            "partitions": [
                {"fetch_offset": 0, "partition_max_bytes": 1_000_000, **partition}
                for partition in partitions
            ],
        }
        for topic, partitions in topics
    ]
    return {"max_wait_ms": 50, "min_bytes": 1, "topics": wanted, **more}


def fetched(more: Fields | None = None, **partition: Any) -> Request:
    """A Fetch of a partition with eleven records in two batches."""

    def request(talk: Talk) -> Fields:
        topic = talk.produced(talk.topic(), BATCH, TEN)
        return fetching((topic, [{"partition": 0, **partition}]), **(more or {}))

    return request


FETCH: Final[dict[str, Request]] = {
    "from the beginning": fetched(),
    "from the middle of a batch": fetched(fetch_offset=5),
    "at the end": fetched(fetch_offset=11),
    "behind the end": fetched(fetch_offset=12),
    "offset -1": fetched(fetch_offset=-1),
    "offset -2": fetched(fetch_offset=-2),
    "an unknown partition": fetched(partition=9),
    "partition -1": fetched(partition=-1),
    "no topics": lambda talk: fetching(),
    "no partitions": lambda talk: fetching((talk.topic(), [])),
    "an unknown topic": lambda talk: fetching((unknown(talk), [{"partition": 0}])),
    "no topic id": lambda talk: fetching((Topic(f"{talk.name}-x", NO_ID), [{"partition": 0}])),
    "one of two topics": lambda talk: fetching(
        (talk.produced(talk.topic()), [{"partition": 0}]), (unknown(talk), [{"partition": 0}])
    ),
    "an empty partition": lambda talk: fetching((talk.topic(), [{"partition": 0}])),
    "one byte of a partition": fetched(partition_max_bytes=1),
    "no byte of a partition": fetched(partition_max_bytes=0),
    "bytes -1 of a partition": fetched(partition_max_bytes=-1),
    "one byte in all": fetched({"max_bytes": 1}),
    "no byte in all": fetched({"max_bytes": 0}),
    "more bytes than there are": fetched({"min_bytes": 10**6}),
    "wait -1": fetched({"max_wait_ms": -1}, fetch_offset=11),
    "min bytes -1": fetched({"min_bytes": -1}, fetch_offset=11),
    "read committed": fetched({"isolation_level": 1}),
    "isolation level 7": fetched({"isolation_level": 7}),
    "a newer leader epoch": fetched(current_leader_epoch=99),
    "leader epoch -2": fetched(current_leader_epoch=-2),
    "a newer last epoch": fetched(last_fetched_epoch=99),
    "last epoch -2": fetched(last_fetched_epoch=-2),
    "an unknown session": fetched({"session_id": 12345, "session_epoch": 1}),
    "session epoch -1": fetched({"session_id": 0, "session_epoch": -1}),
    "session epoch 7 without a session": fetched({"session_id": 0, "session_epoch": 7}),
    "a rack": fetched({"rack_id": "r"}),
    "a debugging reader": fetched({"replica_id": -2}),
    "a partition twice": lambda talk: fetching(
        (talk.produced(talk.topic()), [{"partition": 0}, {"partition": 0, "fetch_offset": 1}])
    ),
}


def session(talk: Talk, version: Version) -> None:
    """A session in which records arrive, a partition is added and one is forgotten."""
    topic, other = talk.topic(partitions=2), talk.topic("u")
    talk.produced(topic)
    both = (topic, [{"partition": 0}, {"partition": 1}])
    first = talk.ask(apis.FETCH, version, fetching(both, session_epoch=0))
    number = getattr(first, "session_id", 0)
    kept = {"session_id": number}
    moved = (topic, [{"partition": 0, "fetch_offset": 1}])
    talk.ask(apis.FETCH, version, fetching(moved, session_epoch=1, **kept))
    talk.produced(topic, partition=1)
    talk.ask(apis.FETCH, version, fetching(session_epoch=2, **kept))
    gone = [{"topic": topic.name, "topic_id": topic.id, "partitions": [1]}]
    added = (other, [{"partition": 0}])
    forgetting = {"forgotten_topics_data": gone}
    talk.ask(apis.FETCH, version, fetching(added, session_epoch=3, **kept, **forgetting))
    talk.produced(other)
    talk.ask(apis.FETCH, version, fetching(session_epoch=4, **kept))
    talk.ask(apis.FETCH, version, fetching(session_epoch=9, **kept))
    talk.ask(apis.FETCH, version, fetching(session_epoch=-1, **kept))
    talk.ask(apis.FETCH, version, fetching(session_epoch=5, **kept))


def session_of_unknown(talk: Talk, version: Version) -> None:
    """A session of which one topic is unknown."""
    known = talk.produced(talk.topic())
    wanted = ((known, [{"partition": 0}]), (unknown(talk), [{"partition": 0}]))
    first = talk.ask(apis.FETCH, version, fetching(*wanted, session_epoch=0))
    number = getattr(first, "session_id", 0)
    talk.ask(apis.FETCH, version, fetching(session_id=number, session_epoch=1))


FETCH_SCRIPTS: Final[dict[str, Script]] = {
    "a session": session,
    "a session with an unknown topic": session_of_unknown,
}


def listing(*topics: tuple[str, list[Fields]], **more: Any) -> Fields:
    """The fields of a ListOffsets."""
    wanted = [{"name": name, "partitions": partitions} for name, partitions in topics]
    return {"topics": wanted, "timeout_ms": 1_000, **more}


def listed(timestamp: int, index: int = 0, more: Fields | None = None, **part: Any) -> Request:
    """A ListOffsets of a partition whose records have the times 1000, and 1000 to 1009."""

    def request(talk: Talk) -> Fields:
        topic = talk.produced(talk.topic(), BATCH, TEN)
        wanted = {"partition_index": index, "timestamp": timestamp, **part}
        return listing((topic.name, [wanted]), **(more or {}))

    return request


LIST_OFFSETS: Final[dict[str, Request]] = {
    "the latest": listed(-1),
    "the earliest": listed(-2),
    "the largest timestamp": listed(-3),
    "the earliest local": listed(-4),
    "the latest tiered": listed(-5),
    "timestamp -6": listed(-6),
    "timestamp -7": listed(-7),
    "timestamp 0": listed(0),
    "a timestamp in a batch": listed(1_005),
    "a timestamp of the future": listed(10**15),
    "read committed": listed(-1, more={"isolation_level": 1}),
    "isolation level 7": listed(-1, more={"isolation_level": 7}),
    "a debugging reader": listed(-1, more={"replica_id": -2}),
    "an unknown partition": listed(-1, 9),
    "partition -1": listed(-1, -1),
    "an unknown topic": lambda talk: listing(
        (unknown(talk).name, [{"partition_index": 0, "timestamp": -1}])
    ),
    "an empty topic name": lambda talk: listing(("", [{"partition_index": 0, "timestamp": -1}])),
    "no topics": lambda talk: listing(),
    "no partitions": lambda talk: listing((talk.topic().name, [])),
    "an empty partition": lambda talk: listing(
        (talk.topic().name, [{"partition_index": 0, "timestamp": -2}])
    ),
    "the largest timestamp of an empty partition": lambda talk: listing(
        (talk.topic().name, [{"partition_index": 0, "timestamp": -3}])
    ),
    "a newer leader epoch": listed(-1, current_leader_epoch=99),
    "leader epoch -2": listed(-1, current_leader_epoch=-2),
    "a partition twice": lambda talk: listing(
        (talk.topic().name, [{"partition_index": 0, "timestamp": -1}] * 2)
    ),
}


def ended(index: int, epoch: int, **part: Any) -> Request:
    """An OffsetForLeaderEpoch of a partition with eleven records."""

    def request(talk: Talk) -> Fields:
        topic = talk.produced(talk.topic(), BATCH, TEN)
        wanted = {"partition": index, "leader_epoch": epoch, **part}
        return {"topics": [{"topic": topic.name, "partitions": [wanted]}]}

    return request


OFFSET_FOR_LEADER_EPOCH: Final[dict[str, Request]] = {
    "the first epoch": ended(0, 0),
    "a newer epoch": ended(0, 99),
    "epoch -1": ended(0, -1),
    "epoch -2": ended(0, -2),
    "a newer current epoch": ended(0, 0, current_leader_epoch=99),
    "the current epoch": ended(0, 0, current_leader_epoch=0),
    "an unknown partition": ended(9, 0),
    "an unknown topic": lambda talk: {
        "topics": [
            {"topic": unknown(talk).name, "partitions": [{"partition": 0, "leader_epoch": 0}]}
        ]
    },
    "no topics": lambda talk: {"topics": []},
}


def deleting(offset: int, index: int = 0, **more: Any) -> Request:
    """A DeleteRecords of a partition with eleven records."""

    def request(talk: Talk) -> Fields:
        topic = talk.produced(talk.topic(), BATCH, TEN)
        partitions = [{"partition_index": index, "offset": offset}]
        topics = [{"name": topic.name, "partitions": partitions}]
        return {"topics": topics, "timeout_ms": 5_000, **more}

    return request


DELETE_RECORDS: Final[dict[str, Request]] = {
    "up to an offset": deleting(5),
    "up to the end": deleting(-1),
    "nothing": deleting(0),
    "behind the end": deleting(12),
    "up to offset -2": deleting(-2),
    "of an unknown partition": deleting(1, 9),
    "timeout -1": deleting(5, timeout_ms=-1),
    "no topics": lambda talk: {"topics": [], "timeout_ms": 5_000},
    "of an unknown topic": lambda talk: {
        "topics": [
            {"name": unknown(talk).name, "partitions": [{"partition_index": 0, "offset": 1}]}
        ],
        "timeout_ms": 5_000,
    },
    "of a compacted topic": lambda talk: {
        "topics": [
            {
                "name": talk.produced(talk.topic(cleanup_policy="compact")).name,
                "partitions": [{"partition_index": 0, "offset": 1}],
            }
        ],
        "timeout_ms": 5_000,
    },
}
INIT_PRODUCER_ID: Final[dict[str, Request]] = {
    "a new producer": lambda talk: {"transactional_id": None, "transaction_timeout_ms": 1_000},
    "timeout -1": lambda talk: {"transactional_id": None, "transaction_timeout_ms": -1},
    "an empty transactional id": lambda talk: {
        "transactional_id": "",
        "transaction_timeout_ms": 1_000,
    },
    "a producer id": lambda talk: {
        "transactional_id": None,
        "transaction_timeout_ms": 1_000,
        "producer_id": 5,
        "producer_epoch": 3,
    },
    "an id without an epoch": lambda talk: {
        "transactional_id": None,
        "transaction_timeout_ms": 1_000,
        "producer_id": 5,
        "producer_epoch": -1,
    },
}


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from requests(apis.PRODUCE, PRODUCE, 3)
    yield from scripts(apis.PRODUCE, PRODUCE_SCRIPTS, 3)
    yield from requests(apis.FETCH, FETCH)
    yield from scripts(apis.FETCH, FETCH_SCRIPTS, 7)
    yield from requests(apis.LIST_OFFSETS, LIST_OFFSETS)
    yield from requests(apis.OFFSET_FOR_LEADER_EPOCH, OFFSET_FOR_LEADER_EPOCH)
    yield from requests(admin_apis.DELETE_RECORDS, DELETE_RECORDS)
    yield from requests(apis.INIT_PRODUCER_ID, INIT_PRODUCER_ID)
