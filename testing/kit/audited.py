"""Whether the files of a cluster keep what brokers promise, after a test.

The files are read by the audit's own reader (`audit.files`), which needs the extra `audit`, without
Spark. For each partition, below its high watermark: no batch is damaged, all replicas in sync hold
the same, and each record that a client of the cluster was told of with acks=all is there. What else
the audit checks (sequences, epochs, offsets of groups, indexes) only `minibroker audit run` does.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.audit.files.directories import LogDirectory, Replica, find_brokers
from minibroker.audit.files.ledger import Event, ledger_chunks, read_chunk
from minibroker.audit.files.records import read_records
from minibroker.audit.files.segments import scan_segment
from minibroker.testing.kit.state import PartitionState, numbers

SHOWN_MAX: Final = 10
ACKS_ALL: Final = -1
# Records by offset: key and value.
Contents: TypeAlias = Mapping[int, tuple[bytes | None, bytes | None]]


class LogsWrong(AssertionError):
    """The files of a cluster do not keep a promise; the text has a sentence for each."""


class _Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    identity: int  # the same for the same bytes


def check_logs(
    data_dirs: Sequence[Path], partitions: Iterable[PartitionState], ledgers: Sequence[Path]
) -> None:
    """Raise `LogsWrong` if something is wrong below the high watermarks of these partitions.

    `ledgers` are what the clients of the cluster have written down.
    """
    brokers = find_brokers(data_dirs)
    logs = {log.replica: log for broker in brokers for log in broker.logs}
    acknowledged = _acknowledged(ledgers)
    wrong: list[str] = []
    for state in partitions:
        name = f"{state.topic}-{state.partition}"
        kept: dict[int, LogDirectory] = {}
        for broker in sorted(state.isr):
            log = logs.get(Replica(broker, state.topic, state.partition))
            if log is None:
                wrong.append(f"broker {broker} is in sync of {name} and has no log of it")
            else:
                kept[broker] = log
        batches = {broker: list(_batches(log, state, wrong)) for broker, log in kept.items()}
        wrong += _differences(name, batches)
        expected = acknowledged.get((state.topic, state.partition), {})
        for broker, log in kept.items():
            wrong += _missing(f"{name} of broker {broker}", log, expected, state.high_watermark)
    if wrong:
        more = [f"and {len(wrong) - SHOWN_MAX} more"] if len(wrong) > SHOWN_MAX else []
        raise LogsWrong("\n".join([*wrong[:SHOWN_MAX], *more]))


def _batches(log: LogDirectory, state: PartitionState, wrong: list[str]) -> Iterator[_Batch]:
    """The batches of a replica below the high watermark; what is damaged goes to `wrong`."""
    place = f"{log.topic}-{log.partition} of broker {log.broker}"
    next_offset = None
    for segment in log.segments:
        for rows in scan_segment(log.replica, segment):
            for row in rows.to_pylist():
                if row["torn"]:
                    if (next_offset or segment.base_offset) < state.high_watermark:
                        at = next_offset or segment.base_offset
                        wrong.append(f"{place} is damaged at offset {at}: {row['problem']}")
                    return
                if row["base_offset"] >= state.high_watermark:
                    return
                next_offset = row["last_offset"] + 1
                if row["crc_stored"] != row["crc_computed"]:
                    at = row["base_offset"]
                    wrong.append(f"{place} is damaged at offset {at}: the checksum does not match")
                epoch, identity = row["leader_epoch"], row["identity"]
                yield _Batch(row["base_offset"], row["last_offset"], epoch, identity)


def _differences(name: str, batches: Mapping[int, Sequence[_Batch]]) -> Iterator[str]:
    """A sentence, if not all replicas hold the same batches from the highest log start on."""
    begins = [found[0].base_offset for found in batches.values() if found]
    start = max(begins, default=0)
    sides: dict[tuple[_Batch, ...], list[int]] = defaultdict(list)
    for broker, found in batches.items():
        sides[tuple(batch for batch in found if batch.base_offset >= start)].append(broker)
    if len(sides) < 2:
        return
    first, second, *_ = sides
    at = next((pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]), None)
    shorter = min(first, second, key=len)
    offset = at[0].base_offset if at else (shorter[-1].last_offset + 1 if shorter else start)
    groups = " differ from ".join(f"brokers {numbers(each)}" for each in sides.values())
    yield f"{name}: {groups}, first at offset {offset}"


def _missing(
    place: str, log: LogDirectory, expected: Contents, high_watermark: int
) -> Iterator[str]:
    """A sentence for each acknowledged record that is not there."""
    if not expected or not log.segments:
        return
    start = log.segments[0].base_offset
    found: dict[int, tuple[Any, Any]] = {}
    for segment in log.segments:
        for rows in read_records(log.replica, segment):
            for row in rows.to_pylist():
                found[row["offset"]] = row["key"], row["value"]
    for offset, (key, value) in expected.items():
        if offset >= start and found.get(offset) != (key, value):
            what = "holds another record" if offset in found else "has no record"
            yield f"{place} {what} at {offset}, where {value!r} was acknowledged"
        if offset >= high_watermark:
            yield f"{place}: {value!r} at {offset} was acknowledged beyond the high watermark"


def _acknowledged(ledgers: Sequence[Path]) -> Mapping[tuple[str, int], Contents]:
    """What was acknowledged with acks=all, by partition."""
    found: dict[tuple[str, int], dict[int, tuple[Any, Any]]] = defaultdict(dict)
    chunks, problems = ledger_chunks(ledgers)
    assert not problems, problems
    for chunk in chunks:
        for rows in read_chunk(chunk):
            for row in rows.to_pylist():
                if row["event"] == Event.ACKED and row["acks"] == ACKS_ALL:
                    place = row["topic"], row["partition"]
                    found[place][row["offset"]] = row["key"], row["value"]
    return found
