"""Which ranges of offsets count as sound by their digests. Each partition is one case."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from minibroker.audit.checks.digests import compare_digests, within
from minibroker.audit.files.digests import RANGE, digest_ledger, digest_records
from minibroker.audit.model import LEDGER, LEDGER_DIGESTS, RECORD_DIGESTS, RECORDS
from tests.audit.checks.rows import table

BROKERS: Final = (1, 2)
(
    SOUND,
    LACKS,
    BELOW,
    ABOVE,
    UNTOLD,
    TWICE,
    READ,
    PART,
    READ_TWICE,
    BARE,
    MORE,
    WRONG,
    THRICE,
    *OTHERS,
) = range(24)
NOWHERE: Final = 24
OFFSETS: Final = (RANGE + 1, RANGE + 2)
REPLICAS: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("log_start", pa.int64()),
        ("limit", pa.int64()),
    ]
)


def stored() -> list[dict[str, Any]]:
    """What the replicas hold: case and offset as value, if the case says nothing else."""
    rows = [
        {
            "broker": broker,
            "topic": "t",
            "partition": case,
            "offset": at,
            "value": b"%d %d" % (case, at),
        }
        for case in range(NOWHERE)
        for broker in BROKERS
        for at in OFFSETS
    ]
    for row in rows:
        if row["partition"] in OTHERS and (row["broker"], row["offset"]) == (2, RANGE + 2):
            row["value"] = b"another %d" % row["partition"]
    rows.append({"broker": 2, "topic": "t", "partition": MORE, "offset": 1, "value": b"1"})
    return [row for row in rows if (row["partition"], row["broker"]) != (LACKS, 2)]


def told() -> list[dict[str, Any]]:
    """What the ledgers say: all was acknowledged."""

    def line(case: int, at: int, event: str = "acked", **others: Any) -> dict[str, Any]:
        row = {"ledger": f"l{at}", "event": event, "topic": "t", "partition": case, "offset": at}
        return row | {"value": b"%d %d" % (case, at)} | others

    rows = [line(case, at) for case in range(NOWHERE + 1) for at in OFFSETS]
    rows.remove(line(UNTOLD, RANGE + 2))
    rows += [line(TWICE, RANGE + 1), *2 * [line(THRICE, RANGE + 1)]]
    rows[rows.index(line(WRONG, RANGE + 2))]["value"] = b"another"
    first, last = OFFSETS
    for case in (READ, READ_TWICE):
        rows += [line(case, at, "shown", group=group) for at in OFFSETS for group in ("g", "h")]
    rows.append(line(READ_TWICE, last, "shown", group="g"))
    rows.append(line(PART, first, "shown", group="g"))
    rows += [line(BARE, at, "shown-offset", group="g", value=None) for at in OFFSETS]
    rows += [line(SOUND, 0, "committed", group="g"), line(SOUND, 0, "failed", offset=None)]
    return rows


def test_which_ranges_are_looked_into(spark: SparkSession) -> None:
    """What is told of a range, and by how many ledgers, does not matter if it is all there."""
    replicas = [
        {"broker": broker, "topic": "t", "partition": case}
        | {"log_start": RANGE + 2 if case == BELOW else 0}
        | {"limit": RANGE + 2 if case == ABOVE else 3 * RANGE}
        for case in range(NOWHERE)
        for broker in BROKERS
    ]
    of_ledgers = digest_ledger(pa.RecordBatch.from_pylist(told(), schema=LEDGER))
    of_logs = digest_records(pa.RecordBatch.from_pylist(stored(), schema=RECORDS))
    ranges, is_exact = compare_digests(
        table(spark, LEDGER_DIGESTS, of_ledgers.to_pylist()),
        table(spark, RECORD_DIGESTS, of_logs.to_pylist()),
        table(spark, REPLICAS, replicas),
    )
    found = {(row.partition, row.range) for row in ranges.collect()}
    cases = {LACKS, *OTHERS, BELOW, ABOVE, UNTOLD, TWICE, PART, READ_TWICE, WRONG, THRICE, NOWHERE}
    assert found == {(case, 1) for case in cases}
    assert not is_exact
    entries = table(spark, LEDGER, told())
    looked_at = within(entries, ranges).select("partition").distinct().collect()
    assert {row.partition for row in looked_at} == cases
