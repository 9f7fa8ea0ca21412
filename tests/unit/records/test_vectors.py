"""Batches written down by hand from the format's table, read and written by the product.

Each byte below was put there by reading the table, not by running the encoder; the checksum comes
from `slow_crc32c`, which shares nothing with the library that the product uses.
"""

import pytest

from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    ProducerStamp,
    has_valid_crc,
    read_header,
    validate_batch,
)
from minibroker.protocol.records.record import decode_records, encode_batch


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial (Castagnoli, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def batch(*hex_lines: str) -> bytes:
    """The bytes of the lines (after `#` is a comment), with the checksum filled in."""
    data = bytearray.fromhex("".join(line.split("#")[0] for line in hex_lines))
    data[17:21] = slow_crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


# One record: time 1000, no key, value "hi", no headers.
PLAIN = batch(
    "00 00 00 00 00 00 00 00  # base offset 0",
    "00 00 00 3a              # batch length: 49 + 9",
    "ff ff ff ff              # leader epoch -1",
    "02                       # magic",
    "00 00 00 00              # crc, filled in",
    "00 00                    # attributes",
    "00 00 00 00              # last offset delta",
    "00 00 00 00 00 00 03 e8  # base timestamp 1000",
    "00 00 00 00 00 00 03 e8  # max timestamp 1000",
    "ff ff ff ff ff ff ff ff  # producer id -1",
    "ff ff                    # producer epoch -1",
    "ff ff ff ff              # base sequence -1",
    "00 00 00 01              # one record",
    "10 00 00 00              # length 8, attributes, time + 0, offset + 0",
    "01 04 68 69 00           # null key, 2 bytes 'hi', no headers",
)
PLAIN_RECORDS = [(1000, None, b"hi", ())]

# Three records of producer 7, epoch 2, from sequence 2147483646 on; the third is before the first.
RICH = batch(
    "00 00 00 00 00 00 00 00",
    "00 00 00 54              # batch length: 49 + 35",
    "ff ff ff ff",
    "02",
    "00 00 00 00",
    "00 00",
    "00 00 00 02              # last offset delta 2",
    "00 00 00 00 00 00 03 e8",
    "00 00 00 00 00 00 05 14  # max timestamp 1300",
    "00 00 00 00 00 00 00 07",
    "00 02",
    "7f ff ff fe",
    "00 00 00 03",
    "10 00 00 00              # length 8, attributes, time + 0, offset + 0",
    "02 6b 02 76 00           # key 'k', value 'v', no headers",
    "10 00 d8 04 02           # length 8, attributes, time + 300, offset + 1",
    "02 6b 01 00              # key 'k', null value: a tombstone",
    "20 00 01 04              # length 16, attributes, time - 1, offset + 2",
    "00 00 04                 # empty key, empty value, two headers",
    "04 c3 a9 02 31           # 'e' with acute accent: '1'",
    "06 61 62 63 01           # 'abc': null",
)
RICH_RECORDS = [
    (1000, b"k", b"v", ()),
    (1300, b"k", None, ()),
    (999, b"", b"", (("é", b"1"), ("abc", None))),
]
RICH_PRODUCER = ProducerStamp(7, 2, 2147483646)

VECTORS = [
    pytest.param(PLAIN, PLAIN_RECORDS, NO_PRODUCER, id="plain"),
    pytest.param(RICH, RICH_RECORDS, RICH_PRODUCER, id="rich"),
]


def test_the_slow_checksum_is_castagnoli():
    """The check value that the CRC catalogue gives for CRC-32C."""
    assert slow_crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(("data", "records", "producer"), VECTORS)
def test_written_records_are_these_bytes(data, records, producer):
    """Encoding gives, byte for byte, what the format's table says."""
    assert bytes(encode_batch(records, producer=producer)) == data


@pytest.mark.parametrize(("data", "records", "producer"), VECTORS)
def test_these_bytes_are_read_as_the_records(data, records, producer):
    """Decoding finds each record with its offset, time, key, value and headers."""
    header = read_header(data)
    assert has_valid_crc(data, header)
    found = [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in decode_records(data, header)]
    assert found == records
    assert [r.offset for r in decode_records(data, header)] == list(range(len(records)))


def test_the_header_has_each_field_in_its_place():
    """All thirteen fields, and what is computed from them, of a hand-written header."""
    header = validate_batch(memoryview(RICH), size_max=len(RICH))
    assert header._asdict() == {
        "base_offset": 0,
        "batch_length": 84,
        "leader_epoch": -1,
        "magic": 2,
        "crc": slow_crc32c(RICH[21:]),
        "attributes": 0,
        "last_offset_delta": 2,
        "base_timestamp": 1000,
        "max_timestamp": 1300,
        "producer_id": 7,
        "producer_epoch": 2,
        "base_sequence": 2147483646,
        "record_count": 3,
    }
    assert header.size == len(RICH) == 96
    assert (header.last_offset, header.next_offset) == (2, 3)
    assert header.has_producer
    assert header.last_sequence == 0, "the sequence after 2147483647 is 0"
    assert header.compression == 0
    assert header.attributes == 0
