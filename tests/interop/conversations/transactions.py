"""Conversations about transactions: their coordinator, their records, and who may read them."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from minibroker.protocol.kafka import apis, transaction_apis
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.records.batch import (
    TRANSACTIONAL,
    ProducerStamp,
    read_header,
    write_header,
)
from minibroker.protocol.records.record import encode_batch
from tests.interop.conversations.case import Case, Request, Script, requests, scripts
from tests.interop.conversations.records import fetching, listing, producing, unknown
from tests.interop.conversations.talk import LOOK_EVERY_S, READY_S_MAX, Fields, Talk, Topic

TRANSACTION: Final = 1  # the type of a coordinator's key
# The last ones of the first protocol of transactions.
ADD_VERSION: Final = 3
PRODUCE_VERSION: Final = 11
ADD_OFFSETS_VERSION: Final = 3
END_VERSION: Final = 4
OFFSET_FETCH_VERSION: Final = 8  # the first one for several groups
TIMEOUT_MS: Final = 60_000
LATE_MS: Final = 500
# With a record of 1970 a Fetch of Kafka ended before the marker, whose time is now.
NOW_MS: Final = round(time.time() * 1000)
STRANGE_ID: Final = 10**15  # no producer has it


class Open(NamedTuple):
    """A transactional producer, whose transaction may have begun, and a topic of two partitions."""

    name: str
    producer_id: int
    epoch: int
    topic: Topic

    def fields(self, **other: Any) -> Fields:
        """The fields that name the producer in the apis of transactions."""
        named = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        return named | other

    def batch(self, sequence: int = 0) -> bytes:
        """A batch with one record of the producer."""
        stamp = ProducerStamp(self.producer_id, self.epoch, sequence)
        batch = encode_batch([(NOW_MS, b"k", b"v", ())], producer=stamp)
        write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL))
        return bytes(batch)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; `what` it is, for the error if it never does."""
    deadline = time.monotonic() + READY_S_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_EVERY_S)


def opened(talk: Talk, timeout_ms: int = TIMEOUT_MS) -> Open:
    """A producer that has its epoch."""
    name = f"{talk.name}-x"
    asked = {"coordinator_keys": [name], "key_type": TRANSACTION}
    wait_until(
        lambda: not talk.prepare(apis.FIND_COORDINATOR, asked).coordinators[0].error_code,
        "no coordinator of transactions",
    )
    made = session_of(talk, name, timeout_ms)
    return Open(name, made.producer_id, made.producer_epoch, talk.topic(partitions=2))


def session_of(talk: Talk, name: str, timeout_ms: int = TIMEOUT_MS) -> Any:
    """The answer that begins a session, which may have to wait for the end of a transaction."""
    answers: list[Any] = []

    def has_begun() -> bool:
        answers.append(talk.prepare(apis.INIT_PRODUCER_ID, initial(name, timeout_ms)))
        return not answers[-1].error_code

    wait_until(has_begun, "no session begins")
    return answers[-1]


def adding(one: Open, *topics: tuple[str, list[int]], **other: Any) -> Fields:
    """The fields of an AddPartitionsToTxn, for all versions."""
    named = [{"name": name, "partitions": partitions} for name, partitions in topics]
    asked = {**one.fields(**other), "topics": named}
    return asked | {"transactions": [{**asked, "verify_only": False}]}


def begun(talk: Talk, *, is_written: bool = True, timeout_ms: int = TIMEOUT_MS) -> Open:
    """A producer with a partition in its transaction, and a record there."""
    one = opened(talk, timeout_ms)
    asked = adding(one, (one.topic.name, [0]))
    added = talk.ask(transaction_apis.ADD_PARTITIONS_TO_TXN, ADD_VERSION, asked)
    (topic,) = added.results_by_topic_v3_and_below
    assert not topic.results_by_partition[0].partition_error_code, added
    if is_written:
        answer = talk.ask(apis.PRODUCE, PRODUCE_VERSION, written(one))
        assert not answer.responses[0].partition_responses[0].error_code, answer
    talk.said.clear()
    return one


def written(one: Open, sequence: int = 0, partition: int = 0, **other: Any) -> Fields:
    """The fields of a Produce in the transaction."""
    fields = producing((one.topic, [(partition, one.batch(sequence))]))
    return {**fields, "transactional_id": one.name, **other}


