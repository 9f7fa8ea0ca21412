"""The tables of the audit, and the type of a finding.

Each table has one Arrow schema, so that readers, checks and report use the same columns. Offsets
count records; positions are bytes in a file; times are ms since the Unix epoch. Hashes are unsigned
64-bit integers on disk and are stored as signed ones; a CRC of 32 bits fits in an int64 as it is.
A replica is named by (broker, topic, partition).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from minibroker.audit.files.cluster import Assignment
    from minibroker.protocol.types import TopicPartition

REPLICA_FIELDS: Final = (
    pa.field("broker", pa.int32()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
)

# One row per batch. A stretch of bytes that is not a batch is one row with `torn` true, and
# `problem` says what is wrong with it; such a row has a position and a size, and null in every
# column of a header. `problem` is null for a sound batch and for one whose only fault is its CRC.
BATCHES: Final = pa.schema(
    [
        *REPLICA_FIELDS,
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
        # xxh3 from the magic byte on: equal for copies of a batch at another offset or epoch
        pa.field("identity", pa.int64()),
        pa.field("torn", pa.bool_()),
        pa.field("problem", pa.string()),
        pa.field("marker", pa.int8()),  # of a control batch: 0 ABORT, 1 COMMIT, null: another one
    ]
)

# One row per record of a whole, sound batch.
RECORDS: Final = pa.schema(
    [
        *REPLICA_FIELDS,
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

# One row per replica and range of offsets (files/digests.py) of what its records are. The hashes
# have nothing in common with those that Spark computes.
_DIGEST_FIELDS: Final = (
    pa.field("range", pa.int64()),
    pa.field("count", pa.int64()),
    pa.field("places_xor", pa.int64()),
    pa.field("places_sum", pa.int64()),
    pa.field("offsets_xor", pa.int64()),
    pa.field("first_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
)
RECORD_DIGESTS: Final = pa.schema([*REPLICA_FIELDS, *_DIGEST_FIELDS])

# One row per batch whose records cannot be read although its CRC is right; `problem` says why.
BODIES: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("segment", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)

# One row per entry of an offset index (`kind` "index") or time index ("timeindex"). `problem` says
# what is wrong with the entry, null if nothing is. A file that cannot be read is one row without an
# entry.
INDEX_ENTRIES: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("segment", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("entry", pa.int32()),  # its number in the file
        pa.field("offset", pa.int64()),
        pa.field("position", pa.int64()),  # in the segment; null in a time index
        pa.field("timestamp", pa.int64()),  # null in an offset index
        pa.field("problem", pa.string()),
    ]
)

# One row per log at hand: its bounds, and how far the audit judges its partition.
# `high_watermark`, `recovery_point` and `log_start` are from the checkpoints, null if these do not
# name the log; `first_offset` and `log_end` are from the batches. `in_isr` and `is_leader` are null
# if no metadata were given. `kept_end` is the log's end after the truncation to the leader's epochs
# (A11). Below `judged_end`, which all replicas of a partition share, every in-sync replica must
# hold what the replica with `is_reference` holds. `left_end` is the log's end when its broker
# stopped in order, null if the metadata do not have it. `led_end` is how far the leader's log went,
# by the logs that replicated from it in its own epoch; null where its own log says so.
# `committed_end`, which all replicas of a partition share, is the largest high watermark that can
# be believed. `is_compacted`: the topic's cleanup.policy has compact. `may_be_cleaned`: it has, or
# a broker's checkpoint says that it has compacted the partition. `cleaned_end` is the offset behind
# the last batch that compaction has visibly changed, 0 if there is none: each replica is compacted
# at its own time. `written_ms` is when a segment of the log was last written.
REPLICAS: Final = pa.schema(
    [
        *REPLICA_FIELDS,
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
        pa.field("led_end", pa.int64()),
        pa.field("committed_end", pa.int64()),
        pa.field("state", pa.string()),  # of its broker: "stopped", "killed", "live"
        pa.field("may_be_cleaned", pa.bool_()),
        pa.field("cleaned_end", pa.int64()),
        pa.field("delete_retention_ms", pa.int64()),  # null unless it was set for the topic
        pa.field("written_ms", pa.int64()),
    ]
)

# One row per entry of a `leader-epoch-checkpoint`.
EPOCH_STARTS: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("epoch", pa.int32()),
        pa.field("start", pa.int64()),
    ]
)

# One row per producer in a `.snapshot`, and one without a producer; `offset` is the one in the
# file's name: the snapshot covers the batches below it.
PRODUCERS: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("offset", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("last_sequence", pa.int32()),
        pa.field("last_offset", pa.int64()),
    ]
)

# One row per transaction in a log, and per marker that ends none there. `outcome` is "commit",
# "abort", or "open" if the log has no marker of it. `first_offset` is null in the row of a marker
# alone: the transaction had no records in this log, or they are gone. `last_offset` is that of its
# last record, `records` how many are left, `first_ms` the largest timestamp of its first batch.
# `producer_epoch` is that of its batches; the marker may have the next one. `stable` is the last
# stable offset right behind the marker. `is_first`: no marker of the producer comes before it, so
# its first batches may lie below the log's first. `uncommitted` are the offsets of its records,
# unless it was committed.
TRANSACTIONS: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("outcome", pa.string()),
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("first_ms", pa.int64()),
        pa.field("marker_offset", pa.int64()),
        pa.field("marker_epoch", pa.int16()),
        pa.field("marker_segment", pa.int64()),
        pa.field("marker_position", pa.int64()),
        pa.field("stable", pa.int64()),
        pa.field("is_first", pa.bool_()),
        pa.field(
            "uncommitted",
            pa.list_(pa.struct([pa.field("first", pa.int64()), pa.field("last", pa.int64())])),
        ),
    ]
)

# One row per entry of a `.txnindex`, and one without an entry for each segment whose file must be
# complete. `problem` says why a file, or an entry, cannot be read.
ABORTED: Final = pa.schema(
    [
        *REPLICA_FIELDS,
        pa.field("segment", pa.int64()),
        pa.field("entry", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("stable", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)

# One row per record of `__transaction_state`, of the logs that others are compared with. `home` is
# the partition and `at` the offset of the record in it; `state` is null if it deletes the id. In
# the states PrepareCommit and PrepareAbort producer id and epoch are those of the markers. A record
# that cannot be read has a `problem` alone.
COORDINATED: Final = pa.schema(
    [
        pa.field("home", pa.int32()),
        pa.field("at", pa.int64()),
        pa.field("transactional_id", pa.string()),
        pa.field("state", pa.string()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("timeout_ms", pa.int32()),
        pa.field("partitions", pa.list_(pa.struct([*REPLICA_FIELDS[1:]]))),
        pa.field("updated_ms", pa.int64()),
        pa.field("started_ms", pa.int64()),
        pa.field("previous_producer_id", pa.int64()),
        pa.field("next_producer_id", pa.int64()),
        pa.field("version", pa.int16()),
        pa.field("problem", pa.string()),
    ]
)

# One row per event that a client wrote in its ledger. `event` is "acked", "failed" (the record may
# have been stored) or "shown" (to a consumer); others describe the ledger itself (`Event` in
# files/ledger.py). `offset` is null if the client did not learn it, `topic_id` (hex) if the ledger
# does not have it. `group` is that of the consumer, null of a producer or a consumer without one. A
# "committed" or "refused" row is of that group's commit of `offset`, by `member` of `generation` as
# far as the ledger says, with the `error` of a refused one. "jumped": that group's member has set
# its position.
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
        pa.field("member", pa.string()),
        pa.field("generation", pa.int32()),
        pa.field("error", pa.string()),
    ]
)

# The same of the rows of LEDGER: `line` is the first one, `began` and `ended` the least and the
# greatest timestamp. Rows without an offset have no range.
LEDGER_DIGESTS: Final = pa.schema(
    [
        pa.field("ledger", pa.string()),
        pa.field("event", pa.string()),
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        *_DIGEST_FIELDS,
        pa.field("line", pa.int64()),
        pa.field("began", pa.int64()),
        pa.field("ended", pa.int64()),
    ]
)

# One row per record of the offsets topic: a commit, or the generation of a group. `home` is the
# partition of the offsets topic and `at` the offset of the record in it. `offset` is null if the
# record deletes the commit, `generation` if it deletes the group; `members` (checks/commit_history)
# is null in commits. A record that cannot be read has a `problem`, and of its key what can be read.
STORED: Final = pa.schema(
    [
        pa.field("broker", pa.int32()),
        pa.field("home", pa.int32()),
        pa.field("at", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("time_ms", pa.int64()),
        pa.field("generation", pa.int32()),
        pa.field("members", pa.string()),
        pa.field("problem", pa.string()),
    ]
)

# What the records of STORED amount to. One row per replica, group and partition: the last commit,
# whose `offset` is null if it was deleted; `leader_epoch` is -1 if the client did not know it.
# `highest` is the largest offset ever committed, `commits` and `deletions` count records,
# `went_back` the commits below the one before, of which `back` describes the last. `by` says who
# can have committed. `dropped` is what was deleted although a member had the partition. A row with
# an empty topic is of a group: `offset` is its generation, `by` its members. A row with a `problem`
# is of one record; it `is_grave` unless a later record has replaced it. `before` is the record that
# it has changed places with.
COMMITTED: Final = pa.schema(
    [
        pa.field("broker", pa.int32()),
        pa.field("home", pa.int32()),
        pa.field("at", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("highest", pa.int64()),
        pa.field("commits", pa.int64()),
        pa.field("deletions", pa.int64()),
        pa.field("went_back", pa.int64()),
        pa.field("back", pa.string()),
        pa.field("by", pa.string()),
        pa.field("dropped", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("is_grave", pa.bool_()),
        pa.field("before", pa.int64()),
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
        pa.field("more", pa.int64()),  # findings of the same check and replica that were left out
    ]
)


class Scan(StrEnum):
    """Where files are read: in the driver, in Spark's tasks, or in the driver if they are small."""

    AUTO = "auto"
    SPARK = "spark"
    DRIVER = "driver"


