"""Encodes structs to bytes and back, with functions generated per struct and version on first use.

A message's fields and version are known before its bytes arrive, so its encoding is generated as
the source of one Python function and compiled, as `dataclasses` does: adjacent fields of fixed size
take one call of `struct`, arrays are loops, and no function is called per field. Functions composed
from closures took twice as long, which was a quarter of a broker's time for a small request
(`python -m tests.bench --only wires`). The docstring of a generated function is its source.

Record bytes are not copied: decoded ones are views of the frame, encoded ones are separate items in
the list of parts.

Received bytes are not trusted. `ProtocolError` is the only exception. A length is only a claim:
nothing is allocated because of it, and a frame may have at most `ELEMENTS_MAX` array elements,
since an element of four bytes takes a hundred in memory.

"Flexible" versions encode lengths differently and have tagged fields at the end of each struct.
Received tagged fields are skipped, and none are sent.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count, groupby
from textwrap import indent
from typing import Any, Final, TypeAlias, cast

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka.schema import Field, Struct, Version
from minibroker.protocol.types import Part, records_size

ELEMENTS_MAX: Final = 100_000
STRING_BYTES_MAX: Final = 2**15 - 1
_UVARINT_BYTES_MAX: Final = 5
_FIXED: Final = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q"}

# Takes a frame and the struct's start; returns its value and its end.
Decode: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
# Takes a value; returns the parts of its encoding.
Encode: TypeAlias = Callable[[Any], list[Part]]


def decode(
    shape: Struct, version: Version, frame: memoryview, at: int = 0, *, is_flexible: bool = False
) -> tuple[Any, int]:
    """Decode the struct at byte `at`; return its value and its end. Raises `ProtocolError`."""
    try:
        return decoder(shape, version, is_flexible)(frame, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"{shape.name} in version {version}: {error}") from None


def encode(shape: Struct, version: Version, value: Any, *, is_flexible: bool = False) -> list[Part]:
    """Encode a value of `shape`. Raises `ProtocolError` for a string that is too long."""
    return encoder(shape, version, is_flexible)(value)


@cache
def decoder(shape: Struct, version: Version, is_flexible: bool) -> Decode:
    """Return the function that decodes a struct.

    It raises `struct.error` for bytes that end too early, `UnicodeDecodeError` for invalid text.
    """
    reading = _Reading(version, is_flexible)
    body = f"left = ELEMENTS_MAX\n{reading.struct(shape, 'value')}return value, at\n"
    return cast(Decode, reading.function("def made(frame, at):", body))


@cache
def encoder(shape: Struct, version: Version, is_flexible: bool) -> Encode:
    """Return the function that encodes a struct."""
    writing = _Writing(version, is_flexible)
    start, end = "parts = []\nout = bytearray()\n", "if out:\n    parts.append(out)\nreturn parts\n"
    body = start + writing.struct(shape, "value") + end
    return cast(Encode, writing.function("def made(value):", body))


class _Making:
    """Generates one function: its variable names, and the objects that its source refers to.

    The subclasses' methods return source lines, each with its newline.
    """

    def __init__(self, version: Version, is_flexible: bool) -> None:
        self._version = version
        self._is_flexible = is_flexible
        self._numbers = count()
        self._objects: dict[str, Any] = dict(_HELPERS)

    def function(self, head: str, body: str) -> Any:
        """Compile the function and return it. Its docstring is its source."""
        text = head + "\n" + indent(body, "    ")
        exec(compile(text, "<codec>", "exec"), self._objects)
        made = self._objects["made"]
        made.__doc__ = text
        return made

    def _name(self) -> str:
        return f"v{next(self._numbers)}"

    def _object(self, thing: object) -> str:
        """Return a name by which the source can refer to an object."""
        name = f"object{next(self._numbers)}"
        self._objects[name] = thing
        return name

    def _is_fixed(self, one: Field) -> bool:
        return not one.is_array and one.type in _FIXED and one.is_in(self._version)


class _Reading(_Making):
    """Generates a function that reads `frame[at:]`. It may still read `left` array elements."""

    def struct(self, shape: Struct, target: str) -> str:
        """Return the source that reads a struct into the variable `target`."""
        lines, names = "", []
        for is_fixed, group in groupby(shape.fields, self._is_fixed):
            fields = list(group)
            if is_fixed:
                own = [self._name() for _ in fields]
                lines += self._fixed("".join(_FIXED[str(one.type)] for one in fields), own)
                names += own
                continue
            for one in fields:
                if one.is_in(self._version):
                    names.append(self._name())
                    lines += self._field(one, names[-1])
                else:
                    names.append(self._object(one.default))
        if self._is_flexible:
            lines += "at = skip_tags(frame, at)\n"
        return lines + f"{target} = {self._object(shape.make)}({', '.join(names)})\n"

    def _fixed(self, formats: str, targets: Sequence[str]) -> str:
        layout = struct.Struct(">" + formats)
        unpack = self._object(layout.unpack_from)
        return f"{', '.join(targets)}, = {unpack}(frame, at)\nat += {layout.size}\n"

    def _field(self, one: Field, target: str) -> str:
        is_long = one.is_array or one.type != "string"
        if one.is_array:
            lines = self._array(one.type, target)
        else:
            lines = self._bytes(str(one.type), target)
        if one.may_be_null(self._version):
            null = "b''" if one.type == "records" else "None"
            lines = f"if n == -1:\n    {target} = {null}\nelse:\n" + indent(lines, "    ")
        return self._length(is_long=is_long) + lines

    def _length(self, *, is_long: bool) -> str:
        if self._is_flexible:
            return "n, at = uvarint(frame, at)\nn -= 1\n"
        return self._fixed("i" if is_long else "h", ["n"])

    def _bytes(self, kind: str, target: str) -> str:
        taken = {"string": "str({}, 'utf-8')", "bytes": "bytes({})", "records": "{}"}[kind]
        return (
            "end = at + n\n"
            "if n < 0 or end > len(frame):\n"
            "    raise too_short(n)\n"
            f"{target} = {taken.format('frame[at:end]')}\n"
            "at = end\n"
        )

    def _array(self, kind: str | Struct, target: str) -> str:
        item = self._name()
        if isinstance(kind, Struct):
            lines = self.struct(kind, item)
        elif kind in _FIXED:
            lines = self._fixed(_FIXED[kind], [item])
        else:
            lines = self._length(is_long=kind != "string") + self._bytes(kind, item)
        return (
            "left -= n\n"
            "if n < 0 or left < 0:\n"
            "    raise too_many(n)\n"
            f"{target} = []\n"
            "for _ in range(n):\n"
        ) + indent(lines + f"{target}.append({item})\n", "    ")


class _Writing(_Making):
    """Generates a function that writes to `out`, and moves `out` to `parts` before records."""

    def struct(self, shape: Struct, source: str) -> str:
        """Return the source that writes the struct in the variable `source`."""
        names = {one.name: self._name() for one in shape.fields}
        lines = f"{', '.join(names.values())}, = {source}\n" if names else ""
        there = [one for one in shape.fields if one.is_in(self._version)]
        for is_fixed, group in groupby(there, self._is_fixed):
            fields = list(group)
            if is_fixed:
                formats = "".join(_FIXED[str(one.type)] for one in fields)
                lines += self._fixed(formats, [names[one.name] for one in fields])
            else:
                lines += "".join(self._field(one, names[one.name]) for one in fields)
        return lines + ("out.append(0)\n" if self._is_flexible else "")

    def _fixed(self, formats: str, sources: Sequence[str]) -> str:
        pack = self._object(struct.Struct(">" + formats).pack)
        return f"out += {pack}({', '.join(sources)})\n"

    def _field(self, one: Field, source: str) -> str:
        lines = self._array(one, source) if one.is_array else self._bytes(str(one.type), source)
        if not one.may_be_null(self._version) or one.type == "records":
            return lines
        null = self._length("-1", is_long=one.is_array or one.type != "string")
        return f"if {source} is None:\n{indent(null, '    ')}else:\n{indent(lines, '    ')}"

    def _length(self, source: str, *, is_long: bool) -> str:
        if self._is_flexible:
            return f"out += uvarint_of({source} + 1)\n"
        return self._fixed("i" if is_long else "h", [source])

    def _bytes(self, kind: str, source: str) -> str:
        if kind == "records":
            return self._length(f"records_size({source})", is_long=True) + (
                f"if {source}:\n"
                "    parts.append(out)\n"
                f"    parts += {source} if isinstance({source}, (list, tuple)) else ({source},)\n"
                "    out = bytearray()\n"
            )
        if kind == "bytes":
            return self._length(f"len({source})", is_long=True) + f"out += {source}\n"
        return (
            f"text = {source}.encode()\n"
            "if len(text) > STRING_BYTES_MAX:\n"
            "    raise too_long(len(text))\n"
            f"{self._length('len(text)', is_long=False)}"
            "out += text\n"
        )

    def _array(self, one: Field, source: str) -> str:
        item = self._name()
        if isinstance(one.type, Struct):
            lines = self.struct(one.type, item)
        elif one.type in _FIXED:
            lines = self._fixed(_FIXED[one.type], [item])
        else:
            lines = self._bytes(one.type, item)
        head = self._length(f"len({source})", is_long=True)
        return f"{head}for {item} in {source}:\n{indent(lines or 'pass', '    ')}"


# -- helpers of the generated functions


def uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint (7 bits a byte, lowest first); return it and its end."""
    number = 0
    for index, byte in enumerate(frame[at : at + _UVARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise ProtocolError("a number that does not end")


def skip_tags(frame: memoryview, at: int) -> int:
    """Return the end of the tagged fields that begin at `at`."""
    tags, at = uvarint(frame, at)
    for _ in range(tags):
        _, at = uvarint(frame, at)
        size, at = uvarint(frame, at)
        at += size
        if at > len(frame):
            raise _too_short(size)
    return at


def _uvarint_of(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _too_short(size: int) -> ProtocolError:
    return ProtocolError(f"a field of {size} bytes, and its frame ends before")


def _too_many(elements: int) -> ProtocolError:
    return ProtocolError(f"an array of {elements}; a frame may have {ELEMENTS_MAX} elements")


def _too_long(size: int) -> ProtocolError:
    return ProtocolError(f"a text of {size} bytes; {STRING_BYTES_MAX} can travel")


_HELPERS: Final = {
    "ELEMENTS_MAX": ELEMENTS_MAX,
    "STRING_BYTES_MAX": STRING_BYTES_MAX,
    "records_size": records_size,
    "skip_tags": skip_tags,
    "too_long": _too_long,
    "too_many": _too_many,
    "too_short": _too_short,
    "uvarint": uvarint,
    "uvarint_of": _uvarint_of,
}
