"""The four codecs of a batch, as Java clients frame them.

* gzip and zstd: one plain frame.
* lz4: the frame format with independent blocks of 64 KB. This module builds the frame, because the
  library writes linked blocks, which Java clients refuse.
* snappy: written in the xerial framing (a header, then length-prefixed blocks of 32 KB); read in
  that framing or raw, as librdkafka may write it.

A small block may claim any unpacked size, so the unpacked size of a batch is limited: to
`UNPACKED_BYTES_MAX`, the size of the largest frame, or to less if the caller says so. The first
output buffer has the usual ratio. If it is too small, the second one is a mapping of the limit,
whose pages are taken as they are written. So a decompression bomb costs at most the limit, and no
claim of a size costs memory. The library releases the interpreter's lock while it works.
"""

import mmap
from collections.abc import Callable
from typing import Final

import cramjam

from minibroker.protocol.constants import FRAME_BYTES_MAX
from minibroker.protocol.types import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")  # by code

UNPACKED_BYTES_MAX: Final = FRAME_BYTES_MAX
# By code: bytes that one byte can unpack to, by the format. A block of zstd, 128 KB, takes 4 bytes.
RATIOS_MAX: Final = (1, 1032, 32, 255, 32 * 1024)

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3

# Magic, version 1 with independent blocks and no checksums, 64 KB blocks, header checksum.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31  # bit of a block's size: the block is not compressed

# Magic, version 1, compatible with version 1.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 * 1024

_FIRST_GUESS_BYTES = 64 * 1024
# The library raises one exception for bad data and for a small buffer; only its text differs.
_BUFFER_TOO_SMALL = "failed to write whole buffer"


class CorruptBlock(ValueError):
    """The data is not of the codec's format."""


class TooLargeUnpacked(CorruptBlock):
    """The data unpacks to more than the limit."""


def compress(codec: int, data: bytes) -> bytes:
    """Compress the records of a batch with one of the four codecs."""
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data)
    assert codec == ZSTD, f"there is no codec {codec}"
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(codec: int, data: Buffer) -> bytes:
    """Decompress the records of a batch. Raises CorruptBlock."""
    return bytes(unpack(codec, data, UNPACKED_BYTES_MAX))


def unpack(codec: int, data: Buffer, bytes_max: int) -> Buffer:
    """Decompress the records of a batch into a buffer of at most `bytes_max` bytes.

    Raises TooLargeUnpacked if it is too small, CorruptBlock for data that cannot be read.
    """
    try:
        if codec == GZIP:
            return _unpack(cramjam.gzip.decompress_into, data, bytes_max)
        if codec == SNAPPY:
            return _unpack_snappy(data, bytes_max)
        if codec == LZ4:
            return _unpack(cramjam.lz4.decompress_into, data, bytes_max)
        if codec == ZSTD:
            return _unpack(cramjam.zstd.decompress_into, data, bytes_max)
    except (cramjam.DecompressionError, OSError) as error:
        raise CorruptBlock(f"not {CODEC_NAMES[codec]}: {error}") from None
    raise CorruptBlock(f"there is no codec {codec}")


def _unpack(
    decompress_into: Callable[[Buffer, bytearray | mmap.mmap], int], data: Buffer, bytes_max: int
) -> Buffer:
    size = min(_FIRST_GUESS_BYTES + 4 * len(data), bytes_max)
    output: bytearray | mmap.mmap = bytearray(size)
    try:
        used = decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if str(error) != _BUFFER_TOO_SMALL:
            raise
        if size == bytes_max:
            raise TooLargeUnpacked(_too_large(bytes_max)) from None
        output = mmap.mmap(-1, bytes_max)
        try:
            used = decompress_into(data, output)
        except cramjam.DecompressionError as second:
            if str(second) != _BUFFER_TOO_SMALL:
                raise
            raise TooLargeUnpacked(_too_large(bytes_max)) from None
    return memoryview(output)[:used]


def _too_large(bytes_max: int) -> str:
    return f"the records unpack to more than {bytes_max} bytes"


def _compress_lz4(data: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    parts.append(bytes(4))  # no more blocks
    return b"".join(parts)


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(packed).to_bytes(4, "big"), packed)
    return b"".join(parts)


def _unpack_snappy(data: Buffer, bytes_max: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unpack_raw(data, bytes_max, bytes_max)
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptBlock("a snappy header is cut short")
    parts = []
    room = bytes_max
    position = len(_XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if not 0 < size <= len(data) - position:
            raise CorruptBlock("a snappy block is cut short")
        part = _unpack_raw(data[position : position + size], room, bytes_max)
        parts.append(part)
        room -= len(part)
        position += size
    return b"".join(parts)


def _unpack_raw(data: Buffer, room: int, bytes_max: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > RATIOS_MAX[SNAPPY] * len(data):
        raise CorruptBlock(f"a snappy block claims {size} bytes")
    if size > room:
        raise TooLargeUnpacked(_too_large(bytes_max))
    return bytes(cramjam.snappy.decompress_raw(data))
