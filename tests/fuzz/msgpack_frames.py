"""Frames of the msgpack wire that know the types of their fields, right ones and wrong ones.

Messages are dataclasses and named tuples (`protocol/messages/`), and their type hints say what each
field is. A frame's header is a tree of arrays; a frame is wrong because one node of the tree is
replaced by a value of each other type (`WRONG`), or because its lengths lie. As on Kafka's wire a
message may have one `Twist`, and is then still of the right types.
"""

import random
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgpack

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import APIS
from minibroker.protocol.rpc import codec
from minibroker.protocol.rpc.codec import element_of, without_none
from minibroker.protocol.types import Records
from tests.fuzz.frames import (
    LONG_BYTES,
    LONG_TEXT,
    MANY,
    THOUSANDS,
    Frame,
    Twist,
    boundaries,
)
from tests.fuzz.known import ORDERS, STRANGE_TEXTS, Known

KEYS: Final = tuple(ApiKey)
fields_of: Final = cache(codec.fields_of)


class Raw(bytes):
    """Bytes that stand in a header as they are."""


# A value of each type of msgpack, and bytes that are no value.
WRONG: Final[dict[str, Any]] = {
    "nil": None,
    "true": True,
    "false": False,
    **{f"{number}": number for bits in (8, 16, 32, 64) for number in boundaries(bits)},
    "2**63": 2**63,
    "2**64 - 1": 2**64 - 1,
    "0.5": 0.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "no text": "",
    "a text": "text",
    "a long text": LONG_TEXT,
    "invalid text": Raw(b"\xa2\xff\xfe"),
    "no bytes": b"",
    "bytes": b"bytes",
    "16 bytes": bytes(16),
    "long bytes": LONG_BYTES,
    "an empty array": [],
    "an array of an array": [[]],
    "an array of nil": [None],
    "an array of all types": [None, True, 1, -1, 0.5, "t", b"b", [], [[]]],
    "arrays 500 deep": Raw(b"\x91" * 500 + b"\x90"),
    "arrays 5,000 deep": Raw(b"\x91" * 5000 + b"\x90"),
    "20,000 arrays": [[]] * THOUSANDS,
    "20,000 numbers": [0] * THOUSANDS,
    "an empty map": Raw(b"\x80"),
    "a map": Raw(b"\x81\xa1a\x01"),
    "an extension": msgpack.ExtType(5, b"x"),
    "a timestamp": Raw(b"\xd6\xff\0\0\0\1"),
    "a byte that is not used": Raw(b"\xc1"),
    "an array that claims 2**32 - 1": Raw(b"\xdd\xff\xff\xff\xff"),
    "an array that claims 1": Raw(b"\x91"),
    "a map that claims 2**32 - 1": Raw(b"\xdf\xff\xff\xff\xff"),
    "a text that claims 2**32 - 1": Raw(b"\xdb\xff\xff\xff\xff"),
    "bytes that claim 2**32 - 1": Raw(b"\xc6\xff\xff\xff\xff"),
    "nothing": Raw(b""),
}