class Severity(StrEnum):
    """The severity of a finding: a broken promise, a fault that may become one, or a notice."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of FINDINGS; None where a column does not apply."""

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
    more: int | None = None


@dataclass(frozen=True)
class Tables:
    """The input of the checks: Spark DataFrames of the schemas above.

    `topic_ids` are the ids of the judged topics, by name; `deleted_ids` those of topics that the
    metadata know as deleted. `ledgers` are the names of the files that were given as ledgers, as
    the column `ledger` has them. `is_ledger_complete`: they cover all records that were sent.
    `ledger` is None if none was given; `stored` and `committed` if there is no offsets topic,
    `coordinated` if there is no `__transaction_state`.
    `assignments` is None without metadata. `records` builds the table of some topics' records.
    `bodies` covers the reference logs only: equal batches need not be decoded twice. `bodies_of`
    builds the table of all logs of some partitions. `aborted` reads the table ABORTED, which only
    logs with transactions need; `as_of_ms` is the time at which the logs are judged.
    `ledger_digests` and `record_digests` are of the same rows as `ledger` and `records`; None if
    the ledgers are so small that their rows are compared at once.
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
    deleted_ids: frozenset[str] = frozenset()
    ledgers: tuple[str, ...] = ()
    is_ledger_complete: bool = False
    assignments: "Mapping[TopicPartition, Assignment] | None" = None
    stored: "DataFrame | None" = field(default=None)
    committed: "DataFrame | None" = field(default=None)
    bodies_of: "Callable[[Collection[TopicPartition]], DataFrame] | None" = field(default=None)
    aborted: "Callable[[], DataFrame] | None" = field(default=None)
    coordinated: "DataFrame | None" = field(default=None)
    as_of_ms: int = 0
    ledger_digests: "DataFrame | None" = field(default=None)
    record_digests: "Callable[[Collection[str]], DataFrame] | None" = field(default=None)
