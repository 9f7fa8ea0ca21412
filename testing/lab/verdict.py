"""The verdict of a run: are acknowledged records still there, and do the replicas agree?

It is judged from the logs themselves, record by record. A record counts as there only with its
value at the offset that was acknowledged; it is lost if no replica has it so. The logs of brokers
that are down are not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.broker.log.log import Log
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import Buffer

WHOLE_LOG_BYTES = 1 << 30


class Produced(NamedTuple):
    """Records that were appended in one batch: their name in the scenario, and their values."""

    label: str
    values: tuple[bytes, ...]
    offset: int


class Stored(NamedTuple):
    """A record in a log."""

    leader_epoch: int
    value: bytes | None


def records_of(log: Log) -> dict[int, Stored]:
    """Return all records of a log, by offset."""
    found = {}
    for part in log.read(log.log_start, WHOLE_LOG_BYTES, log.log_end):
        found.update(records_in(part.read()))
    return found


def records_in(data: Buffer) -> dict[int, Stored]:
    """Return the records of some batches, by offset."""
    return {
        record.offset: Stored(header.leader_epoch, record.value)
        for position, header in iterate_headers(data)
        for record in decode_records(data[position : position + header.size], header)
    }


def judge(
    acknowledged: Sequence[Produced],
    unanswered: Sequence[Produced],
    logs: Mapping[int, Log | None],
    leader: int,
) -> str:
    """Return the verdict about acknowledged records, and about those sent with acks=0. A broker
    that is down has no log here."""
    running = {broker: log for broker, log in logs.items() if log is not None}
    evidence = Evidence(
        {broker: records_of(log) for broker, log in running.items()},
        {broker: log.log_start for broker, log in running.items()},
        leader,
        is_complete=len(running) == len(logs),
    )
    text = f"acknowledged: {evidence.fates(acknowledged) or 'nothing'}"
    if unanswered:
        text += f". Sent with acks=0: {evidence.fates(unanswered)}"
    return f"verdict: {text}. {evidence.agreement()}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The records of the logs, and where the logs start, by broker. `is_complete`: every broker
    runs, so a record that is not in these logs is lost."""

    stored: Mapping[int, Mapping[int, Stored]]
    log_starts: Mapping[int, int]
    leader: int
    is_complete: bool

    def fates(self, batches: Sequence[Produced]) -> str:
        """Return what has become of these batches."""
        return "; ".join(dict.fromkeys(f"{each.label} {self._fate(each)}" for each in batches))

    def _fate(self, produced: Produced) -> str:
        holders = [broker for broker, held in self.stored.items() if _is_whole(produced, held)]
        if not holders:
            if produced.offset < self.log_starts.get(self.leader, 0):
                return "deleted by retention"
            return "LOST" if self.is_complete else "on none that runs"
        fate = f"on {_listed(holders)}"
        if self.leader in self.stored and self.leader not in holders:
            fate += ", NOT on the leader"
        copies = max(_copies(produced, self.stored[holder]) for holder in holders)
        return f"{fate}, stored {copies} TIMES" if copies > 1 else fate

    def agreement(self) -> str:
        """Return whether the logs agree, where all of them have records."""
        starts, logs = self.log_starts, self.stored
        ends = {broker: max(logs[broker], default=starts[broker] - 1) + 1 for broker in logs}
        shortest = min(ends.values(), default=0)
        for offset in range(max(starts.values(), default=0), shortest):
            if len({held.get(offset) for held in logs.values()}) > 1:
                return f"The replicas DIFFER at offset {offset}."
        if len(set(ends.values())) > 1:
            behind = [broker for broker, end in ends.items() if end == shortest]
            return f"The replicas agree up to {shortest}, where {_listed(behind)} ends."
        return "The replicas agree."


def _copies(produced: Produced, records: Mapping[int, Stored]) -> int:
    """Return how often a log holds a batch of one record; 1 for larger ones, which are alike."""
    first, *others = produced.values
    return 1 if others else sum(stored.value == first for stored in records.values())


def _is_whole(produced: Produced, records: Mapping[int, Stored]) -> bool:
    return all(
        offset in records and records[offset].value == value
        for offset, value in enumerate(produced.values, produced.offset)
    )


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
