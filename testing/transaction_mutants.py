"""Mutants of transactions: bugs that their simulation must find; `mutants.mutated` plants them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from minibroker.broker.coordination.replay import Chunk
from minibroker.broker.groups.records import Key, Value
from minibroker.broker.groups.shard import Shard
from minibroker.broker.log import log
from minibroker.broker.log.cleaning import Copier
from minibroker.broker.log.loading import Loaded, load
from minibroker.broker.log.transaction_index import TransactionIndex
from minibroker.broker.log.unstable import UnstableTransactions
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.handlers import markers, producer_id
from minibroker.broker.transactions.registry import TransactionRegistry
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.table import TransactionTable
from minibroker.broker.transactions.transaction import (
    Decision,
    Producer,
    Transaction,
    begin_session,
)
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import NO_OFFSET, ErrorCode
from minibroker.protocol.messages.transactions import TransactionPartitions
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.records.control import read_end_marker
from minibroker.protocol.types import Buffer, TopicPartition
from minibroker.testing.rule import Rule


def _all_that_is_committed(_unstable: UnstableTransactions, high_watermark: int) -> int:
    """Let open transactions not hold the last stable offset back."""
    return high_watermark


def _once_written(_markers: object, _item: object, _now: float) -> bool:
    """Answer a marker that only the leader has, and that a failover may lose."""
    return True


def _not_at_all(_index: TransactionIndex, _offset: int) -> None:
    """Keep the aborted transactions whose markers were truncated."""


def _in_the_present_epoch(
    present: Transaction | None,
    expected: Producer | None,
    timeout_ms: int,
    fresh_id: int,
    now_ms: int,
) -> Decision:
    """Begin a session without a new epoch, so that it fences no process."""
    decision = begin_session(present, expected, timeout_ms, fresh_id, now_ms)
    session = decision.write
    if present is None or session is None or session.state is not State.EMPTY:
        return decision
    session = replace(session, producer_epoch=present.producer_epoch)
    return Decision(write=session, producer=session.producer)


def _at_once(shard: Shard, _chunk: Chunk, offset: int, key: Key, value: Value | None) -> None:
    """Let the offsets of a transaction count before it commits."""
    shard.table.replay(offset, key, value)


def _whatever_is_pending(
    table: TransactionTable, now_ms: int, ids: Iterable[str]
) -> Iterator[tuple[str, Transaction]]:
    """Abort a late transaction whose commit is being written."""
    for key in ids:
        present = table.get(key)
        if present is not None and present.is_late(now_ms):
            yield key, present


def _only_its_own(registry: TransactionRegistry, _now: float) -> Turns[None]:
    """Let a new coordinator forget what earlier ones have decided."""
    registry._table.report_decided()
    yield from ()


def _whatever_is_answered(
    appends: VerifiedAppends,
    asked: TransactionPartitions,
    version: int,
    _errors: Mapping[TopicPartition, int],
    now: float,
) -> None:
    """Append a batch although its coordinator does not know the transaction."""
    known = {TopicPartition(*name): ErrorCode.NONE for name in asked.partitions}
    ANSWER(appends, asked, version, known, now)


def _no_abort_marker(copier: Copier, batch: memoryview, header: BatchHeader) -> Buffer | None:
    """Let ABORT markers go at the next compaction."""
    marker = read_end_marker(batch, header)
    if marker is None or marker.is_commit or header.base_offset >= copier._newest.end:
        return KEEP_MARKER(copier, batch, header)
    copier._transactions.begun.discard(header.producer_id)
    copier.has_changed = True
    return None


def _without_open_transactions(*arguments: Any) -> Loaded:
    """Let a log that is opened forget which transactions are open."""
    loaded = LOAD(*arguments)
    for _, entry in loaded.producers.entries():
        entry.transaction_start = NO_OFFSET
    loaded.producers.unstable = UnstableTransactions()
    return loaded


ANSWER: Final = VerifiedAppends.answer
KEEP_MARKER: Final = Copier._keep_marker
LOAD: Final = load

TRANSACTION_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "ignore-open-transactions": Rule(
            UnstableTransactions, "last_stable", _all_that_is_committed
        ),
        "answer-uncommitted-markers": Rule(markers._Markers, "_is_final", _once_written),
        "keep-truncated-aborts": Rule(TransactionIndex, "truncate", _not_at_all),
        "fence-without-an-epoch": Rule(producer_id, "begin_session", _in_the_present_epoch),
        "offsets-before-the-end": Rule(Shard, "replay_record", _at_once),
        "time-out-a-commit": Rule(TransactionTable, "late", _whatever_is_pending),
        "forget-decisions-in-failover": Rule(TransactionRegistry, "start", _only_its_own),
        "append-unverified": Rule(VerifiedAppends, "answer", _whatever_is_answered),
        "compact-abort-markers": Rule(Copier, "_keep_marker", _no_abort_marker),
        "recover-without-open": Rule(log, "load", _without_open_transactions),
    }
)
