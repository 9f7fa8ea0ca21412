"""What the tests of transactions in a log share: to write them, and to read as a consumer does."""

from minibroker.broker.log.outcomes import Appended
from minibroker.broker.log.transaction_index import AbortedEntry
from minibroker.protocol.records.batch import (
    TRANSACTIONAL,
    ProducerStamp,
    iterate_headers,
    read_header,
    write_header,
)
from minibroker.protocol.records.control import EndMarker, read_end_marker
from minibroker.protocol.records.record import decode_records, encode_batch
from tests.unit.log.workbench import NOW, Bench


def transactional(producer_id, sequence, *keys, epoch=0, now_ms=NOW) -> bytearray:
    """A transactional batch of one record for each key."""
    records = [(now_ms, key.encode(), b"v", ()) for key in keys]
    batch = encode_batch(records, producer=ProducerStamp(producer_id, epoch, sequence))
    write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL))
    return batch


def append(bench: Bench, producer_id, sequence, *keys, epoch=0, leader_epoch=0) -> Appended:
    """Append a transactional batch, whose transaction the coordinator knows."""
    batch = transactional(producer_id, sequence, *keys, epoch=epoch)
    verification = bench.log.verifications.begin(producer_id, epoch)
    try:
        return bench.log.append_as_leader(memoryview(batch), leader_epoch, NOW, verification)
    finally:
        bench.log.verifications.end(verification)


def end(
    bench: Bench, producer_id, *, commit, epoch=0, coordinator=0, leader_epoch=0, is_next=False
) -> int:
    """Append a marker; return its offset."""
    marker, producer = EndMarker(commit, coordinator), (producer_id, epoch)
    appended = bench.log.append_marker(marker, producer, leader_epoch, NOW, is_next_epoch=is_next)
    return appended.last_offset


def aborted(bench: Bench, start: int, stop: int) -> list[AbortedEntry]:
    """The aborted transactions between two offsets."""
    return [*bench.log._segments.aborted(start, stop)]


def consume(bench: Bench, offset: int, high_watermark: int, bytes_max: int = 1 << 40):
    """Read as a consumer of committed records does; return the records' offsets and keys, and the
    offset reached."""
    stable = bench.log.last_stable_offset(high_watermark)
    found = []
    while offset < stable:
        slices, entries = bench.log.read_committed(offset, bytes_max, stable)
        before = offset
        waiting = sorted(entries, key=lambda entry: entry.first_offset)
        aborting: set[int] = set()
        data = b"".join([part.read() for part in slices])
        for position, header in iterate_headers(data):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            batch = data[position : position + header.size]
            offset = max(offset, header.next_offset)
            if header.is_control:
                marker = read_end_marker(batch, header)
                if marker is not None and not marker.is_commit:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records = decode_records(batch, header) if header.record_count else []
                found += [(one.offset, one.key) for one in records if one.offset >= before]
        if offset == before:
            break
    return found, offset
