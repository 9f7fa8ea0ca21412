"""Each fault of a batch or a segment on one follower, on the leader, on two and on all: who is
named, and whose copy no step moves away.

A fault is *plain* if its log alone shows it, *told* if only another replica or a ledger does, and
*untold* if no ledger does either, as of headers and timestamps. Where two replicas have the same
fault that is not plain, the majority is believed unless a ledger contradicts it.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.model import Finding
from minibroker.audit.report.advice import advise
from minibroker.audit.summary import Summary
from minibroker.protocol.records.batch import ProducerStamp, iterate_headers
from minibroker.protocol.records.compression import GZIP
from minibroker.protocol.records.record import decode_records, encode_batch
from tests.audit.test_killed import make_old_checkpoints
from tests.audit.test_verdicts import CLEAN, FOUND, batch_at, of_partition
from tests.support.audited import audit
from tests.support.damage import Batch, Replica, change_header, change_records, put_batch
from tests.support.made_cluster import (
    BATCHES,
    EPOCHS,
    NODES,
    RECORDS,
    TOPIC,
    make_cluster,
)
from tests.support.made_ledgers import END, partitions_without_retention, write_ledgers
from tests.support.processes import EXPORT

LEADER, FOLLOWER, OTHER = NODES
AT = BATCHES // 2 * RECORDS - RECORDS  # in the middle of the middle segment
DONOR = 1  # a partition without a fault
Plant = Callable[[Replica], object]


def header(**changes: int | Callable[[int], int]) -> Plant:
    """Fields of a batch's header, with a right checksum; functions are given what is there."""

    def plant(replica: Replica) -> None:
        batch = batch_at(replica, AT)
        fields = {
            name: change(getattr(batch.header, name)) if callable(change) else change
            for name, change in changes.items()
        }
        change_header(batch, **fields)

    return plant


def bytes_at(position: int, content: bytes) -> Plant:
    """Bytes of a batch, and the checksum stays."""

    def plant(replica: Replica) -> None:
        batch = batch_at(replica, AT)
        whole = bytearray(batch.path.read_bytes()[batch.position : batch.end])
        whole[position : position + len(content)] = content
        put_batch(batch, whole)

    return plant


def record(number: int, **fields: object) -> Plant:
    """Fields of one record."""

    def plant(replica: Replica) -> None:
        def change(at: int, old: Any) -> Any:
            return old._replace(**fields) if at == number else old

        change_records(batch_at(replica, AT), change)

    return plant


def swap_records(replica: Replica) -> None:
    batch = batch_at(replica, AT)
    records = [each[1:] for each in decoded(batch)]
    records[1:3] = records[2:0:-1]
    encode_anew(batch, records)


def compress(replica: Replica) -> None:
    batch = batch_at(replica, AT)
    encode_anew(batch, [each[1:] for each in decoded(batch)], GZIP)


def decoded(batch: Batch) -> Sequence[Any]:
    return decode_records(batch.path.read_bytes()[batch.position : batch.end], batch.header)


def encode_anew(batch: Batch, records: Sequence[Any], codec: int = 0) -> None:
    """Other bytes for a batch of the same place and producer."""
    of = batch.header
    stamp = ProducerStamp(of.producer_id, of.producer_epoch, of.base_sequence)
    put_batch(batch, encode_batch(records, compression=codec, producer=stamp), of)


def repeat(replica: Replica) -> None:
    """A batch stands twice at its place."""
    batch = batch_at(replica, AT)
    content = batch.path.read_bytes()
    batch.path.write_bytes(content[: batch.end] + content[batch.position :])


def insert_zeros(replica: Replica) -> None:
    batch = batch_at(replica, AT)
    content = batch.path.read_bytes()
    batch.path.write_bytes(content[: batch.position] + bytes(512) + content[batch.position :])


def shift(replica: Replica) -> None:
    """All batches from one on have the next offset."""
    for batch in [*replica.batches()]:
        if batch.header.base_offset >= AT:
            change_header(batch, base_offset=batch.header.base_offset + 1)


