"""The last line of a run: is what was acknowledged still there, and do the replicas agree?

Judged from the logs themselves, record by record, not from what anybody believes of them. A record
counts as there only with its value at the offset that was acknowledged; it is lost where no
replica has it so. The logs of brokers that are down are not looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from minibroker.broker.log.log import Log
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import decode_records

WHOLE_LOG_BYTES = 1 << 30


class Produced(NamedTuple):
    """Records that were appended in one batch: how the scenario calls them, and what they are."""

    label: str
    values: tuple[bytes, ...]
    offset: int


class Stored(NamedTuple):
    """A record as it lies in a log."""

    leader_epoch: int
    value: bytes | None


def records_of(log: Log) -> dict[int, Stored]:
    """Everything in a log, by offset."""
    found = {}
    for part in log.read(log.log_start, WHOLE_LOG_BYTES, log.log_end):
        data = part.read()
        for position, header in iterate_headers(data):
            for record in decode_records(data[position : position + header.size], header):
                found[record.offset] = Stored(header.leader_epoch, record.value)
    return found


def judge(acknowledged: Sequence[Produced], logs: Mapping[int, Log | None], leader: int) -> str:
    """The verdict over what was acknowledged; a broker that is down has no log here."""
    stored = {broker: records_of(log) for broker, log in logs.items() if log is not None}
    nowhere = "LOST" if len(stored) == len(logs) else "on none that runs"
    fates = []
    for produced in acknowledged:
        holders = [broker for broker, records in stored.items() if _is_whole(produced, records)]
        where = f"on {_listed(holders)}" if holders else nowhere
        if holders and leader in stored and leader not in holders:
            where += ", NOT on the leader"
        copies = max((_copies(produced, stored[holder]) for holder in holders), default=1)
        if copies > 1:
            where += f", stored {copies} TIMES"
        fates.append(f"{produced.label} {where}")
    told = "; ".join(dict.fromkeys(fates)) or "nothing"
    return f"verdict: acknowledged: {told}. {_agreement(stored)}"


def _copies(produced: Produced, records: Mapping[int, Stored]) -> int:
    """Return how often a log holds a batch of one record; 1 for larger ones, which are alike."""
    if len(produced.values) > 1:
        return 1
    return sum(stored.value == produced.values[0] for stored in records.values())


def _is_whole(produced: Produced, records: Mapping[int, Stored]) -> bool:
    return all(
        offset in records and records[offset].value == value
        for offset, value in enumerate(produced.values, produced.offset)
    )


def _agreement(stored: Mapping[int, Mapping[int, Stored]]) -> str:
    ends = {broker: max(records, default=-1) + 1 for broker, records in stored.items()}
    shortest = min(ends.values(), default=0)
    for offset in range(shortest):
        if len({records.get(offset) for records in stored.values()}) > 1:
            return f"The replicas DIFFER at offset {offset}."
    if len(set(ends.values())) > 1:
        behind = [broker for broker, end in ends.items() if end == shortest]
        return f"The replicas agree up to {shortest}, where {_listed(behind)} ends."
    return "The replicas agree."


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