def ending(one: Open, *, is_commit: bool = True, **other: Any) -> Fields:
    """The fields of an EndTxn."""
    return {**one.fields(**other), "committed": is_commit}


def wait_until_complete(talk: Talk, one: Open) -> None:
    """Return once the transaction that was ended has its markers."""
    asked = {"transactional_ids": [one.name]}

    def is_complete() -> bool:
        answer = talk.prepare(transaction_apis.DESCRIBE_TRANSACTIONS, asked)
        return bool(answer.transaction_states[0].transaction_state.startswith("Complete"))

    wait_until(is_complete, "the transaction does not end")


def ended(talk: Talk, *, is_commit: bool) -> Open:
    """A producer whose transaction with one record has ended, and has its marker."""
    one = begun(talk)
    answer = talk.ask(transaction_apis.END_TXN, END_VERSION, ending(one, is_commit=is_commit))
    assert not answer.error_code, answer
    wait_until_complete(talk, one)
    talk.said.clear()
    return one


def late(talk: Talk) -> Open:
    """A producer whose transaction was aborted after its time."""
    one = begun(talk, timeout_ms=LATE_MS)
    wait_until_complete(talk, one)
    talk.said.clear()
    return one


def of_late(fields: Callable[[Open], Fields]) -> Request:
    """A request about a producer whose transaction was aborted after its time."""
    return lambda talk: fields(late(talk))


def of_open(fields: Callable[[Open], Fields]) -> Request:
    """A request about a producer whose transaction has not begun."""
    return lambda talk: fields(opened(talk))


def of_begun(fields: Callable[[Open], Fields]) -> Request:
    """A request about a producer with a record in its transaction."""
    return lambda talk: fields(begun(talk))


def initial(name: str, timeout_ms: int = TIMEOUT_MS, **more: Any) -> Fields:
    """The fields of an InitProducerId."""
    return {"transactional_id": name, "transaction_timeout_ms": timeout_ms, **more}


INIT_PRODUCER_ID: Final[dict[str, Request]] = {
    "a transactional id": lambda talk: initial(opened(talk).name + "-new"),
    "a transactional id again": of_open(lambda one: initial(one.name)),
    "an open transaction's id": of_begun(lambda one: initial(one.name)),
    "timeout 0 of a transaction": lambda talk: initial(opened(talk).name, timeout_ms=0),
    "timeout -1 of a transaction": lambda talk: initial(opened(talk).name, timeout_ms=-1),
    "a timeout too long": lambda talk: initial(opened(talk).name, timeout_ms=10**9),
}
INIT_AGAIN: Final[dict[str, Request]] = {
    "with the epoch that is there": of_open(
        lambda one: initial(one.name, producer_id=one.producer_id, producer_epoch=one.epoch)
    ),
    "with a newer epoch": of_open(
        lambda one: initial(one.name, producer_id=one.producer_id, producer_epoch=one.epoch + 7)
    ),
    "with another producer id": of_open(
        lambda one: initial(one.name, producer_id=STRANGE_ID, producer_epoch=0)
    ),
    "after a late transaction": of_late(
        lambda one: initial(one.name, producer_id=one.producer_id, producer_epoch=one.epoch)
    ),
}


