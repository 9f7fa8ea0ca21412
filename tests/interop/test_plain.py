"""What counts of records that an answer has (`conversations/plain.py`)."""

from typing import Final

from minibroker.protocol.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    ProducerStamp,
    read_header,
    write_header,
)
from minibroker.protocol.records.record import encode_batch
from tests.interop.conversations.plain import batches

RECORD: Final = (1_000, b"k", b"v", ())
PLAIN: Final = bytes(encode_batch([RECORD]))


def batch_of(producer_id: int, attributes: int = 0, time_ms: int = 1_000, epoch: int = 0) -> bytes:
    """A batch of a producer, with a record of this time."""
    stamp = ProducerStamp(producer_id, epoch, 0)
    batch = encode_batch([(time_ms, *RECORD[1:])], producer=stamp)
    header: BatchHeader = read_header(batch)
    write_header(batch, header._replace(attributes=attributes))
    return bytes(batch)


def test_a_producers_id_and_a_markers_time_do_not_count() -> None:
    """All else does, and so does each byte of a batch without a producer, and of half a batch."""
    assert [*batches(PLAIN + PLAIN[:9])] == [PLAIN.hex(), PLAIN[:9].hex()]
    transactional = [*batches(batch_of(1, TRANSACTIONAL) + PLAIN)]
    assert transactional == [*batches(batch_of(2, TRANSACTIONAL) + PLAIN)]
    assert transactional != [*batches(batch_of(1, TRANSACTIONAL, 1_001) + PLAIN)]
    assert transactional != [*batches(batch_of(1, TRANSACTIONAL, epoch=1) + PLAIN)]
    marker = [*batches(batch_of(1, TRANSACTIONAL | CONTROL))]
    assert marker == [*batches(batch_of(2, TRANSACTIONAL | CONTROL, 1_001))]
    assert marker != transactional[:1]