def pack(value: Any) -> bytes:
    """A tree as msgpack, with what is raw in it. Long arrays have one element over and over."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, list):
        size = len(value)
        start = bytes((0x90 | size,)) if size < 16 else b"\xdd" + struct.pack(">I", size)
        if size >= MANY and value[0] is value[-1]:
            return start + pack(value[0]) * size
        return start + b"".join(map(pack, value))
    return bytes(msgpack.packb(value))


class MsgpackFrames:
    """Makes frames from what is known. `rng` is that of `known`."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._rng = known.rng

    def body(
        self, kind: Any, blobs: list[bytes], twist: Twist | None = None, path: str = ""
    ) -> list[Any]:
        """A message as an array, valid but for the twist; its records are added to `blobs`."""
        prefix = f"{path}." if path else ""
        return [
            self._value(hint, blobs, twist, f"{prefix}{name}") for name, hint in fields_of(kind)
        ]

    def _value(self, hint: Any, blobs: list[bytes], twist: Twist | None, path: str) -> Any:
        name = path.rpartition(".")[2]
        here = twist is not None and twist.path == path
        is_above = twist is not None and twist.path.startswith(f"{path}.")
        if twist is not None and here and twist.is_value:
            if hint == Records:
                return _blob(blobs, twist.value)
            return twist.value
        if hint == Records:
            return _blob(blobs, self.known.records())
        if inner := without_none(hint):
            if not here and not is_above and self.known.is_null(name):
                return None
            return self._value(inner, blobs, twist, path)
        if element := element_of(hint):
            if twist is not None and here:
                return [self._value(element, blobs, None, path)] * twist.times
            count = max(1, self.known.count()) if is_above else self.known.count()
            return [self._value(element, blobs, twist, path) for _ in range(count)]
        if hint is bool:
            return self._rng.random() < 0.5
        if hint is int:
            return self.known.number(name)
        if hint is str:
            return self.known.text(path)
        if hint is bytes:
            return self.known.blob(name)
        return self.body(hint, blobs, twist, path)

    def tree(
        self, key: int, correlation_id: int, twist: Twist | None = None
    ) -> tuple[list[Any], bytes]:
        """The header of a request, and its blobs."""
        blobs: list[bytes] = []
        body = self.body(APIS[ApiKey(key)].request, blobs, twist)
        return [key, 0, correlation_id, "fuzz", body, list(map(len, blobs))], b"".join(blobs)

    def frame(self, key: int, correlation_id: int, twist: Twist | None = None) -> Frame:
        """A frame of this api: with this twist, or sound, or, in a third of all cases, wrong."""
        rng = self._rng
        self.known.begin(key)
        header, blobs = self.tree(key, correlation_id, twist)
        what = ApiKey(key).name
        if twist is not None:
            what += f", {twist}"
        elif rng.random() < 0.3:
            path = rng.choice(list(paths(header)))
            name = rng.choice(tuple(WRONG))
            what += f", {path} is {name}"
            replace(header, path, WRONG[name])
        packed = pack(header)
        size, is_whole = len(packed), True
        if rng.random() < 0.03:
            packed, what = _harmed(rng, packed, what)
            size = len(packed)
        elif rng.random() < 0.01:
            size = rng.choice((0, size - 1, size + 1, 2**31, 2**32 - 1))
            what += f", a header of {size}"
        length = 4 + len(packed) + len(blobs)
        if rng.random() < 0.01:
            length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**32 - 1, 104_857_601))
            what += f", length {length}"
            is_whole = False
        data = struct.pack(">II", length, size) + packed + blobs
        return Frame(data, key, 0, what, self.known.group, is_whole)


def _blob(blobs: list[bytes], data: bytes) -> int | None:
    if not data:
        return None
    blobs.append(data)
    return len(blobs) - 1


def _harmed(rng: random.Random, packed: bytes, what: str) -> tuple[bytes, str]:
    data = bytearray(packed)
    position = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            data[position] = rng.randrange(256)
        case 1:
            del data[position : position + rng.randint(1, 4)]
        case _:
            data[position:position] = rng.randbytes(rng.randint(1, 4))
    return bytes(data), f"{what}, bytes changed at {position}"


def paths(tree: list[Any], above: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The indexes that lead to each node; of long arrays only to the first elements."""
    for index, value in enumerate(tree[:40]):
        yield (*above, index)
        if isinstance(value, list):
            yield from paths(value, (*above, index))


def replace(tree: list[Any], path: tuple[int, ...], value: Any) -> None:
    """Put a value where the path leads. Elements that were one object are so afterwards."""
    for index in path[:-1]:
        tree = tree[index]
    tree[path[-1]] = value


@cache
def twists(key: int) -> tuple[Twist, ...]:
    """Every twist of this api's requests."""
    return tuple(_twists(APIS[ApiKey(key)].request, "")) or (Twist(""),)


def _twists(kind: Any, path: str) -> Iterator[Twist]:
    for name, hint in fields_of(kind):
        here = f"{path}{name}"
        if name in ORDERS:
            continue
        inner = without_none(hint)
        if inner:
            yield Twist(here)
            hint = inner
        if hint == Records:
            yield from (Twist(here, data) for data in (b"", b"\0", b"\xff" * 100, LONG_BYTES))
        elif element := element_of(hint):
            yield from (
                Twist(here, times=times, is_value=False) for times in (0, 2, MANY, THOUSANDS)
            )
            if hasattr(element, "__annotations__"):
                yield from _twists(element, f"{here}.")
        elif hint is bool:
            yield from (Twist(here, True), Twist(here, False))
        elif hint is int:
            yield from (Twist(here, number) for bits in (32, 64) for number in boundaries(bits))
        elif hint is str:
            yield from (Twist(here, text) for text in (*STRANGE_TEXTS, LONG_TEXT))
        elif hint is bytes:
            yield from (Twist(here, data) for data in (b"", b"\0", bytes(16), LONG_BYTES))
        else:
            yield from _twists(hint, f"{here}.")
