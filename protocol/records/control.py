"""Control batches: the markers that end a producer's transaction in a partition.

A marker is a batch of one record, with the attributes "transactional" and "control", the producer's
id and epoch, and no sequence. The record's key has a version and the type of the marker, its value
a version and the epoch of the coordinator that wrote it (Kafka's ControlRecordType and
EndTxnMarker; newer versions may only add bytes behind that). Consumers get no record of it.

Kafka knows other types of control records. Here they mean nothing.
"""

import struct
from struct import Struct
from typing import Final, NamedTuple

from minibroker.protocol.constants import NO_SEQUENCE
from minibroker.protocol.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    ProducerStamp,
    read_header,
    write_header,
)
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import Buffer

ABORT: Final = 0
COMMIT: Final = 1
_VERSION: Final = 0
_KEY: Final = Struct(">hh")  # version, type
_VALUE: Final = Struct(">hi")  # version, coordinator epoch


class EndMarker(NamedTuple):
    """The content of a marker."""

    is_commit: bool
    coordinator_epoch: int


def encode_end_marker(
    marker: EndMarker, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Return the batch of a marker, with offset 0."""
    key = _KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    producer = ProducerStamp(producer_id, producer_epoch, NO_SEQUENCE)
    batch = encode_batch([(timestamp_ms, key, value, ())], producer=producer)
    write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL | CONTROL))
    return batch


def read_end_marker(batch: Buffer, header: BatchHeader) -> EndMarker | None:
    """Return the content of a control batch; None if it is no end of a transaction."""
    if not header.is_control or not header.record_count:
        return None
    try:
        columns = decode_columns(batch, header)
        key, value = columns.keys[0], columns.values[0]
        if key is None or value is None:
            return None
        _, kind = _KEY.unpack_from(key)
        if kind not in (ABORT, COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(value)
    except (InvalidBatch, struct.error):
        return None
    return EndMarker(kind == COMMIT, coordinator_epoch)