ADD_PARTITIONS: Final[dict[str, Request]] = {
    "a partition": of_open(lambda one: adding(one, (one.topic.name, [0]))),
    "a partition again": of_begun(lambda one: adding(one, (one.topic.name, [0]))),
    "two partitions": of_open(lambda one: adding(one, (one.topic.name, [0, 1]))),
    "a partition twice": of_open(lambda one: adding(one, (one.topic.name, [0, 0]))),
    "no topics": of_open(adding),
    "no partitions": of_open(lambda one: adding(one, (one.topic.name, []))),
    "an unknown partition": of_open(lambda one: adding(one, (one.topic.name, [0, 9]))),
    "an unknown topic": lambda talk: adding(opened(talk), (unknown(talk).name, [0])),
    "the offsets topic": of_open(lambda one: adding(one, ("__consumer_offsets", [0]))),
    "an older epoch": of_open(lambda one: adding(one, (one.topic.name, [0]), producer_epoch=-1)),
    "a newer epoch": of_open(lambda one: adding(one, (one.topic.name, [0]), producer_epoch=99)),
    "another producer id": of_open(
        lambda one: adding(one, (one.topic.name, [0]), producer_id=STRANGE_ID)
    ),
    "an unknown transactional id": of_open(
        lambda one: adding(one, (one.topic.name, [0]), transactional_id=one.name + "-unknown")
    ),
    "an empty transactional id": of_open(
        lambda one: adding(one, (one.topic.name, [0]), transactional_id="")
    ),
}
ADD_OFFSETS: Final[dict[str, Request]] = {
    "a group": of_open(lambda one: one.fields(group_id=one.name)),
    "an empty group id": of_open(lambda one: one.fields(group_id="")),
    "an older epoch": of_open(lambda one: one.fields(group_id="g", producer_epoch=-1)),
    "a newer epoch": of_open(lambda one: one.fields(group_id="g", producer_epoch=99)),
    "another producer id": of_open(lambda one: one.fields(group_id="g", producer_id=STRANGE_ID)),
    "an unknown transactional id": of_open(
        lambda one: one.fields(group_id="g", transactional_id=one.name + "-unknown")
    ),
}
END: Final[dict[str, Request]] = {
    "a commit": of_begun(ending),
    "an abort": of_begun(lambda one: ending(one, is_commit=False)),
    "a commit of nothing": of_open(ending),
    "an abort of nothing": of_open(lambda one: ending(one, is_commit=False)),
    "an older epoch": of_begun(lambda one: ending(one, producer_epoch=-1)),
    "a newer epoch": of_begun(lambda one: ending(one, producer_epoch=99)),
    "another producer id": of_begun(lambda one: ending(one, producer_id=STRANGE_ID)),
    "a commit of a late transaction": of_late(ending),
    "an abort of a late transaction": of_late(lambda one: ending(one, is_commit=False)),
    "an unknown transactional id": of_begun(
        lambda one: ending(one, transactional_id=one.name + "-unknown")
    ),
    "an empty transactional id": of_begun(lambda one: ending(one, transactional_id="")),
}


def committing(one: Open, partition: int = 0, **other: Any) -> Fields:
    """The fields of a TxnOffsetCommit of one offset."""
    offset = {"partition_index": partition, "committed_offset": 5, "committed_metadata": "m"}
    topics = [{"name": one.topic.name, "partitions": [offset]}]
    return {**one.fields(group_id=one.name), "topics": topics, **other}


def with_group(talk: Talk) -> Open:
    """A producer with a group in its transaction."""
    one = opened(talk)
    asked = one.fields(group_id=one.name)
    answer = talk.ask(transaction_apis.ADD_OFFSETS_TO_TXN, ADD_OFFSETS_VERSION, asked)
    assert not answer.error_code, answer
    talk.said.clear()
    return one


OFFSETS: Final[dict[str, Request]] = {
    "an offset": lambda talk: committing(with_group(talk)),
    "an unknown partition": lambda talk: committing(with_group(talk), 9),
    "no topics": lambda talk: committing(with_group(talk), topics=[]),
    "an older epoch": lambda talk: committing(with_group(talk), producer_epoch=-1),
    "a newer epoch": lambda talk: committing(with_group(talk), producer_epoch=99),
    "another producer id": lambda talk: committing(with_group(talk), producer_id=STRANGE_ID),
}
OFFSETS_OF_MEMBERS: Final[dict[str, Request]] = {
    "an unknown member": lambda talk: committing(with_group(talk), member_id="m", generation_id=3),
    "a generation without a member": lambda talk: committing(with_group(talk), generation_id=3),
}


def committed_offsets(talk: Talk, version: Version) -> None:
    """Offsets count once their transaction is committed; until then they are unstable."""
    one = with_group(talk)
    talk.ask(transaction_apis.TXN_OFFSET_COMMIT, version, committing(one))
    topics = [{"name": one.topic.name, "partition_indexes": [0]}]
    asked = {"groups": [{"group_id": one.name, "topics": topics}], "require_stable": True}
    talk.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, asked)
    talk.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, asked | {"require_stable": False})
    talk.ask(transaction_apis.END_TXN, END_VERSION, ending(one))
    wait_until_complete(talk, one)
    talk.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, asked)


