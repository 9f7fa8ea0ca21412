"""Zig-zag varints: lengths and deltas inside a record.

A number n becomes 2n (or -2n - 1 if negative), written 7 bits a byte, lowest first. Nearly every
number in a record fits in two bytes, so those encodings are computed once, at import: a table
look-up costs a tenth of a function call. The reader in `columns.py` decodes one- and two-byte
numbers inline for the same reason, and calls this module for longer ones.
"""

from minibroker.protocol.types import Buffer

ONE_BYTE_COUNT = 1 << 6  # the numbers 0..63 take one byte
SMALL_COUNT = 1 << 13  # the numbers 0..8191 take one byte or two

VARINT: list[bytes] = [bytes((n << 1,)) for n in range(ONE_BYTE_COUNT)] + [
    bytes((n << 1 & 0x7F | 0x80, n >> 6)) for n in range(ONE_BYTE_COUNT, SMALL_COUNT)
]

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10


def encode_varint(number: int) -> bytes:
    """Encode a signed number of up to 64 bits."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_unsigned(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    """Return the number at `position` before zig-zag decoding, and the position behind it.

    Raises IndexError if the data ends inside it, ValueError if it is longer than `bytes_max` or
    does not fit in 32 bits (64 for a varlong).
    """
    number = shift = 0
    for index in range(position, position + bytes_max):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> (32 if bytes_max == VARINT_BYTES_MAX else 64):
                raise ValueError("a varint is too large")
            return number, index + 1
        shift += 7
    raise ValueError("a varint does not end")


def decode_varint(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    """Return the number at `position` and the position behind it; errors as `decode_unsigned`."""
    number, position = decode_unsigned(data, position, bytes_max)
    return number >> 1 ^ -(number & 1), position
