"""The tables that the audit works on, and what a finding is.

One Arrow schema a table, so that whoever reads files, whoever checks and whoever writes a report
mean the same columns. Offsets count records; positions are bytes in a file; times are ms since the
Unix epoch. Integers of 64 bits that have no sign on disk (hashes) are stored with one; the CRC of
32 bits fits in an int64 as it is. A replica is named by (broker, topic, partition).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPLICA: Final = (
    pa.field("broker", pa.int32()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
)

# One row a batch. Bytes that are no batch are one row with `torn` true, whose `problem` says what
# is wrong with them; such a row has a position and a size, and null in every column of a header.
# `problem` is null for a sound batch and for one whose only fault is its CRC.
BATCHES: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("segment", pa.int64()),  # the base offset in the file's name
        pa.field("position", pa.int64()),
        pa.field("size", pa.int64()),  # bytes of the whole batch
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("base_sequence", pa.int32()),
        pa.field("count", pa.int32()),
        pa.field("max_timestamp", pa.int64()),
        pa.field("attributes", pa.int16()),
        pa.field("crc_stored", pa.int64()),
        pa.field("crc_computed", pa.int64()),
        # xxh3 of all from the magic byte on: equal for copies of a batch at another offset or epoch
        pa.field("identity", pa.int64()),
        pa.field("torn", pa.bool_()),
        pa.field("problem", pa.string()),
    ]
)

# One row a record of a whole, sound batch.
RECORDS: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
    ]
)

# One row a batch whose records cannot be read although its CRC is right, and in `problem` why.
BODIES: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("segment", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)

# One row an entry of an offset index (`kind` "index") or time index ("timeindex"): what it says,
# and in `problem`, null for a right entry, in what it is wrong. A file that cannot be read is one
# row without an entry.
INDEX_ENTRIES: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("segment", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("entry", pa.int32()),  # its number in the file
        pa.field("offset", pa.int64()),
        pa.field("position", pa.int64()),  # in the segment; null in a time index
        pa.field("timestamp", pa.int64()),  # null in an offset index
        pa.field("problem", pa.string()),
    ]
)

# One row a log that is there: how far it goes, and how far the audit judges the partition.
# `high_watermark`, `recovery_point`, `log_start` are from the checkpoints, null if they say
# nothing; `first_offset` and `log_end` are from the batches. `in_isr` and `is_leader` are null
# where no metadata was given. `kept_end` is the log's end after the truncation that the leader's
# epochs demand (A11). Below `judged_end`, which all replicas of a partition share, every replica
# that is in sync must hold the same: what the one with `is_reference` holds. `left_end` is where
# the log ended when its broker had stopped in order, null where the metadata do not say that. Logs
# of a compacted topic have gaps, each its own.
REPLICAS: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("is_leader", pa.bool_()),
        pa.field("in_isr", pa.bool_()),
        pa.field("is_reference", pa.bool_()),
        pa.field("is_compacted", pa.bool_()),
        pa.field("log_start", pa.int64()),
        pa.field("first_offset", pa.int64()),
        pa.field("log_end", pa.int64()),
        pa.field("last_epoch", pa.int32()),
        pa.field("high_watermark", pa.int64()),
        pa.field("recovery_point", pa.int64()),
        pa.field("kept_end", pa.int64()),
        pa.field("judged_end", pa.int64()),
        pa.field("left_end", pa.int64()),
        pa.field("state", pa.string()),  # of its broker: "stopped", "killed", "live"
    ]
)

# One row an entry of a `leader-epoch-checkpoint`.
EPOCH_STARTS: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("epoch", pa.int32()),
        pa.field("start", pa.int64()),
    ]
)

# One row a producer in a `.snapshot`; `offset` is the file's name, up to which it speaks.
PRODUCERS: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("offset", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("last_sequence", pa.int32()),
        pa.field("last_offset", pa.int64()),
    ]
)

# One row a record that a client was told about. `event` is "acked", "failed" (may be there or not)
# or "shown" (to a consumer); others tell of the ledger itself (`Event` in files/ledger.py).
# `offset` is null where the client was not told it, `topic_id` (hex) where its ledger does not say
# it; `group` is null but where a group has "committed" that offset.
LEDGER: Final = pa.schema(
    [
        pa.field("ledger", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("event", pa.string()),
        pa.field("acks", pa.int16()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("topic_id", pa.string()),
        pa.field("group", pa.string()),
    ]
)

# One row for what one replica of the offsets topic holds last of a group and a partition: `offset`
# is null where it was forgotten, `highest` the largest that was ever told. `home` is the partition
# of the offsets topic and `at` the offset there. A record that nobody can read is a row with only
# its place and a `problem`.
COMMITTED: Final = pa.schema(
    [
        pa.field("broker", pa.int32()),
        pa.field("home", pa.int32()),
        pa.field("at", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("highest", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)

FINDINGS: Final = pa.schema(
    [
        pa.field("check", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("broker", pa.int32()),
        pa.field("other_broker", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("segment", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)


class Severity(StrEnum):
    """What a finding means: a promise is broken; it may become so; or good to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of FINDINGS; None where a column has nothing to say."""

    check: str
    severity: Severity
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    other_broker: int | None = None
    offset: int | None = None
    segment: int | None = None
    position: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Tables:
    """What a check may look at: Spark DataFrames of the schemas above.

    `topic_ids` are those of the topics that are judged, by name, as known at `known_at_ms` from the
    metadata (None: from the logs). `is_ledger_complete`: the ledgers tell of all that was sent.
    `ledger` is None where none was given, `committed` where there is no offsets topic. `records`
    makes the table of some topics' records. `bodies` is of the logs that the others are compared
    with, for what is the same need not be read twice.
    """

    batches: "DataFrame"
    replicas: "DataFrame"
    epoch_starts: "DataFrame"
    producers: "DataFrame"
    index_entries: "DataFrame"
    bodies: "DataFrame"
    records: "Callable[[Collection[str]], DataFrame]"
    ledger: "DataFrame | None" = field(default=None)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    known_at_ms: int | None = None
    is_ledger_complete: bool = False
    committed: "DataFrame | None" = field(default=None)