PRODUCE: Final[dict[str, Request]] = {
    "in a transaction": lambda talk: written(begun(talk, is_written=False)),
    "in a transaction, a partition that was not added": lambda talk: written(
        begun(talk, is_written=False), partition=1
    ),
    "in no transaction": of_open(written),
    "without its transactional id": lambda talk: written(
        begun(talk, is_written=False), transactional_id=None
    ),
    "a gap in a transaction": lambda talk: written(begun(talk), 7),
    "in a late transaction": of_late(lambda one: written(one, 1)),
    "in a late transaction, another partition": of_late(lambda one: written(one, partition=1)),
}


def fenced(talk: Talk, version: Version) -> None:
    """A producer whose id a newer one has."""
    one = begun(talk)
    session_of(talk, one.name)
    talk.ask(apis.PRODUCE, version, written(one, 1))


def end_twice(talk: Talk, version: Version) -> None:
    """The same end again is answered as the first; the other one is refused."""
    one = begun(talk)
    talk.ask(transaction_apis.END_TXN, version, ending(one))
    wait_until_complete(talk, one)
    talk.ask(transaction_apis.END_TXN, version, ending(one))
    talk.ask(transaction_apis.END_TXN, version, ending(one, is_commit=False))


def read(one: Open, isolation_level: int) -> Fields:
    """The fields of a Fetch of the partition that was written."""
    return fetching((one.topic, [{"partition": 0}]), isolation_level=isolation_level)


FETCH: Final[dict[str, Request]] = {
    "an open transaction, read committed": of_begun(lambda one: read(one, 1)),
    "an open transaction, read uncommitted": of_begun(lambda one: read(one, 0)),
    "a committed transaction": lambda talk: read(ended(talk, is_commit=True), 1),
    "an aborted transaction": lambda talk: read(ended(talk, is_commit=False), 1),
    "an aborted transaction, read uncommitted": lambda talk: read(ended(talk, is_commit=False), 0),
}


def latest(one: Open, isolation_level: int) -> Fields:
    """The fields of a ListOffsets of the end of the partition that was written."""
    wanted = [{"partition_index": 0, "timestamp": -1}]
    return listing((one.topic.name, wanted), isolation_level=isolation_level)


LIST_OFFSETS: Final[dict[str, Request]] = {
    "the end with an open transaction, read committed": of_begun(lambda one: latest(one, 1)),
    "the end with an open transaction, read uncommitted": of_begun(lambda one: latest(one, 0)),
}
DESCRIBE: Final[dict[str, Request]] = {
    "an empty transaction": of_open(lambda one: {"transactional_ids": [one.name]}),
    "an open transaction": of_begun(lambda one: {"transactional_ids": [one.name]}),
    "a committed transaction": lambda talk: {
        "transactional_ids": [ended(talk, is_commit=True).name]
    },
    "an unknown id": of_open(lambda one: {"transactional_ids": [one.name + "-unknown"]}),
    "an empty id": lambda talk: {"transactional_ids": [""]},
    "an id twice": of_open(lambda one: {"transactional_ids": [one.name] * 2}),
    "no ids": lambda talk: {"transactional_ids": []},
}


def filtered(one: Open, **filters: Any) -> Fields:
    """The fields of a ListTransactions."""
    return {"state_filters": [], "producer_id_filters": [], **filters}


LIST: Final[dict[str, Request]] = {
    "all": of_begun(filtered),
    "of a state": of_begun(lambda one: filtered(one, state_filters=["Ongoing"])),
    "of another state": of_begun(lambda one: filtered(one, state_filters=["Empty"])),
    "of an unknown state": of_begun(lambda one: filtered(one, state_filters=["Odd", "Ongoing"])),
    "of a producer": of_begun(lambda one: filtered(one, producer_id_filters=[one.producer_id])),
    "of an unknown producer": of_begun(lambda one: filtered(one, producer_id_filters=[STRANGE_ID])),
}
LIST_LONG: Final[dict[str, Request]] = {
    "of a duration": of_begun(lambda one: filtered(one, duration_filter=10**9)),
    "of any duration, an empty transaction": of_open(lambda one: filtered(one, duration_filter=0)),
    "of any duration, a committed transaction": lambda talk: filtered(
        ended(talk, is_commit=True), duration_filter=0
    ),
}
LIST_PATTERN: Final[dict[str, Request]] = {
    "of a pattern": of_begun(lambda one: filtered(one, transactional_id_pattern=".*-x")),
    "of a pattern of others": of_begun(lambda one: filtered(one, transactional_id_pattern="no")),
    "of an invalid pattern": of_begun(lambda one: filtered(one, transactional_id_pattern="(")),
    "of an empty pattern": of_begun(lambda one: filtered(one, transactional_id_pattern="")),
}


