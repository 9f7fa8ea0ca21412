"""Findings about transactions: those that are open for too long, and those whose markers are
missing.

While a transaction is open, consumers with `isolation.level=read_committed` do not get past its
first record. Its coordinator aborts it after its timeout, so one that is open for longer has a
coordinator that cannot write. One that is decided, and still open, has a partition whose leader
does not take its marker.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.findings import NAMED_MAX, Finding, Level, counted
from minibroker.protocol.types import TopicPartition

# Beyond the timeout: the coordinator looks every 10 s, and then writes.
GRACE_MS: Final = 30_000
DECIDED: Final = ("PrepareCommit", "PrepareAbort")


class OpenTransaction(NamedTuple):
    """A transactional id with an open transaction, as its coordinator describes it."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...] = ()


def of_transactions(
    found: Iterable[OpenTransaction], silent: Mapping[int, str], now_ms: int
) -> Iterator[Finding]:
    """Report open transactions that should be over, and brokers that do not say which
    transactional ids they keep, with the reason."""
    for node_id, reason in sorted(silent.items()):
        yield Finding(
            Level.NOTE,  # what keeps it from answering is a problem of its own
            f"broker {node_id} does not say which transactional ids it keeps: {reason}",
            "see why it is not ready",
        )
    late = [one for one in found if now_ms - one.started_ms > one.timeout_ms + GRACE_MS]
    for one in late[:NAMED_MAX]:
        open_s = (now_ms - one.started_ms) // 1000
        quoted = shlex.quote(one.transactional_id)
        if one.state in DECIDED:
            names = ", ".join(map(str, one.partitions[:NAMED_MAX]))
            yield Finding(
                Level.PROBLEM,
                f"the transaction of {one.transactional_id!r} is decided ({one.state}), and its"
                f" markers are not written after {open_s} s, to one or more of: {names}",
                "see why these partitions have no leader, or too few replicas in sync",
            )
        else:
            yield Finding(
                Level.PROBLEM,
                f"the transaction of {one.transactional_id!r} is open for {open_s} s, longer than"
                f" its timeout of {one.timeout_ms} ms",
                f"see whether __transaction_state can be written (`minibroker partition list`);"
                f" `minibroker transaction abort {quoted}` ends it",
            )
    if len(late) > NAMED_MAX:
        rest = counted(len(late) - NAMED_MAX, "more transaction")
        yield Finding(Level.PROBLEM, f"{rest} should be over", "see `minibroker transaction list`")
    if not late:
        yield Finding(Level.OK, "no transaction is open for longer than its timeout")
