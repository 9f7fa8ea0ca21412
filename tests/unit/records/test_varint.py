"""Zig-zag varints: the tables and the slow path agree with the definition."""

import pytest

from minibroker.protocol.records.varint import (
    SMALL_COUNT,
    VARINT,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    decode_varint,
    encode_varint,
)

# The public table of the encoding.
KNOWN = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize("number", KNOWN)
def test_known_numbers(number):
    """The boundaries of each length, in both directions."""
    data = bytes.fromhex(KNOWN[number])
    assert encode_varint(number) == data
    assert decode_varint(data, 0, VARLONG_BYTES_MAX) == (number, len(data))


def test_the_table_is_the_slow_path():
    """Each number of one or two bytes, as the function encodes it."""
    assert [encode_varint(number) for number in range(SMALL_COUNT)] == VARINT


@pytest.mark.parametrize(
    ("data", "bytes_max"),
    [
        ("ffffffff1f", VARINT_BYTES_MAX),  # 33 bits
        ("ffffffffff00", VARINT_BYTES_MAX),  # six bytes
        ("ffffffffffffffffff03", VARLONG_BYTES_MAX),  # 65 bits
        ("ffffffffffffffffffff00", VARLONG_BYTES_MAX),  # eleven bytes
    ],
)
def test_too_long_is_refused(data, bytes_max):
    """A number beyond its width is an error, not a wrong number."""
    with pytest.raises(ValueError, match="varint"):
        decode_varint(bytes.fromhex(data), 0, bytes_max)


def test_an_end_inside_is_refused():
    """A number whose last byte is missing is an error."""
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0, VARINT_BYTES_MAX)