def producers_of(name: str, *partitions: int) -> Fields:
    """The fields of a DescribeProducers."""
    return {"topics": [{"name": name, "partition_indexes": [*partitions]}]}


PRODUCERS: Final[dict[str, Request]] = {
    "with an open transaction": of_begun(lambda one: producers_of(one.topic.name, 0)),
    "with a committed transaction": lambda talk: producers_of(
        ended(talk, is_commit=True).topic.name, 0
    ),
    "of an empty partition": of_open(lambda one: producers_of(one.topic.name, 0)),
    "of an unknown partition": of_open(lambda one: producers_of(one.topic.name, 9)),
    "of an unknown topic": lambda talk: producers_of(unknown(talk).name, 0),
    "of no partitions": of_open(lambda one: producers_of(one.topic.name)),
    "of no topics": lambda talk: {"topics": []},
}


def marking(one: Open, name: str, partitions: list[int], **other: Any) -> Fields:
    """The fields of a WriteTxnMarkers."""
    marker = {
        "producer_id": one.producer_id,
        "producer_epoch": one.epoch,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": partitions}],
        "coordinator_epoch": 0,
    }
    return {"markers": [{**marker, **other}]}


MARKERS: Final[dict[str, Request]] = {
    "of an open transaction": of_begun(lambda one: marking(one, one.topic.name, [0])),
    "of a commit": of_begun(lambda one: marking(one, one.topic.name, [0], transaction_result=True)),
    "of no transaction": of_open(lambda one: marking(one, one.topic.name, [0])),
    "of an older epoch": of_begun(lambda one: marking(one, one.topic.name, [0], producer_epoch=-1)),
    "of a newer epoch": of_begun(lambda one: marking(one, one.topic.name, [0], producer_epoch=9)),
    "of an unknown partition": of_open(lambda one: marking(one, one.topic.name, [9])),
    "of an unknown topic": lambda talk: marking(opened(talk), unknown(talk).name, [0]),
    "of no topics": of_open(lambda one: marking(one, "", [], topics=[])),
    "of no partitions": of_open(lambda one: marking(one, one.topic.name, [])),
    "none": lambda talk: {"markers": []},
}
PRODUCE_SCRIPTS: Final[dict[str, Script]] = {"a fenced producer": fenced}
END_SCRIPTS: Final[dict[str, Script]] = {"twice": end_twice}
OFFSETS_SCRIPTS: Final[dict[str, Script]] = {
    "offsets of a committed transaction": committed_offsets
}


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from requests(apis.INIT_PRODUCER_ID, INIT_PRODUCER_ID)
    yield from requests(apis.INIT_PRODUCER_ID, INIT_AGAIN, 3)
    yield from requests(transaction_apis.ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS)
    yield from requests(transaction_apis.ADD_OFFSETS_TO_TXN, ADD_OFFSETS)
    yield from requests(transaction_apis.END_TXN, END)
    yield from scripts(transaction_apis.END_TXN, END_SCRIPTS)
    yield from requests(transaction_apis.TXN_OFFSET_COMMIT, OFFSETS)
    yield from requests(transaction_apis.TXN_OFFSET_COMMIT, OFFSETS_OF_MEMBERS, 3)
    yield from scripts(transaction_apis.TXN_OFFSET_COMMIT, OFFSETS_SCRIPTS)
    yield from requests(apis.PRODUCE, PRODUCE, 3)
    yield from scripts(apis.PRODUCE, PRODUCE_SCRIPTS, 3)
    yield from requests(apis.FETCH, FETCH, 4)
    yield from requests(apis.LIST_OFFSETS, LIST_OFFSETS, 2)
    yield from requests(transaction_apis.DESCRIBE_TRANSACTIONS, DESCRIBE)
    yield from requests(transaction_apis.LIST_TRANSACTIONS, LIST)
    yield from requests(transaction_apis.LIST_TRANSACTIONS, LIST_LONG, 1)
    yield from requests(transaction_apis.LIST_TRANSACTIONS, LIST_PATTERN, 2)
    yield from requests(transaction_apis.DESCRIBE_PRODUCERS, PRODUCERS)
    yield from requests(transaction_apis.WRITE_TXN_MARKERS, MARKERS)
