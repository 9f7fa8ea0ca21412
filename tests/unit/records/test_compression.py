"""The codecs as other clients write and read them, and blocks that lie about their size."""

import gzip
import mmap
import random
import types

import cramjam
import pytest

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records import compression
from minibroker.protocol.records.batch import InvalidBatch, read_header
from minibroker.protocol.records.compression import (
    GZIP,
    LZ4,
    SNAPPY,
    UNPACKED_BYTES_MAX,
    ZSTD,
    CorruptBlock,
    TooLargeUnpacked,
    compress,
    decompress,
    unpack,
)
from minibroker.protocol.records.record import decode_records, encode_batch

TEXT = b"".join(b"line %d of the text\n" % n for n in range(10_000))
NOISE = random.Random(1).randbytes(70_000)
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, bytes(300_000)], ids=len)
def test_unpacking_undoes_packing(codec, data):
    """Empty, tiny, text, noise that does not shrink, zeros that shrink a hundredfold."""
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert decompress(codec, memoryview(packed)) == data


def test_gzip_is_a_plain_member():
    """Any gzip reads what is written, and its output is read."""
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert decompress(GZIP, gzip.compress(TEXT)) == TEXT


def test_zstd_is_a_plain_frame():
    """Any zstd reads what is written."""
    packed = compress(ZSTD, TEXT)
    assert packed[:4] == bytes.fromhex("28b52ffd")
    assert bytes(cramjam.zstd.decompress(packed)) == TEXT


def test_lz4_is_a_frame_of_independent_blocks():
    """Java clients refuse linked blocks: version 1, independent, 64 KB, known header checksum."""
    packed = compress(LZ4, TEXT)
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert bytes(cramjam.lz4.decompress(packed)) == TEXT


def test_lz4_with_linked_blocks_is_read():
    """Other libraries link their blocks and add checksums."""
    assert decompress(LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT


def test_snappy_is_written_in_xerial_framing():
    """The header of the Java library, then blocks of at most 32 KB with their lengths."""
    packed = compress(SNAPPY, b"hello")
    assert packed.hex() == "82534e41505059000000000100000001" + "00000007" + "0510" + b"hello".hex()
    assert len(compress(SNAPPY, NOISE)) > len(NOISE)


def test_raw_snappy_is_read():
    """librdkafka writes snappy without the framing."""
    assert decompress(SNAPPY, bytes.fromhex("0510") + b"hello") == b"hello"
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_a_cut_block_is_corrupt(codec):
    """Any prefix of a block is an error, never fewer records."""
    packed = compress(codec, TEXT)
    for size in (*range(1, 40), len(packed) // 2, len(packed) - 1):
        if codec == SNAPPY and size == 16:
            continue  # the framing's header alone is a valid empty block
        with pytest.raises(CorruptBlock):
            decompress(codec, packed[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_corrupt(codec):
    """Bytes of no codec are refused as such."""
    with pytest.raises(CorruptBlock):
        decompress(codec, b"\xff garbage that no codec would ever write")


@pytest.mark.parametrize("codec", [0, 5, 7])
def test_an_unknown_codec_is_corrupt(codec):
    """Codes that name no codec are refused, not guessed."""
    with pytest.raises(CorruptBlock):
        decompress(codec, b"data")


def bomb(codec: int, size: int) -> bytes:
    """A block that unpacks to `size` zeros."""
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(bytes(size)))
    return compress(codec, bytes(size))


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_bounded(codec, monkeypatch):
    """A block may unpack to the bound and not to one byte more."""
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 3_000_000)
    assert len(decompress(codec, bomb(codec, 3_000_000))) == 3_000_000
    with pytest.raises(CorruptBlock):
        decompress(codec, bomb(codec, 3_000_001))
    with pytest.raises(CorruptBlock):
        decompress(codec, compress(codec, bytes(3_000_001)))


def test_the_bound_is_the_largest_frame():
    """What no frame could carry unpacked is not unpacked."""
    assert UNPACKED_BYTES_MAX == 104_857_600


def test_a_snappy_block_cannot_claim_memory():
    """Two bytes that claim 4 GB are refused before anything is allocated."""
    with pytest.raises(CorruptBlock, match="claims"):
        decompress(SNAPPY, bytes.fromhex("ffffffff0f") + b"x")
    with pytest.raises(CorruptBlock, match="claims"):
        decompress(SNAPPY, bytes.fromhex("80808020") + b"x")


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_a_cut_block_is_corrupt(codec):
    """The reader of records sees InvalidBatch with CORRUPT_MESSAGE, whichever codec noticed."""
    batch = encode_batch([(1, None, TEXT, ())], compression=codec)
    header = read_header(batch)
    cut = header._replace(batch_length=header.batch_length - 5)
    with pytest.raises(InvalidBatch) as caught:
        decode_records(batch, cut)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_limit_of_the_caller(codec):
    """A caller may allow less; one that allows enough gets all. The error names the limit."""
    packed = bomb(codec, 3_000_000)
    for allowed in (3_000_000, 3_000_001, 50_000_000):
        assert bytes(unpack(codec, packed, allowed)) == bytes(3_000_000)
    for allowed in (1, 70_000, 2_999_999):
        with pytest.raises(TooLargeUnpacked, match=f"more than {allowed} bytes"):
            unpack(codec, packed, allowed)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_is_stopped_at_the_second_buffer(codec, monkeypatch):
    """Frames that unpack to ten times the limit: two buffers, the larger one of the limit."""
    sizes = []

    def counted(mapping, data, output):
        sizes.append((type(output), len(output)))
        return mapping(data, output)

    library = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    real = library.decompress_into
    fake = types.SimpleNamespace(decompress_into=lambda *args: counted(real, *args))
    name = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}[codec]
    errors = cramjam.DecompressionError
    monkeypatch.setattr(
        compression, "cramjam", types.SimpleNamespace(**{name: fake}, DecompressionError=errors)
    )
    packed = bytes(library.compress(bytes(4_000_000))) * 10
    with pytest.raises(TooLargeUnpacked):
        unpack(codec, packed, 4_000_000)
    guess = 64 * 1024 + 4 * len(packed)
    assert sizes == [(bytearray, guess), (mmap.mmap, 4_000_000)]
