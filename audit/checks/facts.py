"""Facts that the driver needs about each log, from its batches.

The header's offset and epoch lie outside the CRC, so one flipped bit can make a batch claim any
offset. So a log, and each epoch in it, ends where its last batch by position ends, not at the
largest offset. The largest offset is believed only if the last batch claims less than others do,
and they claim no more than the lengths of all batches add up to.

Millions of batches are first grouped into `runs`, which are few. Runs are enough to tell how far a
log goes, which epochs it has, and, for the checks, where a log has a seam at all.
"""

import struct as struct_of_bytes
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import itemgetter, xor
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.functions import (
    bit_xor,
    bool_or,
    col,
    count,
    greatest,
    lit,
    max_by,
    min_by,
    struct,
    when,
    xxhash64,
)
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from xxhash import xxh3_64_digest

from minibroker.audit.checks.local_frames import collect_small, local_frame, local_rows
from minibroker.audit.checks.log_ends import EpochEnd, LogFacts, ascending
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.files.directories import Replica
from minibroker.protocol.constants import INT64_MAX
from minibroker.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)

# The columns that name a log, and a partition.
REPLICA: Final = ("broker", "topic", "partition")
PARTITION: Final = ("topic", "partition")
_Epoch: TypeAlias = Any  # a Row, or what the driver builds itself: columns by name
# The bits that a batch's attributes may have: its codec, and LogAppendTime, which a broker sets.
_FROM_CLIENTS: Final = COMPRESSION_MASK | LOG_APPEND_TIME
# Which compaction sets, and those of transactions and their markers.
_STORED: Final = _FROM_CLIENTS | DELETE_HORIZON | TRANSACTIONAL | CONTROL
_OF_TRANSACTIONS: Final = TRANSACTIONAL | CONTROL


def next_offset(last_offset: str) -> Column:
    """Return the offset after this one; a damaged header may claim the largest offset possible."""
    return when(col(last_offset) < INT64_MAX, col(last_offset) + 1).otherwise(col(last_offset))


@memoize_per_run
def runs(batches: DataFrame) -> DataFrame:
    """Return one row per segment and leader epoch for its batches, and one for its torn bytes.

    A row has the position and base offset of the first batch and the last offset of the last one,
    both by position, and the bytes from first to last. `is_chain`: each batch begins, in bytes and
    in offsets, where another ends. No sort is needed to know that: each batch adds a hash of the
    place where it begins and a hash of the place where it ends, and all but the outermost cancel
    out. `seams` is the same of the offsets alone, unhashed. `digest` and `bytes` cover all
    `batches`, whatever their order. `has_odd`: at least one sound batch is of a kind that no
    producer sends and no broker makes, or has more records than offsets. `has_transactions`: at
    least one is of a transaction, or a marker. `cleaned_end` is the offset behind the last batch
    that compaction has visibly changed, null if there is none.

    Takes one pass over the batches, made once for all callers; the driver makes it if it holds the
    batches.
    """
    found, rows = ask_runs(batches), local_rows(batches)
    if rows is None:
        return collect_small(found)
    return local_frame(batches.sparkSession, runs_of(rows, found.schema), found.schema)


def ask_runs(batches: DataFrame) -> DataFrame:
    """Return the runs, as a Spark plan."""
    end = col("position") + col("size")
    return (
        batches.withColumns({"end": end, "next_offset": next_offset("last_offset")})
        .groupBy(*REPLICA, "segment", "leader_epoch", "torn")
        .agg(
            smallest_of("position").alias("position"),
            largest_of("end").alias("end"),
            min_by("base_offset", "position").alias("base_offset"),
            max_by("last_offset", "position").alias("last_offset"),
            max_by("next_offset", "position").alias("next_offset"),
            largest_of("next_offset").alias("largest"),
            sum_of(col("next_offset") - greatest("base_offset", lit(0))).alias("length"),
            bit_xor(col("base_offset").bitwiseXOR(col("next_offset"))).alias("seams"),
            bit_xor(_link()).alias("links"),
            bool_or(col("crc_stored") != col("crc_computed")).alias("has_bad_crc"),
            bool_or(is_odd()).alias("has_odd"),
            bool_or(is_transactional()).alias("has_transactions"),
            largest_of(when(is_cleaned(), col("next_offset"))).alias("cleaned_end"),
            digest_of_batches().alias("digest"),
            count("*").alias("batches"),
            sum_of("size").alias("bytes"),
        )
        .withColumn("is_chain", ~col("torn") & (col("links") == _link()))
        .withColumn("size", col("end") - col("position"))
    )


