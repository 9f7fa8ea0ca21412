r"""kcat's format strings and offsets, for `consume`.

A format string is compiled once into one function per piece, because it runs for every record:
`%t` topic, `%p` partition, `%o` offset, `%k` key, `%K` its length, `%s` value, `%S` its length,
`%R` the value's length as 4 bytes, `%T` timestamp in ms, `%h` headers, `%%` a percent sign, and
the escapes `\n`, `\r`, `\t`, `\\`, `\xHH`. A null key or value prints nothing; its length is -1.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from minibroker.client import ConsumerRecord

Piece: TypeAlias = "Callable[[ConsumerRecord], bytes]"

TOKEN: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


LONG_MAX: Final = 2**63 - 1
LONG_DIGITS_MAX: Final = 20


class FormatError(ValueError):
    """An invalid format string or offset; the text is for the user."""


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: "ConsumerRecord") -> bytes:
    pairs = (name.encode() + b"=" + (value or b"") for name, value in record.headers)
    return b",".join(pairs)


PIECES: Final[dict[str, Piece]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _size(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _size(record.value),
    "R": lambda record: _size(record.value).to_bytes(4, "big", signed=True),
    "T": lambda record: b"%d" % record.timestamp,
    "h": _headers,
}


def _constant(text: bytes) -> Piece:
    return lambda record: text


def _bytes(text: str) -> bytes:
    """Return the bytes as typed: surrogate escapes stand for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def compile_format(text: str, null: bytes = b"") -> Piece:
    """Return a function that formats a record; `null` is printed for a null key or value.

    Raises `FormatError`, which names the bad token.
    """
    pieces: list[Piece] = []
    position = 0
    for match in TOKEN.finditer(text):
        if match.start() > position:
            pieces.append(_constant(_bytes(text[position : match.start()])))
        position = match.end()
        pieces.append(_piece(match, null))
    if position < len(text):
        pieces.append(_constant(_bytes(text[position:])))
    if len(pieces) == 1:
        return pieces[0]
    return lambda record: b"".join([piece(record) for piece in pieces])


def _piece(match: re.Match[str], null: bytes) -> Piece:
    token, hexadecimal, escape = match.groups()
    if hexadecimal is not None:
        return _constant(bytes.fromhex(hexadecimal))
    if escape is not None and escape in ESCAPES:
        return _constant(ESCAPES[escape])
    if token == "%":
        return _constant(b"%")
    if null and token == "k":
        return lambda record: null if record.key is None else record.key
    if null and token == "s":
        return lambda record: null if record.value is None else record.value
    if token is not None and token in PIECES:
        return PIECES[token]
    known = " ".join(f"%{name}" for name in PIECES)
    raise FormatError(f"{match.group()!r} is no format token; there are {known} %%")


class Start(NamedTuple):
    """Where reading starts: `kind` is beginning, end, offset, tail (before the end), time (ms)."""

    kind: str
    number: int = 0


def parse_offset(text: str) -> Start:
    """Parse `beginning`, `end`, `N`, `-N` (before the end), `s@TIME` (ms since 1970, ISO 8601)."""
    if text in ("beginning", "earliest", "end", "latest"):
        return Start({"earliest": "beginning", "latest": "end"}.get(text, text))
    if text.startswith("s@"):
        return Start("time", _time_ms(text.removeprefix("s@")))
    if re.fullmatch(r"-?\d+", text):
        number = _long(text)
        return Start("tail", -number) if text.startswith("-") else Start("offset", number)
    raise FormatError(f"{text!r} is no offset: beginning, end, N, -N, s@TIME or e@TIME")


def parse_end(text: str) -> int | None:
    """Return the time in ms of `e@TIME`, where reading ends; None for a text of another form."""
    return _time_ms(text.removeprefix("e@")) if text.startswith("e@") else None


def _long(text: str) -> int:
    """Parse a number of at most 63 bits, as every offset and time has."""
    if len(text) > LONG_DIGITS_MAX or abs(int(text)) > LONG_MAX:
        raise FormatError(f"{text!r} has more than 63 bits")
    return int(text)


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return _long(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise FormatError(f"{text!r} is no time: milliseconds since 1970, or ISO 8601") from None
