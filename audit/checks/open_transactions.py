"""What a transaction that is open at the end of a log means, by what its coordinator has stored.

A transaction stays open until its coordinator writes its marker. The coordinator does that once the
producer ends the transaction, or when it is open for longer than its timeout. So while its
coordinator knows it, an open transaction is no fault, until that time is over. One that no
coordinator knows never ends: readers of committed records do not get past it.

A coordinator stores a state before anything follows from it: that the transaction has a partition
before a batch of it is taken there, the decision before the markers are written, and that it is
complete once all markers are committed. So where brokers are down, the judged part of
`__transaction_state` has what must be known of the judged part of every log.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from minibroker.audit.files.transaction_states import DECIDED, ONGOING, StateRecord
from minibroker.audit.model import Severity
from minibroker.protocol.types import TopicPartition

TIMEOUT_MS: Final = 15 * 60_000  # transaction.max.timeout.ms: the longest that a producer may have
# For how long a decided transaction may lack markers before that is a warning.
MARKING_MS: Final = 60_000
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class OpenTransaction(NamedTuple):
    """A transaction that is open in a log, from `first_offset` on."""

    name: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    first_ms: int


class Known(NamedTuple):
    """The newest record of a transactional id, in the partition `home`."""

    home: int
    record: StateRecord


@dataclass(frozen=True)
class Coordinators:
    """What the coordinators have stored last of each id. `is_whole`: nothing can be missing."""

    known: Iterable[Known]
    is_whole: bool
    _by_producer: dict[int, Known] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Look the ids up by producer: by the present one first."""
        for each in self.known:
            for producer_id in (each.record.previous_producer_id, each.record.next_producer_id):
                self._by_producer.setdefault(producer_id, each)
        for each in self.known:
            self._by_producer[each.record.producer_id] = each

    def of_producer(self, producer_id: int) -> Known | None:
        """Return the id that a producer has, or had."""
        return self._by_producer.get(producer_id)


class OpenVerdict(NamedTuple):
    """What an open transaction means. `transactional_id` and `state` are None if not known."""

    severity: Severity
    why: str
    transactional_id: str | None = None
    state: str | None = None
    is_hanging: bool = False


def judge_open(
    found: OpenTransaction, coordinators: Coordinators | None, as_of_ms: int, *, is_live: bool
) -> OpenVerdict:
    """Return what an open transaction means at a time. On running brokers it may end at any moment,
    and its coordinator may have stored more than was read: it is never a fault."""
    known = coordinators.of_producer(found.producer_id) if coordinators is not None else None
    if coordinators is None:
        is_late = as_of_ms - found.first_ms > TIMEOUT_MS and not is_live
        severity = Severity.WARNING if is_late else Severity.INFO
        return OpenVerdict(severity, "no log of its coordinator was given")
    if known is None:
        if is_live:
            return OpenVerdict(Severity.INFO, "its coordinator has not stored it yet")
        severity = Severity.ERROR if coordinators.is_whole else Severity.WARNING
        why = "no coordinator knows its producer, so none will end it"
        return OpenVerdict(severity, why, is_hanging=True)
    verdict = _judge_known(found, known.record, as_of_ms)
    return verdict._replace(severity=Severity.INFO, is_hanging=False) if is_live else verdict


def _judge_known(found: OpenTransaction, record: StateRecord, as_of_ms: int) -> OpenVerdict:
    name, state = record.transactional_id, record.state
    said = f"of transactional id {name!r}, which is in state {state}"
    said += f" (epoch {record.producer_epoch})"
    has_partition = found.name in record.partitions
    if state == ONGOING and has_partition and record.producer_epoch == found.producer_epoch:
        late_ms = as_of_ms - record.started_ms - record.timeout_ms
        why = f"{said}; its timeout is {in_time(record.timeout_ms)}"
        if late_ms <= 0:
            return OpenVerdict(Severity.INFO, why, name, state)
        why += f" and over since {in_time(late_ms)}: its coordinator should have aborted it"
        return OpenVerdict(Severity.WARNING, f"{why}; {_abort(name)}", name, state)
    if state in DECIDED and has_partition:
        decided_ms = as_of_ms - record.updated_ms
        why = f"{said} since {in_time(decided_ms)}: the marker is not written here yet"
        severity = Severity.INFO if decided_ms <= MARKING_MS else Severity.WARNING
        return OpenVerdict(severity, why, name, state)
    why = f"{said} and does not have it: no coordinator will end it"
    return OpenVerdict(Severity.ERROR, why, name, state, is_hanging=True)


def in_words(found: OpenTransaction, verdict: OpenVerdict, as_of_ms: int) -> str:
    """Return an open transaction as the detail of a finding."""
    open_ms = as_of_ms - found.first_ms
    is_hanging = "hangs" if verdict.is_hanging else "is open"
    return (
        f"the transaction of producer {found.producer_id} (epoch {found.producer_epoch})"
        f" {is_hanging} since {in_time(open_ms)}; {verdict.why}"
    )


def in_time(ms: int) -> str:
    """Return a duration in its largest whole unit: `90 s`, `3 min`."""
    for size, unit in _UNITS:
        if ms >= 2 * size:
            return f"{ms // size:,} {unit}"
    return f"{max(0, ms):,} ms"


def _abort(transactional_id: str) -> str:
    return f"to do: minibroker transaction abort {shlex.quote(transactional_id)}"


def newest(rows: Iterable[Any]) -> list[Known]:
    """Return the newest records of ids, from rows of COORDINATED."""
    found: list[Known] = []
    for row in rows:
        columns: dict[str, Any] = {name: row[name] for name in StateRecord._fields}
        columns["partitions"] = tuple(TopicPartition(*each) for each in row["partitions"] or ())
        found.append(Known(row["home"], StateRecord(**columns)))
    return found
