"""Bugs of programs with transactions: `check_exactly_once` finds each, and is content with the same
program without it."""

import pytest

from minibroker.testing import History, KafkaCluster, PromiseBroken
from tests.kit.planted.biller import Biller
from tests.kit.planted.test_planted import HAS_BUG, PowerCut, fill

LAST = b"order 5"


def judge(
    cluster: KafkaCluster, topic: str, history: History, said: str, *, is_committed: bool = True
) -> None:
    """Tell the history what a consumer can read, and check it: it says this, "" for nothing."""
    level = "read_committed" if is_committed else "read_uncommitted"
    for record in cluster.read_all(topic, isolation_level=level):
        history.polled(record.value, record.topic, record.partition, record.offset)
    try:
        history.check_exactly_once()
        told = ""
    except PromiseBroken as broken:
        told = str(broken)
    assert (said in told) if said else not told, told


@HAS_BUG
def test_an_abort_without_reading_again(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The group refuses the offsets of the first transaction."""
    source, target, history = kafka_broker.topic(), kafka_broker.topic(), History()
    fill(kafka_broker, source, history, 6)
    bug = "reads on" if has_bug else ""
    with kafka_broker.fail("TXN_OFFSET_COMMIT", "ILLEGAL_GENERATION", topic=source):
        Biller(kafka_broker, (source, target), history, bug).run(LAST)
    said = f"b'order 0' was acknowledged and never processed except in '{source} #1' (aborted)"
    judge(kafka_broker, target, history, said if has_bug else "")


@HAS_BUG
def test_offsets_that_are_committed_apart(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The program ends between the two commits, and its successor goes on."""
    source, target, history = kafka_broker.topic(), kafka_broker.topic(), History()
    fill(kafka_broker, source, history, 6)
    bug = "commits apart" if has_bug else ""

    def cut() -> None:
        raise PowerCut

    with pytest.raises(PowerCut):
        Biller(kafka_broker, (source, target), history, bug, after_commit=cut).run(LAST)
    Biller(kafka_broker, (source, target), history, bug).run(LAST)
    said = f"b'order 0' was processed 2 times: in '{source} #1' and in '{source} #2'"
    judge(kafka_broker, target, history, said if has_bug else "")


@HAS_BUG
def test_a_commit_in_doubt(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The commit is decided, and the program gets no answer to it for a while."""
    source, target, history = kafka_broker.topic(), kafka_broker.topic(), History()
    fill(kafka_broker, source, history, 6)
    bug = "takes doubt for an abort" if has_bug else ""
    fault = kafka_broker.drop_response("END_TXN", times=0)
    Biller(kafka_broker, (source, target), history, bug, in_doubt=fault.undo).run(LAST)
    assert fault.is_undone
    name = f"'{source} #1' (its end is not known)"
    judge(kafka_broker, target, history, f"sent in {name} and in" if has_bug else "")


@HAS_BUG
def test_a_reader_of_aborted_records(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The bug is the reader's: it reads the bills of the transaction that was aborted, too."""
    source, target, history = kafka_broker.topic(), kafka_broker.topic(), History()
    fill(kafka_broker, source, history, 6)
    with kafka_broker.fail("TXN_OFFSET_COMMIT", "ILLEGAL_GENERATION", topic=source):
        Biller(kafka_broker, (source, target), history).run(LAST)
    said = f"and sent in '{source} #1' (aborted) and in '{source} #2' (committed)"
    judge(kafka_broker, target, history, said if has_bug else "", is_committed=not has_bug)
