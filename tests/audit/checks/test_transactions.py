"""The checks of transactions on rows that are written out: what may differ without a fault."""

from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from minibroker.audit import model
from minibroker.audit.checks import transactions
from minibroker.audit.checks.transaction_lists import transaction_index
from minibroker.audit.model import Severity, Tables
from minibroker.protocol.records.control import ABORT, COMMIT
from tests.audit.checks.rows import Rows, found_by, table, tables

PRODUCER: Final = 7
END: Final = 200


def batch(partition: int, at: int, broker: int = 1, **others: object) -> dict[str, object]:
    """Five records of a transaction."""
    row = {"broker": broker, "topic": "t", "partition": partition, "segment": 0, "size": 10}
    row |= {"position": at * 10, "base_offset": at, "last_offset": at + 4, "count": 5}
    row |= {"leader_epoch": 0, "producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": at}
    row |= {"torn": False, "crc_stored": 1, "crc_computed": 1, "identity": at}
    return row | {"attributes": 0x10, "max_timestamp": 1_000} | others


def marker(
    partition: int, at: int, kind: int, broker: int = 1, **others: object
) -> dict[str, object]:
    content = {"attributes": 0x30, "marker": kind, "base_sequence": -1, "last_offset": at}
    return batch(partition, at, broker, **content | {"count": 1, "producer_epoch": 1} | others)


def replica(partition: int, broker: int = 1, **others: object) -> dict[str, object]:
    row = {"broker": broker, "topic": "t", "partition": partition, "first_offset": 0}
    row |= {"log_start": 0, "log_end": END, "judged_end": END, "state": "stopped", "in_isr": True}
    row |= {"is_reference": broker == 1, "cleaned_end": 0, "may_be_cleaned": False}
    return row | others


def entry(partition: int, first: int, last: int, stable: int) -> dict[str, object]:
    row = {"broker": 1, "topic": "t", "partition": partition, "segment": 0, "entry": 0}
    row |= {"producer_id": PRODUCER, "first_offset": first, "last_offset": last}
    return row | {"stable": stable}


def complete(partition: int) -> dict[str, object]:
    return {"broker": 1, "topic": "t", "partition": partition, "segment": 0}


def judged(spark: SparkSession, listed: Rows = (), **rows: Rows) -> Tables:
    others: dict[str, Any] = {"aborted": lambda: table(spark, model.ABORTED, listed)}
    return tables(spark, others | {"as_of_ms": 1_000_000_000}, **rows)


# By partition: rows of batches, of replicas, of entries; and what is wrong with the list.
LISTS: dict[str, tuple[Rows, dict[str, object], Rows, str]] = {
    "right": ([batch(0, 0), marker(0, 5, ABORT)], {}, [entry(0, 0, 5, 6)], ""),
    "lacking": ([batch(0, 0), marker(0, 5, ABORT)], {}, [], "lacks the transaction"),
    "begun below the first segment": (
        [batch(0, 100), marker(0, 105, ABORT)],
        {"first_offset": 100},
        [entry(0, 90, 105, 106)],
        "",
    ),
    "begun after another marker": (
        [marker(0, 100, COMMIT), batch(0, 101), marker(0, 106, ABORT)],
        {"first_offset": 100},
        [entry(0, 90, 106, 107)],
        "begin at offset 90",
    ),
    "all of it below the first segment": (
        [marker(0, 105, ABORT)],
        {"first_offset": 105},
        [entry(0, 90, 105, 106)],
        "",
    ),
    "nothing of it anywhere": (
        [marker(0, 105, ABORT)],
        {},
        [entry(0, 90, 105, 106)],
        "none was aborted there",
    ),
    "compacted, and so in no list": (
        [batch(0, 0, count=0), marker(0, 5, ABORT)],
        {"cleaned_end": 6, "may_be_cleaned": True},
        [],
        "",
    ),
    "below the log start": (
        [batch(0, 0), marker(0, 5, ABORT)],
        {"log_start": 50},
        [],
        "",
    ),
    "being compacted": (
        [batch(0, 0), marker(0, 5, ABORT)],
        {"state": "live", "may_be_cleaned": True},
        [],
        "",
    ),
    "on a running broker": (
        [batch(0, 0), marker(0, 5, ABORT)],
        {"state": "live"},
        [],
        "lacks the transaction",
    ),
    "behind the high watermark of a running broker": (
        [batch(0, 190), marker(0, 195, ABORT)],
        {"state": "live", "judged_end": 100},
        [],
        "lacks the transaction",
    ),
    "another last stable offset": (
        [batch(0, 0), marker(0, 5, ABORT)],
        {},
        [entry(0, 0, 5, 5)],
        "all was below 6",
    ),
}