def segments(replica: Replica) -> list[Path]:
    return sorted(replica.directory.glob("*.log"))


def files_of(segment: Path) -> Iterator[Path]:
    yield from (segment.with_suffix(suffix) for suffix in (".log", ".index", ".timeindex"))


def delete(number: int) -> Plant:
    """A segment is gone, with its indexes."""

    def plant(replica: Replica) -> None:
        for path in files_of(segments(replica)[number]):
            path.unlink()

    return plant


def empty(replica: Replica) -> None:
    segments(replica)[1].write_bytes(b"")


def rename(replica: Replica) -> None:
    for path in files_of(segments(replica)[1]):
        path.rename(path.with_name(f"{int(path.stem) + 1:020}{path.suffix}"))


def copy_to_the_end(replica: Replica) -> None:
    shutil.copy(segments(replica)[1], replica.directory / f"{END:020}.log")


def reverse(replica: Replica) -> None:
    path = segments(replica)[1]
    content = path.read_bytes()
    batches = [content[at : at + each.size] for at, each in iterate_headers(content)]
    path.write_bytes(b"".join(reversed(batches)))


def take_from_another(replica: Replica) -> None:
    """A segment is that of another partition."""
    donor = replace(replica, partition=DONOR)
    for mine, other in zip(
        files_of(segments(replica)[1]), files_of(segments(donor)[1]), strict=True
    ):
        shutil.copy(other, mine)


PLAIN: Mapping[str, Plant] = {
    "leader epoch -1": header(leader_epoch=-1),
    "an older leader epoch": header(leader_epoch=0),
    "a length that leads nowhere": bytes_at(8, b"\x7f\xff\xff\xff"),
    "no length": bytes_at(8, bytes(4)),
    "another format": bytes_at(16, b"\1"),
    "another checksum": bytes_at(17, b"1234"),
    "the next offset": header(base_offset=lambda offset: offset + 1),
    "an offset far above": header(base_offset=2**62),
    "a negative offset": header(base_offset=-4),
    "the next offset, and all behind it": shift,
    "an offset more": header(last_offset_delta=lambda delta: delta + 1),
    "an offset less": header(last_offset_delta=lambda delta: delta - 1),
    "a negative last offset": header(last_offset_delta=-7),
    "a record less, by the header": header(record_count=lambda count: count - 1),
    "2^31-1 records, by the header": header(record_count=2**31 - 1),
    "another codec": header(attributes=GZIP),
    "an unknown codec": header(attributes=7),
    "a transaction": header(attributes=0x10),
    "an unknown attribute": header(attributes=0x80),
    "another producer": header(producer_id=4711),
    "no producer": header(producer_id=-1, producer_epoch=-1, base_sequence=-1),
    "the next sequence": header(base_sequence=lambda sequence: sequence + 1),
    "a newer producer epoch": header(producer_epoch=1),
    "the middle segment deleted": delete(1),
    "the first segment deleted": delete(0),
    "the middle segment emptied": empty,
    "the middle segment renamed": rename,
    "the middle segment again at the end": copy_to_the_end,
    "the middle segment reversed": reverse,
    "zeros between two batches": insert_zeros,
    "a batch twice": repeat,
}
TOLD: Mapping[str, Plant] = {
    "another key": record(1, key=b"other"),
    "no key": record(1, key=None),
    "no value": record(2, value=None),
    "an empty value": record(2, value=b""),
    "two records swapped": swap_records,
    "a segment of another partition": take_from_another,
}
UNTOLD: Mapping[str, Plant] = {
    "a header": record(0, headers=(("h", b"x"),)),
    "a later time": header(max_timestamp=lambda time: time + 10**9),
    "compressed": compress,
}


@dataclass(frozen=True)
class Case:
    """A fault on some brokers; exit code and brokers named, without and with a ledger."""

    plant: Plant
    on: tuple[int, ...]
    code: int
    named: tuple[int, ...]
    told_code: int
    told_named: tuple[int, ...]


