"""The checks of ledgers, on rows that are written out: what is planted is found, and no more.

Each partition is one case. Unless it says otherwise, brokers 1 and 2 are in the ISR, 3 is not, and
all hold the values "0" to "9" at the offsets 0 to 9. Some tests run with and without digests.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from minibroker.audit.checks.acknowledged import acknowledged, is_exact
from minibroker.audit.checks.ledgers import CHECKS, ledger_counts
from minibroker.audit.files.digests import digest_ledger, digest_records
from minibroker.audit.files.ledger import Chunk, ledger_chunks, ledger_table, read_chunk
from minibroker.audit.model import LEDGER_DIGESTS, RECORD_DIGESTS, RECORDS, Finding, Tables
from minibroker.audit.summary import LedgerCounts
from tests.audit.checks.rows import found_by, table, tables

CASES = range(16)
CLEAN, LOST, OTHER, BEHIND, ONE, TWICE, TOLD_TWICE, LIVE, GONE, NOWHERE, *REST = CASES
UNPLACED, UNKNOWN, REPEATED, CUT, NO_FRONT, WRITTEN_TWICE = REST

# (partition, broker) -> what a replica says other than the others
FACTS: dict[tuple[int, int], dict[str, object]] = {
    (BEHIND, 2): {"log_end": 7, "kept_end": 7},
    # The leader has lost its end, to which the others would be cut: they hold all the same.
    (CUT, 1): {"log_end": 7, "kept_end": 7},
    (CUT, 2): {"kept_end": 7},
    (BEHIND, 3): {"log_end": 5, "kept_end": 5},
    (UNKNOWN, 2): {"log_end": 7, "kept_end": 7},
    **{(LIVE, broker): {"state": "live", "judged_end": 5} for broker in (1, 2, 3)},
    **{(GONE, broker): {"log_start": 3} for broker in (1, 2)},
    **{(UNKNOWN, broker): {"in_isr": None} for broker in (1, 3)},
}
FACTS[UNKNOWN, 2]["in_isr"] = None
# (partition, broker, offset) -> the value there, None for no record
STORED: dict[tuple[int, int, int], str | None] = {
    (LOST, 2, 4): None,
    (LOST, 3, 5): None,
    (OTHER, 2, 3): "x",
    (ONE, 1, 2): None,
    **{(TWICE, broker, 6): "1" for broker in (1, 2, 3)},
    **{(TWICE, broker, 7): "2" for broker in (1, 2)},
    **{(TWICE, broker, offset): "3" for broker in (1, 2) for offset in (8, 9)},
    **{(REPEATED, broker, 6): "1" for broker in (1, 2, 3)},
    **{(WRITTEN_TWICE, broker, 6): "1" for broker in (1, 2, 3)},
    **{(CLEAN, broker, offset): "same" for broker in (1, 2, 3) for offset in (5, 6, 7)},
}


class LedgerLines:
    """Lines of ledgers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def acked(self, partition: int, *offsets: int, acks: int = -1, **others: object) -> None:
        """Records that were acknowledged, with the values that all replicas should have."""
        self._add("producer_send_success", partition, *offsets, acks=acks, **others)

    def shown(self, partition: int, *offsets: int, **others: object) -> None:
        """The same, to a consumer."""
        self._add("record_data", partition, *offsets, **others)

    def failed(self, partition: int | None, value: str) -> None:
        """One that was given up."""
        self._add("producer_send_error", partition, -1, value=value)

    def _add(self, name: str, partition: int | None, *offsets: int, **others: object) -> None:
        line = {"name": name, "topic": "t", "partition": partition, "key": None}
        self.rows += [line | {"value": str(at), "offset": at} | others for at in offsets]

    def write(self, path: Path, **about: object) -> Path:
        """As a program writes them that ends in good order."""
        lines = [{"name": "startup_complete"} | about, *self.rows, {"name": "shutdown_complete"}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path


def clean_ledger() -> LedgerLines:
    """What is all there."""
    lines = LedgerLines()
    lines.acked(CLEAN, 0, 1, 2, 3, 4)
    lines.acked(CLEAN, 5, 6, value="same")
    lines.acked(CLEAN, -1, value="same")
    lines.failed(CLEAN, "4")
    lines.failed(CLEAN, "never arrived")
    lines.shown(CLEAN, 0, 1, 2)
    lines.shown(CLEAN, 7, value="same")
    polled = {"topic": "t", "partition": CLEAN, "minOffset": 0, "maxOffset": 7}
    lines.rows.append({"name": "records_consumed", "partitions": [polled]})
    return lines


def faulty_ledger() -> LedgerLines:
    """What is not, or not right, or cannot be judged."""
    lines = LedgerLines()
    for partition in (LOST, OTHER, BEHIND):
        lines.acked(partition, *range(10))
    lines.shown(LOST, 4)
    lines.shown(LOST, 4)
    lines.shown(OTHER, 3)
    lines.shown(BEHIND, 8)
    lines.acked(ONE, 1, 2, acks=1)
    lines.acked(TWICE, 1, 2, 3)
    lines.failed(TWICE, "2")
    lines.failed(None, "3")
    lines.acked(TOLD_TWICE, 1)
    lines.shown(TOLD_TWICE, 1, value="b")
    lines.acked(LIVE, 4, 5, 6)
    lines.acked(GONE, 1, 4)
    lines.acked(NOWHERE, 0)
    lines.acked(UNPLACED, -1, -1, value="4", acks=0)
    lines.acked(UNKNOWN, 8, 12)
    lines.acked(CUT, 8)
    lines.acked(WRITTEN_TWICE, 1, 1)  # one record: it is one place
    lines.acked(NO_FRONT, 1, 4)
    return lines


def ledger_of_repeating_producer() -> LedgerLines:
    """What was sent once."""
    lines = LedgerLines()
    lines.acked(REPEATED, 1)
    return lines


EVERY, BY_1, BY_0 = (f"acknowledged with acks={acks} (L): " for acks in ("all", 1, 0))
LACKING = "1 records without an offset are not there, by the count of equal ones"
TWO = "2 equal records at offsets 1, 6, of which 1 were sent (L)"
THREE = "3 equal records at offsets 3, 8, 9, of which 2 were sent (L)"
BOTH = "told as 2 different records: acked in L; shown in L"
SHOWN = "shown to a consumer (L): "
THREE_BEHIND = "3 records from here on lie behind the log end 7; broker 1 has them"
FIVE_BEHIND = (
    "5 records from here on lie behind the log end 5; brokers 1, 2 have 2 of them, broker 1 has 3"
    " of them"
)
EXPECTED: dict[str, list[tuple[object, ...]]] = {
    "lost-write": [
        (LOST, 2, 4, "error", EVERY + "no record is there; brokers 1, 3 have it"),
        (LOST, 3, 5, "warning", EVERY + "no record is there; brokers 1, 2 have it"),
        (OTHER, 2, 3, "error", EVERY + "another record is there; brokers 1, 3 have it"),
        (ONE, 1, 2, "warning", BY_1 + "no record is there; brokers 2, 3 have it"),
        *((UNPLACED, broker, None, "warning", BY_0 + LACKING) for broker in (1, 2, 3)),
    ],
    "unseen": [
        (BEHIND, 2, 7, "error", EVERY + THREE_BEHIND),
        (BEHIND, 3, 5, "warning", EVERY + FIVE_BEHIND),
        (UNKNOWN, 1, 12, "error", EVERY + "it lies behind the log end 10; no replica has it"),
        (UNKNOWN, 2, 8, "warning", EVERY + "it lies behind the log end 7; brokers 1, 3 have it"),
        (UNKNOWN, 2, 12, "error", EVERY + "it lies behind the log end 7; no replica has it"),
        (UNKNOWN, 3, 12, "error", EVERY + "it lies behind the log end 10; no replica has it"),
        (CUT, 1, 8, "error", EVERY + "it lies behind the log end 7; brokers 2, 3 have it"),
    ],
    "duplicate": [
        (TWICE, 1, 6, "error", TWO),
        (TWICE, 1, 8, "error", THREE),
        (TWICE, 2, 6, "error", TWO),
        (TWICE, 2, 8, "error", THREE),
        (TWICE, 3, 6, "warning", TWO),
        *((REPEATED, broker, 6, "warning", TWO) for broker in (1, 2, 3)),
        (WRITTEN_TWICE, 1, 6, "error", TWO),
        (WRITTEN_TWICE, 2, 6, "error", TWO),
        (WRITTEN_TWICE, 3, 6, "warning", TWO),
    ],
    "inconsistent-offsets": [(TOLD_TWICE, None, 1, "error", BOTH)],
    "aborted-read": [
        (LOST, 2, 4, "error", SHOWN + "no record is there; brokers 1, 3 have it"),
        (OTHER, 2, 3, "error", SHOWN + "another record is there; brokers 1, 3 have it"),
        (BEHIND, 2, 8, "error", SHOWN + "it lies behind the log end 7; broker 1 has it"),
        (BEHIND, 3, 8, "warning", SHOWN + "it lies behind the log end 5; broker 1 has it"),
        (TOLD_TWICE, 1, 1, "error", SHOWN + "another record is there; no replica has it"),
        (TOLD_TWICE, 2, 1, "error", SHOWN + "another record is there; no replica has it"),
        (TOLD_TWICE, 3, 1, "warning", SHOWN + "another record is there; no replica has it"),
    ],
}


@pytest.fixture(params=[False, True], ids=["rows", "digests"])
def by_digests(request: pytest.FixtureRequest) -> bool:
    """Whether digests are compared before rows."""
    return bool(request.param)


def audited(
    spark: SparkSession, *ledgers: Path, by_digests: bool = False, made: int | None = None
) -> Tables:
    """The tables of all cases, and these ledgers; `made` is the time of all batches."""
    replicas, records = [], []
    for partition, broker in product(range(len(CASES)), (1, 2, 3)):
        if partition == NOWHERE:
            continue
        replica = {"broker": broker, "topic": "t", "partition": partition, "in_isr": broker != 3}
        facts = {"log_end": 10, "kept_end": 10, "judged_end": 10, "state": "killed"}
        replica |= facts | FACTS.get((partition, broker), {})
        replicas.append(replica)
        for offset in range(replica["log_end"]):
            value = STORED.get((partition, broker, offset), str(offset))
            if value is not None:
                records.append(replica | {"offset": offset, "value": value.encode()})
    batches = [
        replica | {"segment": 3 if replica["partition"] == NO_FRONT else 0, "torn": False}
        for replica in replicas
    ]
    if made is not None:
        batches = [batch | {"base_offset": 0, "max_timestamp": made} for batch in batches]
    chunks, problems = ledger_chunks(ledgers)
    assert not problems
    made = tables(spark, replicas=replicas, records=records, batches=batches)
    made = replace(made, ledger=ledger_table(spark, chunks))
    return with_digests(made, chunks, records) if by_digests else made


def with_digests(
    made: Tables, chunks: Sequence[Chunk], records: Sequence[dict[str, Any]]
) -> Tables:
    """The same tables, as if their ledgers were large."""
    spark = made.batches.sparkSession
    digests = [digest_ledger(rows) for chunk in chunks for rows in read_chunk(chunk)]
    of_ledgers = pa.Table.from_batches(digests, LEDGER_DIGESTS).to_pylist()
    rows = pa.RecordBatch.from_pylist(records, schema=RECORDS)
    halves = (rows[: len(records) // 2], rows[len(records) // 2 :])  # as of two tasks
    stored = pa.Table.from_batches(map(digest_records, halves), RECORD_DIGESTS).to_pylist()
    return replace(
        made,
        ledger_digests=table(spark, LEDGER_DIGESTS, of_ledgers),
        record_digests=lambda topics: table(spark, RECORD_DIGESTS, stored),
    )


def told_of(finding: Finding) -> tuple[object, ...]:
    """What a finding says, but for names of files and lines."""
    detail = re.sub(r"/\S+ line \d+", "L", finding.detail)
    return finding.partition, finding.broker, finding.offset, finding.severity.value, detail


def test_what_clients_were_told(spark: SparkSession, tmp_path: Path, by_digests: bool) -> None:
    """Each promise that is broken is found where it is; what cannot be judged is counted."""
    clean, faulty = (
        clean_ledger().write(tmp_path / "clean"),
        faulty_ledger().write(tmp_path / "faulty"),
    )
    with faulty.open("a") as file:
        file.write("Segmentation fault\n")
        file.write('{"name": "produ')
    repeated = ledger_of_repeating_producer()
    repeated_ledger = repeated.write(tmp_path / "repeated", idempotence=False)
    judged = audited(spark, clean, faulty, repeated_ledger, by_digests=by_digests)
    found = {
        name: [told_of(each) for each in found_by(CHECKS[name](judged))]
        for name in CHECKS.keys() - {"unexpected"}
    }
    assert found == EXPECTED
    counts, unjudged = ledger_counts(judged)
    assert counts == LedgerCounts(
        acknowledged=60, judged=55, present=45, shown=9, nowhere=2, below_start=1
    )
    assert [(each.partition, each.holds_back, each.records) for each in unjudged] == [
        (None, False, 1),
        (None, True, 1),
        (LIVE, True, 2),
        (GONE, False, 1),
        (NOWHERE, True, 1),
        (NO_FRONT, True, 1),
    ]
    assert [each.reason.replace(str(faulty), "L") for each in unjudged[:2]] == [
        "L: 1 lines are cut off, as by a program that was killed, the first is line 62",
        "L: 1 lines are not what a ledger holds, the first is line 61",
    ]


def test_ledgers_of_a_topic_that_had_the_name_before(spark: SparkSession, tmp_path: Path) -> None:
    """What was told of it is not looked for in the one that was made anew. An id of which nothing
    says that its topic was deleted may be one of another cluster, or newer than the metadata."""
    lines = LedgerLines()
    lines.acked(LOST, 4, topicId="older", timestamp=20)
    lines.acked(LOST, 5, topicId="later", timestamp=40)
    lines.acked(LOST, 6, topicId="now", timestamp=40)
    lines.acked(LOST, 7, topicId="deleted", timestamp=40)
    ledger = lines.write(tmp_path / "ledger")
    judged = audited(spark, ledger, made=30)
    judged = replace(judged, topic_ids={"t": "now"}, deleted_ids=frozenset({"deleted"}))
    assert [told_of(each)[:3] for each in found_by(CHECKS["lost-write"](judged))] == []
    counts, unjudged = ledger_counts(judged)
    assert counts == LedgerCounts(acknowledged=1, judged=1, present=1)
    said = "L: 1 lines, the first is line {}, are of a topic {}, t with the id {}"
    assert [(each.reason.replace(str(ledger), "L"), each.holds_back) for each in unjudged] == [
        (said.format(5, "that was deleted", "deleted"), False),
        (said.format(3, "of which there are no metadata", "later"), True),
        (said.format(2, "that was deleted", "older"), False),
    ]


def test_a_ledger_without_ids_that_is_older_than_the_topic(
    spark: SparkSession, tmp_path: Path, by_digests: bool
) -> None:
    """It may be of a former topic of that name: what is older than all records and not in its place
    accuses nobody, and what is in its place counts."""
    lines = LedgerLines()
    lines.acked(LOST, 4, 6, timestamp=20)
    lines.acked(LOST, 12, timestamp=20)
    lines.acked(LOST, 7, timestamp=20, value="of the former")
    lines.shown(LOST, 4, timestamp=20)
    ledger = lines.write(tmp_path / "ledger")
    for made, holds_back in ((30, True), (20, False)):
        judged = audited(spark, ledger, made=made, by_digests=by_digests)
        found = [
            (name, told_of(each)[:3])
            for name in ("lost-write", "unseen", "aborted-read", "inconsistent-offsets")
            for each in found_by(CHECKS[name](judged))
        ]
        assert not found if holds_back else found
        counts, unjudged = ledger_counts(judged)
        assert counts.judged == counts.acknowledged - 3 * holds_back
        assert [(each.records, each.holds_back) for each in unjudged] == (
            [(4, False), (1, False), (1, True), (3, True)] if holds_back else []
        )


def test_nothing_of_what_was_given_is_never_clean(spark: SparkSession, tmp_path: Path) -> None:
    """Lines of which none is about a log that is there; a file without lines; and retention that
    has taken all."""
    other = LedgerLines()
    other.acked(CLEAN, 1, topicId="of another cluster", timestamp=40)
    nothing, elsewhere, gone = LedgerLines(), LedgerLines(), LedgerLines()
    elsewhere.shown(NOWHERE, 1)
    gone.acked(GONE, 1, 2)
    cases = {"other": other, "nothing": nothing, "elsewhere": elsewhere, "gone": gone}
    for name, lines in cases.items():
        ledger = lines.write(tmp_path / name)
        judged = replace(
            audited(spark, ledger),
            topic_ids={"t": "now"} if name == "other" else {},
        )
        counts, unjudged = ledger_counts(judged)
        assert counts.judged == 0
        assert any(each.holds_back for each in unjudged), name
    ledger = clean_ledger().write(tmp_path / "clean")
    other_file = tmp_path / "empty"
    other_file.write_text('{"no": "ledger"}\n')
    judged = replace(
        audited(spark, ledger, other_file),
        ledgers=(str(ledger), str(other_file)),
    )
    assert [(each.reason, each.holds_back) for each in ledger_counts(judged)[1]] == [
        (f"{other_file}: it has no line of a ledger", True)
    ]


def test_records_are_counted_unless_each_was_acknowledged_at_its_place(
    spark: SparkSession, tmp_path: Path, by_digests: bool
) -> None:
    """Equal ones, too. With one record more, or one acknowledged twice, all are counted."""
    lines = LedgerLines()
    lines.acked(0, 0, 1)
    lines.acked(0, 2, 3, value="same")
    twice = LedgerLines()
    twice.acked(0, 2, value="same")
    stored = ["0", "1", "same", "same"]
    cases: list[tuple[list[str], list[dict[str, object]], bool]] = [
        (stored, [], True),
        ([*stored, "same"], [], False),
        (stored, twice.rows, False),
    ]
    for number, (values, more, expected) in enumerate(cases):
        told = LedgerLines()
        told.rows = [*lines.rows, *more]
        ledger = told.write(tmp_path / str(number))
        replicas: list[dict[str, object]] = [
            {"broker": broker, "topic": "t", "partition": 0, "in_isr": True, "state": "killed"}
            | {"log_end": len(values), "kept_end": len(values), "judged_end": len(values)}
            for broker in (1, 2)
        ]
        records = [
            replica | {"offset": offset, "value": value.encode()}
            for replica in replicas
            for offset, value in enumerate(values)
        ]
        batches = [replica | {"segment": 0, "torn": False} for replica in replicas]
        made = tables(spark, replicas=replicas, records=records, batches=batches)
        chunks, _ = ledger_chunks([ledger])
        judged = replace(made, ledger=ledger_table(spark, chunks))
        if by_digests:
            judged = with_digests(judged, chunks, records)
            assert acknowledged(judged).is_exact is expected
        assert is_exact(acknowledged(judged)) is expected
        if len(values) > len(stored):
            assert [each.offset for each in found_by(CHECKS["duplicate"](judged))] == [4, 4]


def test_what_no_ledger_tells_of(spark: SparkSession, tmp_path: Path) -> None:
    """The first record of each replica that nobody sent, and how many there are; a program that
    crashed may have sent them all the same."""
    lines = LedgerLines()
    lines.acked(CLEAN, 0, 1, 2, 3)
    lines.failed(CLEAN, "4")
    lines.acked(LOST, *range(10))
    for place, grade in (("whole", "error"), ("broken", "warning")):
        ledger = lines.write(tmp_path / place)
        if place == "broken":
            ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
        found = found_by(CHECKS["unexpected"](audited(spark, ledger)))
        assert [told_of(each) for each in found if each.partition in (CLEAN, LOST)] == [
            (CLEAN, broker, 5, each, "no ledger tells of 5 records from here on")
            for broker, each in ((1, grade), (2, grade), (3, "warning"))
        ]
