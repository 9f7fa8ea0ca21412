"""Frames of Kafka's wire that know the types of their fields, right ones and wrong ones.

The schemas are data (`protocol/kafka/apis.py`). A message is made of the values that `Known` gives,
perhaps with one `Twist`: a boundary number, a null, a long text, an array of thousands. It becomes
a list of pieces, one for each number, length or text on the wire; a frame is wrong because one
piece is replaced by bytes that its type does not allow or that lie (`WRONG`), or because pieces are
left out or added. This module writes the bytes itself: the product's encoder refuses to lie.
"""

import random
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.schema import Field, Struct
from tests.fuzz.frames import (
    LONG_BYTES,
    LONG_TEXT,
    MANY,
    THOUSANDS,
    Frame,
    Twist,
    boundaries,
)
from tests.fuzz.known import STRANGE_TEXTS, Known

APIS: Final[tuple[KafkaApi, ...]] = tuple(one.api for one in ADAPTERS.values())
KEYS: Final = tuple(api.key for api in APIS)
_FORMATS: Final = {"bool": ">?", "i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q", "uuid": ">16s"}
_BITS: Final = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_UVARINTS: Final = (b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff\xff\xff\xff\x0f", b"\x80" * 9)


class Piece(NamedTuple):
    """The bytes of one number, length, text or other content, and the field that it is of."""

    path: str
    kind: str
    data: bytes


# Bytes by the kind of piece that they stand for.
WRONG: Final[dict[str, tuple[bytes, ...]]] = {
    "bool": (b"\2", b"\x7f", b"\xff"),
    **{
        kind: tuple(struct.pack(_FORMATS[kind], number) for number in boundaries(bits))
        for kind, bits in _BITS.items()
    },
    "size16": tuple(struct.pack(">h", number) for number in boundaries(16)),
    "size32": tuple(struct.pack(">i", number) for number in (*boundaries(32), 2**16, 2**24)),
    "uuid": (bytes(16), b"\xff" * 16),
    "uvarint": _UVARINTS,
    "text": (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\0"),
    "bytes": (b"", b"\0" * 4, b"\xff" * 300),
    "records": (b"", b"\xff" * 61, b"\0" * 100),
}


class KafkaFrames:
    """Makes frames from what is known. `rng` is that of `known`."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._rng = known.rng

    def value(self, shape: Struct, version: int, twist: Twist | None = None, path: str = "") -> Any:
        """A struct's value, valid but for the twist."""
        return shape.make(
            *[
                self._field(one, version, twist, f"{path}{one.name}")
                if one.is_in(version)
                else one.default
                for one in shape.fields
            ]
        )

    def _field(self, one: Field, version: int, twist: Twist | None, path: str) -> Any:
        here = twist is not None and twist.path == path
        if twist is not None and here and twist.is_value:
            return twist.value
        is_above = twist is not None and twist.path.startswith(f"{path}.")
        if not one.is_array:
            if not is_above and one.may_be_null(version) and self.known.is_null(one.name):
                return None if one.type != "records" else b""
            return self._element(one, version, twist, path)
        if twist is not None and here:
            return [self._element(one, version, twist, path)] * twist.times
        if not is_above and one.may_be_null(version) and self.known.is_null(one.name):
            return None
        count = max(1, self.known.count()) if is_above else self.known.count()
        return [self._element(one, version, twist, path) for _ in range(count)]

    def _element(self, one: Field, version: int, twist: Twist | None, path: str) -> Any:
        if isinstance(one.type, Struct):
            return self.value(one.type, version, twist, f"{path}.")
        match one.type:
            case "bool":
                return self._rng.random() < 0.5
            case "string":
                return self.known.text(path)
            case "bytes":
                return self.known.blob(one.name)
            case "records":
                return self.known.records()
            case "uuid":
                return self._rng.choice((bytes(16), self._rng.randbytes(16)))
        return self.known.number(one.name if one.name != "partitions" else "partition")

    # -- frames

    def frame(
        self, api: KafkaApi, version: int, correlation_id: int, twist: Twist | None = None
    ) -> Frame:
        """A frame of this api: with this twist, or sound, or, in a third of all cases, wrong."""
        rng = self._rng
        self.known.begin(api.key)
        parts = self.pieces(api, version, correlation_id, twist)
        what = f"{api.name} v{version}"
        if twist is not None:
            what += f", {twist}"
        elif rng.random() < 0.25:
            index = rng.randrange(len(parts))
            wrong = rng.choice(WRONG[parts[index].kind])
            what += f", {parts[index].path} is {wrong[:8].hex()}"
            parts[index] = parts[index]._replace(data=wrong)
        elif rng.random() < 0.1:
            what += ", " + reshape(rng, parts)
        data = b"".join(part.data for part in parts)
        is_whole, size = True, len(data)
        if rng.random() < 0.01:
            size = rng.choice((0, 1, size - 1, size + 1, 2**31 - 1, -1 & 0xFFFFFFFF, 104_857_601))
            what += f", length {size}"
            is_whole = False
        sent = struct.pack(">I", size % 2**32) + data
        return Frame(sent, api.key, version, what, self.known.group, is_whole)

    def pieces(
        self, api: KafkaApi, version: int, correlation_id: int, twist: Twist | None = None
    ) -> list[Piece]:
        """The pieces of a request, header first."""
        is_flexible = api.is_flexible(version)
        value = self.value(api.request, version, twist)
        return [
            Piece("api_key", "i16", struct.pack(">h", api.key)),
            Piece("version", "i16", struct.pack(">h", version)),
            Piece("correlation_id", "i32", struct.pack(">i", correlation_id)),
            Piece("client_id", "size16", struct.pack(">h", 4)),
            Piece("client_id", "text", b"fuzz"),
            *([Piece("tags", "uvarint", b"\0")] if is_flexible else ()),
            *_struct(api.request, version, value, is_flexible, ""),
        ]


def _struct(
    shape: Struct, version: int, value: Any, is_flexible: bool, path: str
) -> Iterator[Piece]:
    for one, part in zip(shape.fields, value, strict=True):
        if one.is_in(version):
            yield from _pieces(one, version, part, is_flexible, f"{path}{one.name}")
    if is_flexible:
        yield Piece(f"{path}tags", "uvarint", b"\0")


def _pieces(one: Field, version: int, value: Any, is_flexible: bool, path: str) -> Iterator[Piece]:
    if not one.is_array:
        if isinstance(one.type, Struct):  # which may be null: a byte says so
            yield Piece(path, "i8", struct.pack(">b", -1 if value is None else 1))
        if value is not None or not isinstance(one.type, Struct):
            yield from _element(one, version, value, is_flexible, path)
        return
    yield _size(None if value is None else len(value), is_flexible, path)
    if value and len(value) >= MANY and value[0] is value[-1]:  # one element over and over
        once = b"".join(part.data for part in _element(one, version, value[0], is_flexible, path))
        yield Piece(path, "bytes", once * len(value))
        return
    for element in value or ():
        yield from _element(one, version, element, is_flexible, path)


def _element(one: Field, version: int, value: Any, is_flexible: bool, path: str) -> Iterator[Piece]:
    if isinstance(one.type, Struct):
        yield from _struct(one.type, version, value, is_flexible, f"{path}.")
    elif one.type in _FORMATS:
        yield Piece(path, one.type, struct.pack(_FORMATS[one.type], value))
    else:
        data = value.encode() if isinstance(value, str) else value
        is_short = one.type == "string"
        yield _size(None if data is None else len(data), is_flexible, path, is_short=is_short)
        if data:
            yield Piece(path, "text" if is_short else one.type, bytes(data))


def _size(size: int | None, is_flexible: bool, path: str, *, is_short: bool = False) -> Piece:
    claimed = -1 if size is None else size
    if is_flexible:
        return Piece(path, "uvarint", _uvarint(claimed + 1))
    if is_short:
        return Piece(path, "size16", struct.pack(">h", min(claimed, 2**15 - 1)))
    return Piece(path, "size32", struct.pack(">i", claimed))


def _uvarint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def reshape(rng: random.Random, parts: list[Piece]) -> str:
    """Leave pieces out, double them or add bytes; returns what was done."""
    index = rng.randrange(5, len(parts) + 1)  # the header is as it was
    match rng.randrange(4):
        case 0:
            del parts[index:]
            return f"cut after {index} pieces"
        case 1:
            parts.append(Piece("end", "bytes", rng.randbytes(rng.choice((1, 4, 100)))))
            return "bytes at the end"
        case 2:
            del parts[index : index + 1]
            return f"without piece {index}"
        case _:
            again = parts[index : index + rng.randint(1, 4)]
            parts[index:index] = again * rng.choice((1, 2, 100))
            return f"pieces {index} and on again"


@cache
def twists(api: KafkaApi, version: int) -> tuple[Twist, ...]:
    """Every twist of this api's requests."""
    return tuple(_twists(api.request, version, "")) or (Twist(""),)


def _twists(shape: Struct, version: int, path: str) -> Iterator[Twist]:
    for one in shape.fields:
        if not one.is_in(version):
            continue
        here = f"{path}{one.name}"
        if one.may_be_null(version):
            yield Twist(here, b"" if one.type == "records" else None)
        if one.is_array:
            yield from (Twist(here, times=times, is_value=False) for times in (0, 2, MANY))
            yield Twist(here, times=THOUSANDS, is_value=False)
        if isinstance(one.type, Struct):
            yield from _twists(one.type, version, f"{here}.")
        if one.is_array or isinstance(one.type, Struct):
            continue
        match one.type:
            case "bool":
                yield from (Twist(here, True), Twist(here, False))
            case "string":
                yield from (Twist(here, text) for text in (*STRANGE_TEXTS, LONG_TEXT))
            case "uuid":
                yield from (Twist(here, data) for data in (bytes(16), b"\xff" * 16))
            case "bytes" | "records":
                yield from (Twist(here, data) for data in (b"", b"\0", b"\xff" * 100, LONG_BYTES))
            case _:
                yield from (Twist(here, number) for number in boundaries(_BITS[str(one.type)]))