def cases() -> dict[str, Case]:
    """Each fault on one follower, on the leader, on two, and on all."""
    two = (FOLLOWER, OTHER)
    found = {}
    for kind, plants in enumerate((PLAIN, TOLD, UNTOLD)):
        for name, plant in plants.items():
            for on in ((FOLLOWER,), (LEADER,), two, NODES):
                named = told_named = on
                if kind and on == two:
                    named, told_named = (LEADER,), on if plants is TOLD else (LEADER,)
                if kind and on == NODES:
                    named, told_named = (), on if plants is TOLD else ()
                codes = (FOUND if named else CLEAN, FOUND if told_named else CLEAN)
                found[f"{name}, on {on}"] = Case(plant, on, codes[0], named, codes[1], told_named)
    return found


def make_stopped_or_killed(root: Path, numbers: Sequence[int], *, is_killed: bool) -> None:
    """Broker 1 leads all; after a stop in order it alone is in the in-sync sets."""
    export = make_cluster(root, numbers[-1] + 1)
    exported: dict[str, Any] = json.loads(export.read_text())
    for partition in exported["topics"][0]["partitions"]:
        partition |= {"leader": LEADER, "leader_epoch": EPOCHS - 1}
        if not is_killed:
            partition["isr"] = [LEADER]
            partition["left"] = [
                {"node_id": node, "last_epoch": EPOCHS - 1, "log_end": END} for node in NODES
            ]
    (root / EXPORT).write_text(json.dumps(exported))
    if is_killed:
        make_old_checkpoints(root, numbers)


def problems(
    told: bool, numbered: Mapping[int, tuple[str, Case]], summary: Summary, found: list[Finding]
) -> Iterator[str]:
    """Yield each case whose verdict, names or remedy are not right."""
    for number, (name, case) in numbered.items():
        alone, mine = of_partition(summary, found, number)
        pictures = tuple(each for each in summary.partitions if each.partition == number)
        advice = advise(replace(alone, partitions=pictures), mine)
        assert advice is not None
        commands = [command for step in advice.steps for command in step.commands]
        moved = {int(each) for each in re.findall(r"mv \S*/broker-(\d)/", "\n".join(commands))}
        named = {each.broker for each in mine if each.severity == "error"} - {None}
        wanted = (case.told_code, case.told_named) if told else (case.code, case.named)
        is_safe = set(NODES) - moved and moved <= named
        is_mended = moved == named or len(named) == len(NODES)
        if (alone.exit_code, named) != (wanted[0], set(wanted[1])) or not (is_safe and is_mended):
            shown = [(each.check, each.broker, each.offset, each.detail) for each in mine[:4]]
            yield f"{name}, {told=}: {alone.exit_code} {named} {moved=} {alone.sentence} {shown}"


@pytest.mark.soak
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_each_fault_on_each_side(spark: SparkSession, tmp_path: Path, is_killed: bool) -> None:
    """The exit code, the brokers named, and the copies that are moved away: those that are named,
    and only if a whole one is left."""
    numbers = partitions_without_retention(len(cases()) + 1)
    assert numbers[0] == DONOR
    make_stopped_or_killed(tmp_path, numbers, is_killed=is_killed)
    numbered = dict(zip(numbers[1:], cases().items(), strict=True))
    for number, (_, case) in numbered.items():
        for node in case.on:
            case.plant(Replica(tmp_path / f"broker-{node}", TOPIC, number))
    ledgers = write_ledgers(tmp_path, numbers[-1] + 1, [])[:1]
    wrong = []
    for told in (False, True):
        given = ledgers if told else []
        summary, found = audit(
            spark, tmp_path, tmp_path / f"audit-{told}", given, is_ledger_complete=told
        )
        wrong += problems(told, numbered, summary, found)
        wrong += [str(each) for each in found if each.partition not in numbered]
    assert not wrong, "\n".join(wrong)
