"""Record batches that a broker may store and must survive: sound ones, and all kinds of wrong ones.

Each has a valid CRC, unless that is what is wrong, so that a broker looks at the rest of it.
"""

import random
import struct
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from crc32c import crc32c

from minibroker.protocol.records.compression import compress
from minibroker.protocol.records.varint import encode_varint

NOW_MS: Final = int(time.time() * 1000)  # not so old that retention deletes it at once
_BEHIND_CRC: Final = struct.Struct(">hiqqqhii")
_HEADER: Final = struct.Struct(">qiibI")
_COUNTED_FROM: Final = 9  # the length counts leader epoch, magic and CRC, too
NUMBERS_32: Final = (-(2**31), -2, -1, 0, 1, 2, 1000, 2**31 - 1)
NUMBERS_64: Final = (-(2**63), -2, -1, 0, 1, NOW_MS, 2**62, 2**63 - 1)
NUMBERS_16: Final = (-(2**15), -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 2**15 - 1)
NO_PRODUCER: Final = (-1, -1, -1)

# The fields of a header by name, and the wrong values of each.
FIELDS: Final[dict[str, tuple[int, ...]]] = {
    "base_offset": NUMBERS_64,
    "length": NUMBERS_32,
    "leader_epoch": NUMBERS_32,
    "magic": (-128, -1, 0, 1, 3, 127),
    "crc": (0, 2**32 - 1),
    "attributes": NUMBERS_16,
    "last_offset_delta": NUMBERS_32,
    "base_timestamp": NUMBERS_64,
    "max_timestamp": NUMBERS_64,
    "producer_id": NUMBERS_64,
    "producer_epoch": NUMBERS_16,
    "base_sequence": NUMBERS_32,
    "count": NUMBERS_32,
}


def encode(records: bytes, true_count: int, stamp: tuple[int, int, int], **changes: int) -> bytes:
    """A batch of these record bytes, with some fields of its header changed."""
    producer_id, producer_epoch, base_sequence = stamp
    given = {
        "base_offset": 0,
        "leader_epoch": -1,
        "magic": 2,
        "attributes": 0,
        "last_offset_delta": true_count - 1,
        "base_timestamp": NOW_MS,
        "max_timestamp": NOW_MS,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "count": true_count,
    } | changes
    names = tuple(FIELDS)[5:]
    rest = _BEHIND_CRC.pack(*[given[name] for name in names]) + records
    length = given.get("length", len(rest) + _COUNTED_FROM)
    crc = given.get("crc", crc32c(rest))
    start = given["base_offset"], length, given["leader_epoch"], given["magic"], crc
    return _HEADER.pack(*start) + rest


def record(
    value: bytes | None = b"v",
    *,
    time: int = 0,
    offset: int = 0,
    key: bytes | None = None,
    headers: bytes = b"\0",
    size: int | None = None,
) -> bytes:
    """One record; `headers` begins with their count, `size` is its length, if not the true one."""
    body = b"\0" + encode_varint(time) + encode_varint(offset) + _sized(key) + _sized(value)
    body += headers
    return encode_varint(len(body) if size is None else size) + body


def _sized(content: bytes | None) -> bytes:
    return encode_varint(-1) if content is None else encode_varint(len(content)) + content


def records_of(count: int, size: int = 1) -> bytes:
    """So many sound records."""
    return b"".join(record(b"v" * size, offset=offset) for offset in range(count))


_packed = cache(compress)


def _compressed(codec: int, records: bytes, stamp: tuple[int, int, int], count: int = 1) -> bytes:
    return encode(_packed(codec, records), count, stamp, attributes=codec)


