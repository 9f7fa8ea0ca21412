"""What groups have read, left out and committed, from ledgers to findings."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from minibroker.audit.checks.group_reads import group_reads
from minibroker.audit.checks.groups import group_offsets
from minibroker.audit.checks.registry import CHECKS
from minibroker.audit.model import BATCHES, LEDGER
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.records.control import ABORT, COMMIT
from tests.audit.checks.rows import found_by, table
from tests.audit.checks.test_groups import HOME, G, commit, known, replica
from tests.audit.checks.test_transactions import batch, marker

END = 100
CHECK = "skipped-read"


class Ledger:
    """The rows of a ledger of a member of group G, a line after the other, a ms each."""

    def __init__(self, name: str, now: int = 0) -> None:
        self._name = name
        self._now = now
        self.rows: list[dict[str, Any]] = []
        self._add("began", topic=None, group=G)

    def _add(self, event: str, **more: object) -> None:
        line = len(self.rows) + 1
        row = {"ledger": self._name, "line": line, "event": event, "topic": "t", "acks": -1}
        self.rows.append({**row, "timestamp": self._now + line, **more})

    def read(self, partition: int, offsets: Iterable[int]) -> "Ledger":
        """Records that the member was given."""
        for offset in offsets:
            self._add("shown", group=G, partition=partition, offset=offset, value=b"v")
        return self

    def commit(self, partition: int, offset: int) -> "Ledger":
        """A commit that was acknowledged."""
        self._add("committed", group=G, partition=partition, offset=offset)
        return self

    def jump(self, partition: int, offset: int) -> "Ledger":
        """A position that was set."""
        self._add("jumped", group=G, partition=partition, offset=offset)
        return self

    def refused(self, partition: int) -> "Ledger":
        """A commit of a generation that is over."""
        self._add("refused", group=G, partition=partition, error="ILLEGAL_GENERATION")
        return self

    def close(self) -> "Ledger":
        """The end, which a member that is killed does not write."""
        self._add("ended", topic=None)
        return self


def test_what_a_group_has_read(spark: SparkSession) -> None:
    """Records that were read twice after a member was killed are counted, and no fault. A hole is,
    unless a position was set behind it or a client without a ledger has committed in it. A commit
    before its record was read is a warning."""
    killed = Ledger("killed").read(0, range(60)).commit(0, 40).refused(0).refused(0)
    closed = Ledger("closed", 1000)
    closed.read(0, range(40, END)).commit(0, END)
    closed.read(1, [*range(20), *range(30, 50)]).commit(1, 50)  # 20 to 29 are left out
    closed.read(2, range(10)).jump(2, 20).read(2, range(20, 50)).commit(2, 50)
    closed.read(3, [*range(20), *range(30, 50)]).commit(3, 50)  # another one has read them
    closed.commit(4, 10).read(4, range(10)).commit(4, 10)
    closed.commit(5, 30)  # nothing of it was read
    closed.read(6, range(10, 30)).commit(6, 30).close()
    stored = [(0, END), (1, 50), (2, 50), (3, 30), (3, 50), (4, 10), (5, 30), (6, 30)]
    judged = known(
        spark,
        [
            commit(1, at, G, ("t", partition), offset)
            for at, (partition, offset) in enumerate(stored)
        ],
        [replica(1, OFFSETS_TOPIC, HOME), *(replica(1, "t", number) for number in range(7))],
        ledger=[*killed.rows, *closed.rows],
        partitions=7,
    )
    found = found_by(CHECKS[CHECK](judged))
    assert [(each.partition, each.offset, each.severity.value) for each in found] == [
        (1, 20, "error"),
        (4, 10, "warning"),
        (5, 29, "error"),
    ]
    assert "skipped 10 records from offset 20 to 29" in found[0].detail
    shown = {each.partition: each for each in group_offsets(judged)[0]}
    assert [
        (each.read, each.twice, each.skipped, each.early, each.refused) for each in shown.values()
    ] == [
        (END, 20, 0, 0, 2),
        (40, 0, 10, 0, 0),
        (40, 0, 0, 0, 0),
        (40, 0, 0, 0, 0),
        (10, 0, 0, 1, 0),
        (0, 0, 1, 0, 0),
        (20, 0, 0, 0, 0),
    ]
    assert (shown[0].refusals, shown[0].open_ledgers) == ("ILLEGAL_GENERATION 2", 1)


def test_what_transactions_leave_is_no_hole(spark: SparkSession) -> None:
    """Nobody reads markers, and readers of committed records no aborted ones."""
    ledger = Ledger("L").read(0, [0, 1, 2, 3, 4, *range(12, 17), *range(23, 28)])
    ledger.commit(0, 18).commit(0, 29).close()
    batches = [
        batch(0, 0),
        marker(0, 5, COMMIT),
        batch(0, 6),
        marker(0, 11, ABORT),
        batch(0, 12),
        marker(0, 17, COMMIT),
        batch(0, 18),
        batch(0, 23),
        marker(0, 28, COMMIT),
    ]
    replicas = [replica(1, OFFSETS_TOPIC, HOME), replica(1, "t", 0)]
    stored = [commit(1, at, G, ("t", 0), offset) for at, offset in enumerate((18, 29))]
    judged = known(spark, stored, replicas, ledger=ledger.rows)
    judged = replace(judged, batches=table(spark, BATCHES, batches))
    [found] = found_by(CHECKS[CHECK](judged))
    assert "skipped 5 records from offset 18 to 22" in found.detail
    [reads] = group_reads(judged).values()
    assert (reads.read, reads.skipped) == (15, 5)


def test_a_ledger_that_is_not_whole_proves_nothing(spark: SparkSession) -> None:
    """What cannot be read of it may have been a record: a hole is a warning."""
    ledger = Ledger("L").read(0, [*range(20), *range(30, 50)]).commit(0, 50).close().rows
    ledger.append({"ledger": "L", "line": 99, "event": "unreadable"})
    assert {*ledger[0]} <= {*LEDGER.names}
    replicas = [replica(1, OFFSETS_TOPIC, HOME), replica(1, "t", 0)]
    judged = known(spark, [commit(1, 0, G, ("t", 0), 50)], replicas, ledger=ledger)
    assert [each.severity.value for each in found_by(CHECKS[CHECK](judged))] == ["warning"]
    [reads] = group_reads(judged).values()
    assert reads.skipped == 10