def runs_of(rows: pa.Table, schema: StructType) -> pa.Table:
    """Return the runs of batches that the driver holds. Its hashes differ from Spark's."""
    by_run: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = (*REPLICA, "segment", "leader_epoch", "torn")
    for row in rows.to_pylist():
        by_run.setdefault(tuple(row[name] for name in names), []).append(row)
    found = [dict(zip(names, run, strict=True)) | _run_of(each) for run, each in by_run.items()]
    return pa.Table.from_pylist(found, to_arrow_schema(schema))


def _run_of(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of `runs` for the batches of one leader epoch in one segment."""
    first, last = (pick(batches, key=itemgetter("position")) for pick in (min, max))
    end = max(batch["position"] + batch["size"] for batch in batches)
    run = {
        "position": first["position"],
        "end": end,
        "size": end - first["position"],
        "batches": len(batches),
        "bytes": sum(batch["size"] for batch in batches),
        "is_chain": False,
        "has_odd": False,
        "has_transactions": False,
    }
    if first["torn"]:
        return run
    places = [
        (batch["position"], batch["base_offset"], batch["position"] + batch["size"], _next(batch))
        for batch in batches
    ]
    links = reduce(xor, (_hash(*place[:2]) ^ _hash(*place[2:]) for place in places))
    content = ("identity", "base_offset", "leader_epoch")
    digest = reduce(xor, (_hash(*(batch[name] for name in content)) for batch in batches))
    return run | {
        "base_offset": first["base_offset"],
        "last_offset": last["last_offset"],
        "next_offset": _next(last),
        "largest": max(map(_next, batches)),
        "length": sum(_next(batch) - max(batch["base_offset"], 0) for batch in batches),
        "seams": reduce(xor, (batch["base_offset"] ^ _next(batch) for batch in batches)),
        "links": links,
        "has_bad_crc": any(batch["crc_stored"] != batch["crc_computed"] for batch in batches),
        "has_odd": any(map(_is_odd, batches)),
        "has_transactions": any(batch["attributes"] & TRANSACTIONAL for batch in batches),
        "cleaned_end": max(map(_next, filter(_is_cleaned, batches)), default=None),
        "digest": digest,
        "is_chain": links
        == _hash(first["position"], first["base_offset"]) ^ _hash(end, _next(last)),
    }


def _next(batch: Mapping[str, Any]) -> int:
    """Return `next_offset` of a batch that the driver holds."""
    return min(int(batch["last_offset"]), INT64_MAX - 1) + 1


def _is_odd(batch: Mapping[str, Any]) -> bool:
    """Return `is_odd` of a batch that the driver holds and that is not torn."""
    is_sound = batch["crc_stored"] == batch["crc_computed"]
    attributes = batch["attributes"]
    has_odd_kind = attributes & _STORED != attributes
    if attributes & _OF_TRANSACTIONS:
        is_of_none = batch["producer_id"] < 0 or not attributes & TRANSACTIONAL
        has_odd_kind |= is_of_none or bool(attributes & CONTROL and batch["marker"] is None)
    offsets = batch["last_offset"] - batch["base_offset"] + 1
    return bool(is_sound and (has_odd_kind or not 0 <= batch["count"] <= offsets))


def _is_cleaned(batch: Mapping[str, Any]) -> bool:
    """Return `is_cleaned` of a batch that the driver holds and that is not torn."""
    is_sound = batch["crc_stored"] == batch["crc_computed"]
    is_thinned = batch["count"] < batch["last_offset"] - batch["base_offset"] + 1
    has_horizon = batch["attributes"] & DELETE_HORIZON
    return bool(is_sound and not _is_odd(batch) and (is_thinned or has_horizon))


def _hash(*numbers: int) -> int:
    """Return a signed 64-bit hash of some numbers."""
    digest = xxh3_64_digest(struct_of_bytes.pack(f"<{len(numbers)}q", *numbers))
    return int.from_bytes(digest, "big", signed=True)


def digest_of_batches() -> Column:
    """Return the digest of a group of batches: equal for equal batches, offsets and epochs."""
    return bit_xor(xxhash64("identity", "base_offset", "leader_epoch"))


def is_odd() -> Column:
    """Whether a sound batch has attributes that no broker stores, or more records than offsets, or
    is a control batch that is no marker."""
    is_sound = ~col("torn") & (col("crc_stored") == col("crc_computed"))
    offsets = col("last_offset") - col("base_offset") + 1
    counts_other = (col("count") < 0) | (col("count") > offsets)
    return is_sound & (has_odd_attributes() | counts_other | is_no_marker())


def has_odd_attributes() -> Column:
    """Whether a batch is of a kind that no broker stores."""
    is_of_none = (col("producer_id") < 0) | ~is_transactional()
    is_unknown = col("attributes").bitwiseAND(_STORED) != col("attributes")
    has_any = col("attributes").bitwiseAND(_OF_TRANSACTIONS) != 0
    return is_unknown | (has_any & is_of_none)


def is_transactional() -> Column:
    """Whether a batch is of a transaction, or its marker."""
    return col("attributes").bitwiseAND(TRANSACTIONAL) != 0


def is_no_marker() -> Column:
    """Whether a control batch ends no transaction."""
    return (col("attributes").bitwiseAND(CONTROL) != 0) & col("marker").isNull()


def is_cleaned() -> Column:
    """Whether compaction has visibly changed a sound batch: it has fewer records than offsets, as a
    filler and an empty batch have none, or the horizon of its tombstones."""
    is_sound = ~col("torn") & (col("crc_stored") == col("crc_computed"))
    is_thinned = col("count") < col("last_offset") - col("base_offset") + 1
    return is_sound & ~is_odd() & (is_thinned | has_horizon())


def has_horizon() -> Column:
    """Whether compaction has set the horizon of a batch's tombstones."""
    return col("attributes").bitwiseAND(DELETE_HORIZON) != 0


def _link() -> Column:
    """Return the hash of the place where a batch or run begins, xor that of where it ends."""
    return xxhash64("position", "base_offset").bitwiseXOR(xxhash64("end", "next_offset"))


def equal_logs(batches: DataFrame) -> dict[Replica, Replica]:
    """Return of each sound log the log of the partition that holds the same batches: the same one
    for all that are equal. None for the others, or if there are too many runs for the driver.
    """
    rows = local_rows(runs(batches))
    return {} if rows is None else equal_by_runs(rows.to_pylist())


def equal_by_runs(rows: Sequence[Mapping[str, Any]]) -> dict[Replica, Replica]:
    """Return `equal_logs` from the rows of `runs`; the segments may be of other sizes."""
    contents: dict[Replica, dict[int, list[int]]] = {}
    damaged: set[Replica] = set()
    for row in rows:
        replica = Replica(*(row[name] for name in REPLICA))
        if row["torn"] or row["has_bad_crc"]:
            damaged.add(replica)
            continue
        epoch = contents.setdefault(replica, {}).setdefault(row["leader_epoch"], [0, 0, 0])
        epoch[0] ^= row["digest"]
        epoch[1] += row["batches"]
        epoch[2] += row["bytes"]
    firsts: dict[tuple[object, ...], Replica] = {}
    return {
        replica: firsts.setdefault((replica.topic, replica.partition, repr(content)), replica)
        for replica in sorted(contents.keys() - damaged)
        for content in [sorted(contents[replica].items())]
    }


def log_facts(batches: DataFrame) -> dict[Replica, LogFacts]:
    """Return where each log with at least one batch begins and ends."""
    rows = local_rows(runs(batches))
    epochs = _ask_epochs(batches) if rows is None else _epochs_of(rows)
    name = itemgetter(*REPLICA)
    by_log = groupby(sorted(epochs, key=name), key=name)
    return {Replica(*name): _facts(list(rows)) for name, rows in by_log}


def _ask_epochs(batches: DataFrame) -> Sequence[_Epoch]:
    """Return one row per leader epoch of each log, from its runs, by a Spark query."""
    found: Sequence[_Epoch] = (
        runs(batches)
        .where(~col("torn"))
        .groupBy(*REPLICA, "leader_epoch")
        .agg(
            smallest_of(struct("segment", "position", "base_offset")).alias("first"),
            largest_of(struct("segment", "end", "next_offset")).alias("last"),
            largest_of("largest").alias("largest"),
            sum_of("length").alias("length"),
            bit_xor("seams").alias("seams"),
            bool_or("has_bad_crc").alias("has_bad_crc"),
            bit_xor("digest").alias("digest"),
            largest_of("cleaned_end").alias("cleaned_end"),
        )
        .collect()
    )
    return found


def _epochs_of(rows: pa.Table) -> Sequence[_Epoch]:
    """Return the rows of `_ask_epochs`, from runs that the driver holds."""
    name = itemgetter(*REPLICA, "leader_epoch")
    whole = sorted((row for row in rows.to_pylist() if not row["torn"]), key=name)
    return [
        _epoch_of(dict(zip((*REPLICA, "leader_epoch"), key, strict=True)), list(found))
        for key, found in groupby(whole, key=name)
    ]


def _epoch_of(name: dict[str, Any], found: Sequence[_Epoch]) -> _Epoch:
    return name | {
        "first": min(_place(row, "segment", "position", "base_offset") for row in found),
        "last": max(_place(row, "segment", "end", "next_offset") for row in found),
        "largest": max(row["largest"] for row in found),
        "length": sum(row["length"] for row in found),
        "seams": reduce(xor, (row["seams"] for row in found)),
        "has_bad_crc": any(row["has_bad_crc"] for row in found),
        "digest": reduce(xor, (row["digest"] for row in found)),
        "cleaned_end": max((row["cleaned_end"] or 0 for row in found), default=0),
    }


def _place(row: _Epoch, *names: str) -> Row:
    return Row(**{name: row[name] for name in names})


def _facts(epochs: Sequence[_Epoch]) -> LogFacts:
    first_offset = min(row["first"] for row in epochs)["base_offset"]
    log_end = max(row["last"] for row in epochs)["next_offset"]
    largest = max(row["largest"] for row in epochs)
    if largest <= first_offset + sum(row["length"] for row in epochs):
        log_end = largest
    seams = reduce(xor, (row["seams"] for row in epochs))
    epoch_ends = ascending(
        EpochEnd(row["leader_epoch"], row["last"]["next_offset"], row["length"]) for row in epochs
    )
    is_whole = (
        seams == first_offset ^ log_end
        and len(epoch_ends) == len(epochs)
        and not any(row["has_bad_crc"] for row in epochs)
    )
    digest = reduce(xor, (row["digest"] for row in epochs))
    cleaned_end = max(row["cleaned_end"] or 0 for row in epochs)
    return LogFacts(first_offset, log_end, epoch_ends, is_whole, digest, cleaned_end)