# What is wrong with a batch, by name; each takes a producer's stamp.
POISONS: Final[dict[str, Callable[[tuple[int, int, int]], bytes]]] = {
    "no records": partial(encode, b"", 1),
    "no records, and none claimed": partial(encode, b"", 0),
    "no record bytes": partial(encode, b"\xff" * 50, 1),
    "more records claimed": partial(encode, records_of(1), 1000),
    "fewer records claimed": partial(encode, records_of(100), 1),
    "descending offsets": partial(encode, record(offset=1) + record(offset=0), 2),
    "offsets beyond the last": partial(encode, record() + record(offset=77), 2),
    "negative offsets": partial(encode, record(offset=-1), 1),
    "a record longer than the batch": partial(encode, record(size=1000), 1),
    "a record without bytes": partial(encode, record(size=0), 1),
    "a record of negative length": partial(encode, record(size=-1), 1),
    "a varint without end": partial(encode, b"\xff" * 9 + b"\x01" + bytes(8), 1),
    "a varint of 11 bytes": partial(encode, b"\x80" * 10 + b"\x01" + bytes(8), 1),
    "a value of negative length": partial(encode, b"\x10\0\0\0\x01\x03" + bytes(3), 1),
    "a value without its bytes": partial(
        encode, encode_varint(20) + b"\0\0\0\x01" + encode_varint(2**31 - 1) + b"x", 1
    ),
    "headers that are not there": partial(encode, record(headers=encode_varint(2**30)), 1),
    "negative headers": partial(encode, record(headers=encode_varint(-1)), 1),
    "a header name that is no text": partial(encode, record(headers=b"\x02\x04\xff\xfe\x02x"), 1),
    "times above 64 bits": partial(encode, record(time=2**63 - 1), 1),
    "times above 64 bits, as claimed": partial(
        encode, record(time=2**63 - 1), 1, max_timestamp=2**63 - 1
    ),
    "times below 64 bits": partial(encode, record(time=-(2**63)), 1, base_timestamp=-(2**62)),
    "times beyond the largest": partial(encode, record(time=2**40), 1),
    "two batches": lambda stamp: encode(record(), 1, stamp) * 2,
    "half a batch": lambda stamp: encode(record(), 1, stamp)[:40],
    "bytes behind a batch": lambda stamp: encode(record(), 1, stamp) + b"more",
    "nothing": lambda stamp: b"",
    **{
        f"codec {codec} of what is not compressed": partial(
            encode, records_of(3), 3, attributes=codec
        )
        for codec in range(1, 8)
    },
    **{
        f"codec {codec} of no records": partial(_compressed, codec, b"\xff" * 50)
        for codec in (1, 2, 3, 4)
    },
    **{
        f"codec {codec} of 4 MB": partial(_compressed, codec, record(bytes(2**22)))
        for codec in (1, 2, 3, 4)
    },
    "control": partial(encode, record(), 1, attributes=32),
    "transactional": partial(encode, record(), 1, attributes=16),
}


def sound(rng: random.Random, stamp: tuple[int, int, int]) -> bytes:
    """A batch that a broker takes."""
    count = rng.choice((1, 1, 2, 10))
    size = rng.choice((0, 1, 100, 3000))
    records = records_of(count, size)
    if rng.random() < 0.3:
        return _compressed(rng.choice((1, 2, 3, 4)), records, stamp, count)
    times = {"base_timestamp": NOW_MS + rng.randrange(-1000, 1000)}
    return encode(records, count, stamp, **times)


def batch(rng: random.Random, stamp: tuple[int, int, int] = NO_PRODUCER) -> bytes:
    """A batch: sound, with one wrong field, poisoned, or with some byte changed."""
    kind = rng.random()
    if kind < 0.4:
        return sound(rng, stamp)
    if kind < 0.65:
        name = rng.choice(tuple(FIELDS))
        changes: dict[str, Any] = {name: rng.choice(FIELDS[name])}
        return encode(records_of(2), 2, stamp, **changes)
    if kind < 0.95:
        return POISONS[rng.choice(tuple(POISONS))](stamp)
    data = bytearray(sound(rng, stamp))
    data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