def test_lists_are_compared_with_what_is_left(spark: SparkSession) -> None:
    """What retention and compaction have taken may be in a list, or not."""
    moved: dict[str, list[dict[str, object]]] = {"batches": [], "replicas": [], "listed": []}
    for number, (batches, changes, entries, _) in enumerate(LISTS.values()):
        moved["batches"] += [row | {"partition": number} for row in batches]
        moved["replicas"].append(replica(number, **changes))
        moved["listed"] += [row | {"partition": number} for row in (complete(0), *entries)]
    found = found_by(transaction_index(judged(spark, **moved)))
    said = {each.partition: each for each in found}
    for number, (name, (*_, wanted)) in enumerate(LISTS.items()):
        detail = said[number].detail if number in said else ""
        assert bool(detail) == bool(wanted), (name, detail)
        assert wanted in detail, name
    behind = said[list(LISTS).index("behind the high watermark of a running broker")]
    assert behind.severity is Severity.INFO


def test_markers_are_compared_where_all_must_have_them(spark: SparkSession) -> None:
    """Not below the front of a log, what compaction has changed or above the judged end, and not
    of a log that ends before."""
    cut: list[dict[str, object]] = [
        {},
        {"first_offset": 10},
        {"log_start": 10},
        {"cleaned_end": 10},
        {"log_end": 5},
    ]
    batches = [marker(number, 5, COMMIT) for number in range(len(cut) + 2)]
    batches += [marker(number, 11, COMMIT, broker) for number in range(4) for broker in (1, 2)]
    replicas = [replica(number) for number in range(len(cut))]
    replicas += [replica(number, 2, **changes) for number, changes in enumerate(cut)]
    live = {"state": "live", "judged_end": 5}
    replicas += [replica(5, broker, **live) for broker in (1, 2)]
    replicas += [replica(6, broker, in_isr=broker == 1) for broker in (1, 2)]
    found = found_by(transactions.marker(judged(spark, batches=batches, replicas=replicas)))
    assert [(each.partition, each.broker, each.severity) for each in found] == [
        (0, 2, Severity.ERROR),
        (6, 2, Severity.WARNING),
    ]
    assert "which is right cannot be told" in found[0].detail


def test_most_replicas_are_right_about_a_marker(spark: SparkSession) -> None:
    """Also against the one that others are compared with."""
    kinds = {1: ABORT, 2: COMMIT, 3: COMMIT}
    batches = [marker(0, 5, kind, broker) for broker, kind in kinds.items()]
    replicas = [replica(0, broker) for broker in kinds]
    [found] = found_by(transactions.marker(judged(spark, batches=batches, replicas=replicas)))
    assert (found.broker, found.other_broker, found.offset) == (1, 2, 5)


@pytest.mark.parametrize("state", ["stopped", "live"])
def test_what_may_move_is_not_judged(spark: SparkSession, state: str) -> None:
    """On running brokers a marker of the first protocol may be newer than what was read of the
    coordinator, and an open transaction may end."""
    batches = [batch(0, 0), marker(0, 5, COMMIT, producer_epoch=0), batch(0, 6)]
    replicas = [replica(0, state=state)]
    home = {"home": 0, "transactional_id": "id", "producer_id": PRODUCER, "version": 1}
    home |= {"producer_epoch": 0, "timeout_ms": 1, "started_ms": 0, "updated_ms": 0}
    place = [{"topic": "t", "partition": 0}]
    coordinated = [
        home | {"at": 0, "state": "PrepareAbort", "partitions": place},
        home | {"at": 1, "state": "CompleteAbort", "partitions": []},
    ]
    rows = judged(spark, batches=batches, replicas=replicas, coordinated=coordinated)
    is_live = state == "live"
    assert len(found_by(transactions.transaction_outcome(rows))) == (0 if is_live else 1)
    [found] = found_by(transactions.open_transaction(rows))
    assert found.severity is (Severity.INFO if is_live else Severity.ERROR)


def test_without_transactions_nothing_is_asked(spark: SparkSession) -> None:
    """The checks plan no query then."""
    rows = judged(
        spark,
        batches=[batch(0, 0, attributes=0)],
        replicas=[replica(0)],
    )
    for check in (*transactions.CHECKS.values(), transaction_index):
        assert check(rows) is None
    assert transactions.transactions_seen(rows) is None
