"""Converts messages to frames and back: the msgpack wire of docs/wire.md.

    frame    = length u32 | header length u32 | header (msgpack) | blobs
    request  = [api_key, version, correlation_id, client_id, body, blob_sizes]
    answer   = [correlation_id, body, blob_sizes]

A body is the array of a message's fields in their order. Record bytes follow the header as blobs,
and the field holds the index of its blob, so that no record is copied here. This module knows no
message by name: the functions that encode and decode a message type are created from its field
types on first use (which keeps start-up short) and cached.

Evolution: fields that a peer left out get their defaults, and extra fields are ignored.

Received bytes are not trusted: every value is checked for its type, integers for 64 bits, and
`ProtocolError` is the only exception. Memory is bounded before it is allocated: an array in msgpack
states its length first, and a thousand nested claims in a small frame would reserve gigabytes, so a
header of more than a few hundred bytes is first walked without building anything.

A byte of a header can take a third of a microsecond to unpack. A request with a larger header than
`HEADER_AT_ONCE_BYTES` is decoded in turns, by its message's types: `decode_request` raises
`TooManyElements` for it. A response with many elements is encoded in turns.
"""

import typing
from collections.abc import Callable, Generator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from operator import attrgetter
from struct import Struct
from types import NoneType, UnionType
from typing import Any, TypeAlias

import msgpack  # type: ignore[import-untyped]

from minibroker.protocol.constants import (
    ELEMENTS_AT_ONCE,
    ELEMENTS_MAX,
    HEADER_BYTES_MAX,
    INT64_MAX,
    REQUEST_HEADER_BYTES_MAX,
    SMALL_REQUEST_BYTES_MAX,
    ApiKey,
)
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.messages import APIS, Api, RequestEnvelope, UnsupportedVersion
from minibroker.protocol.types import EMPTY_RECORDS, Buffer, Records, records_size

_PREFIX = Struct(">II")
_HEADER_LENGTH = Struct(">I")
_UNSIGNED_64 = b"\xcf"  # the first byte of an integer above INT64_MAX
# Up to this size false lengths cannot reserve more than 2 MB.
_UNWALKED_BYTES_MAX = 512
# A request with a larger header is decoded in turns.
HEADER_AT_ONCE_BYTES = 16 * 1024
# An element of an array that is at most so large is unpacked without a pause.
_ELEMENT_AT_ONCE_BYTES = 4 * 1024
# So many elements of a response's arrays are encoded without a pause. Each may have many itself.
_ENCODED_AT_ONCE = 50
_NESTED_AS_ONE = 8

# The types that msgpack encodes unchanged.
_PLAIN = (int, bool, str, bytes)

_API_OF = {int(key): api for key, api in APIS.items()}
_REQUEST_PARTS = 6
_RESPONSE_PARTS = 3
_NIL = 0xC0
_pack = msgpack.Packer(buf_size=64 * 1024).pack

_Encode: TypeAlias = Callable[[Any, list[Records]], object]
_Decode: TypeAlias = Callable[[Any, Sequence[memoryview]], Any]


# -- whole frames


def encode_request(envelope: RequestEnvelope) -> list[Buffer]:
    """Encode a request as a frame: lengths and header in the first buffer, then the records."""
    blobs: list[Any] = []
    body = _encoder_of(envelope.message.__class__)(envelope.message, blobs)
    sizes = list(map(len, blobs))
    api_key, version, correlation_id, client_id, _ = envelope
    header = _pack((int(api_key), version, correlation_id, client_id, body, sizes))
    prefix = _PREFIX.pack(_HEADER_LENGTH.size + len(header) + sum(sizes), len(header))
    return [prefix + header, *blobs]


def encode_response(correlation_id: int, message: Any) -> tuple[bytes, list[Records]]:
    """Encode an answer; return the first bytes of its frame, and the records that follow."""
    blobs: list[Records] = []
    body = _encoder_of(message.__class__)(message, blobs)
    sizes = list(map(records_size, blobs))
    header = _pack((correlation_id, body, sizes))
    prefix = _PREFIX.pack(_HEADER_LENGTH.size + len(header) + sum(sizes), len(header))
    return prefix + header, blobs


def is_large_response(message: Any) -> bool:
    """Whether `encode_response_in_turns` is to encode a response."""
    return _work_of(message, _ENCODED_AT_ONCE) > _ENCODED_AT_ONCE


def _work_of(message: Any, enough: int) -> int:
    """Return how many elements a message's arrays have, or a number above `enough` once there are
    more. Those in their elements are mostly small, so that some count as one."""
    count = nested = 0
    for name, has_arrays in _array_fields(message.__class__):
        elements = getattr(message, name) or ()
        count += len(elements)
        if count > enough:
            break
        if has_arrays:
            for each in elements:
                nested += _work_of(each, _NESTED_AS_ONE * enough)
                if nested > _NESTED_AS_ONE * enough:
                    break
    return count + nested // _NESTED_AS_ONE


@cache
def _array_fields(message_type: type) -> tuple[tuple[str, bool], ...]:
    """Return the names of a message's arrays, and whether their elements have arrays."""
    elements = {
        name: element_of(without_none(hint) or hint) for name, hint in fields_of(message_type)
    }
    return tuple((name, _has_arrays(one)) for name, one in elements.items() if one is not None)


def _has_arrays(element: Any) -> bool:
    is_message = isinstance(element, type) and element not in _PLAIN and element is not Records
    return is_message and bool(_array_fields(element))


def encode_response_in_turns(
    correlation_id: int, message: Any
) -> Generator[None, None, tuple[bytes, list[Records]]]:
    """As `encode_response`, with pauses. Raises `ProtocolError` for a response that is too large
    for clients (`HEADER_BYTES_MAX`)."""
    blobs: list[Records] = []
    packer = msgpack.Packer()
    header = bytearray(packer.pack_array_header(_RESPONSE_PARTS) + packer.pack(correlation_id))
    yield from _encode_in_turns(message, packer, header, blobs)
    sizes = list(map(records_size, blobs))
    header += packer.pack(sizes)
    prefix = _PREFIX.pack(_HEADER_LENGTH.size + len(header) + sum(sizes), len(header))
    return prefix + header, blobs


def _encode_in_turns(
    message: Any, packer: msgpack.Packer, header: bytearray, blobs: list[Records]
) -> Generator[None, None, None]:
    """Append a message to a header; its records go to `blobs`."""
    described = fields_of(message.__class__)
    has_arrays = dict(_array_fields(message.__class__))
    enough = _NESTED_AS_ONE * _ENCODED_AT_ONCE
    header += packer.pack_array_header(len(described))
    for name, hint in described:
        value, encode = getattr(message, name), _encoder(hint)
        if type(value) is not tuple:
            header += packer.pack(encode(value, blobs) if encode else value)
            continue
        header += packer.pack_array_header(len(value))
        element = _encoder(element_of(without_none(hint) or hint))
        count = 0
        for each in value:
            nested = _work_of(each, enough) if has_arrays[name] else 0
            if nested > enough:
                yield from _encode_in_turns(each, packer, header, blobs)
            else:
                header += packer.pack(element(each, blobs) if element else each)
            count += 1 + nested // _NESTED_AS_ONE
            if count >= _ENCODED_AT_ONCE:
                count = 0
                if len(header) > HEADER_BYTES_MAX:
                    what = f"a response has {HEADER_BYTES_MAX} bytes without its records"
                    raise ProtocolError(what)
                yield


def decode_request(frame: memoryview) -> RequestEnvelope:
    """Decode a request from a frame without its length; records are views of `frame`.

    Raises `UnsupportedVersion` for an api or a version that is not served, `TooManyElements` for a
    request that `decode_request_in_turns` may decode, `ProtocolError` for bytes that are no
    request.
    """
    if _header_size(frame) > HEADER_AT_ONCE_BYTES:
        raise TooManyElements(f"a header of {_header_size(frame)} bytes")
    header, rest = _split(frame, REQUEST_HEADER_BYTES_MAX)
    if len(header) < _REQUEST_PARTS:
        raise ProtocolError(f"a request header has {_REQUEST_PARTS} parts, not {len(header)}")
    api_key, version, correlation_id, client_id, body, sizes = header[:_REQUEST_PARTS]
    api = _api_of(api_key, version, correlation_id, client_id, len(frame))
    message = _decoder_of(api.request)(body, _blobs(rest, sizes))
    return RequestEnvelope(api_key, version, correlation_id, client_id, message)


def decode_request_in_turns(frame: memoryview) -> Generator[None, None, RequestEnvelope]:
    """As `decode_request`, with pauses, for a request with a large header. Nobody may change
    `frame` meanwhile. Raises `TooManyElements` above `ELEMENTS_MAX`."""
    packed, rest = _packed_header(frame, REQUEST_HEADER_BYTES_MAX)
    try:
        return (yield from _decode_in_turns(packed, rest, len(frame)))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a header that is not msgpack: {error!r}") from error


def _decode_in_turns(
    packed: bytes, rest: memoryview, size: int
) -> Generator[None, None, RequestEnvelope]:
    """The sizes of the blobs are behind the body, so the header is read twice."""
    reader = _HeaderReader(packed)
    parts = reader.array("a request header")
    if parts < _REQUEST_PARTS:
        raise ProtocolError(f"a request header has {_REQUEST_PARTS} parts, not {parts}")
    api_key, version, correlation_id, client_id = (reader.value() for _ in range(4))
    api = _api_of(api_key, version, correlation_id, client_id, size)
    start = reader.position
    reader.skip()
    end = reader.position
    sizes = [reader.value() for _ in range(reader.array("the sizes of blobs"))]
    for _ in range(parts - _REQUEST_PARTS):
        reader.skip()
    if reader.position != len(packed):
        raise ProtocolError("a header with bytes behind its end")
    yield
    body = _HeaderReader(packed[start:end])
    message = yield from body.message(api.request, _blobs(rest, sizes))
    return RequestEnvelope(api_key, version, correlation_id, client_id, message)


def _api_of(
    api_key: object, version: object, correlation_id: object, client_id: object, size: int
) -> Api:
    """Return the api of a request with these header fields, in a frame of `size` bytes."""
    for number in (api_key, version, correlation_id):
        if type(number) is not int:
            raise ProtocolError(f"a request header begins with integers, not {_name(number)}")
    if client_id is not None and type(client_id) is not str:
        raise ProtocolError(f"a client id is text or nil, not {_name(client_id)}")
    assert isinstance(api_key, int)
    assert isinstance(version, int)
    assert isinstance(correlation_id, int)
    api = _API_OF.get(api_key)
    if api is None or not api.version_min <= version <= api.version_max:
        raise UnsupportedVersion(api_key, version, correlation_id)
    if size > SMALL_REQUEST_BYTES_MAX and api_key != ApiKey.PRODUCE:
        name = ApiKey(api_key).name
        raise ProtocolError(f"{name} with {size} bytes; it may have {SMALL_REQUEST_BYTES_MAX}")
    return api


def decode_response(frame: memoryview, api_key: int, version: int) -> tuple[int, object]:
    """Decode an answer; return correlation id and message. Records are views of `frame`.

    `api_key` and `version` are those of the request, since an answer does not repeat them.
    """
    api = _API_OF[api_key]
    assert api.version_min <= version <= api.version_max
    header, rest = _split(frame, HEADER_BYTES_MAX)
    if len(header) < 3:
        raise ProtocolError(f"the header of an answer has 3 parts, not {len(header)}")
    correlation_id, body, sizes = header[:3]
    if type(correlation_id) is not int:
        raise ProtocolError(f"a correlation id is an integer, not {_name(correlation_id)}")
    return correlation_id, _decoder_of(api.response)(body, _blobs(rest, sizes))


def _header_size(frame: memoryview) -> int:
    """Return the size of a frame's header, as the frame says."""
    if len(frame) < _HEADER_LENGTH.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header")
    size: int = _HEADER_LENGTH.unpack_from(frame)[0]
    return size


def _packed_header(frame: memoryview, header_bytes_max: int) -> tuple[bytes, memoryview]:
    """Return a frame's header, and the bytes behind it."""
    size = _header_size(frame)
    end = _HEADER_LENGTH.size + size
    if size > header_bytes_max or end > len(frame):
        raise ProtocolError(f"a header of {size} bytes in a frame of {len(frame)}")
    return bytes(frame[_HEADER_LENGTH.size : end]), frame[end:]


def _split(frame: memoryview, header_bytes_max: int) -> tuple[list[Any], memoryview]:
    """Return the unpacked header, and the bytes behind it."""
    packed, rest = _packed_header(frame, header_bytes_max)
    try:
        if len(packed) > _UNWALKED_BYTES_MAX:
            _walk(packed)
        header = msgpack.unpackb(packed, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a header that is not msgpack: {error!r}") from error
    if type(header) is not list:
        raise ProtocolError(f"a header is an array, not {_name(header)}")
    if _UNSIGNED_64 in packed:
        _refuse_huge_integers(header)
    return header, rest


def _refuse_huge_integers(header: list[Any]) -> None:
    """Raise `ProtocolError` for an integer above INT64_MAX: integers are signed, of 64 bits."""
    unchecked = [header]
    while unchecked:
        for value in unchecked.pop():
            if type(value) is list:
                unchecked.append(value)
            elif type(value) is int and value > INT64_MAX:
                raise ProtocolError(f"{value} has more than 63 bits")


def _walk(packed: bytes) -> None:
    """Check every length in `packed` without building anything."""
    unpacker = msgpack.Unpacker(read_size=1, max_buffer_size=len(packed))
    unpacker.feed(packed)
    unpacker.skip()
    if unpacker.tell() != len(packed):
        raise ProtocolError("a header with bytes behind its end")


def _blobs(rest: memoryview, sizes: object) -> list[memoryview]:
    if type(sizes) is not list:
        raise ProtocolError(f"the sizes of blobs are an array, not {_name(sizes)}")
    blobs = []
    position, end = 0, len(rest)
    for size in sizes:
        if type(size) is not int or not 0 <= size <= end - position:
            raise ProtocolError(f"a blob of {size!r} bytes where {end - position} are left")
        blobs.append(rest[position : position + size])
        position += size
    if position != end:
        raise ProtocolError(f"{end - position} bytes behind the last blob")
    return blobs


def _name(value: object) -> str:
    return type(value).__name__


# -- a large header


class _HeaderReader:
    """Reads packed values one by one. Arrays are entered, so none is built before its elements have
    been checked, and their elements are counted."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._left = ELEMENTS_MAX
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=len(packed), max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(packed)

    @property
    def position(self) -> int:
        """The first byte that is not read yet."""
        at: int = self._unpacker.tell()
        return at

    def skip(self) -> None:
        """Read a value without building it."""
        self._unpacker.skip()

    def value(self) -> Any:
        """Return a value that is no array."""
        value = self._unpacker.unpack()
        if type(value) is int and value > INT64_MAX:
            raise ProtocolError(f"{value} has more than 63 bits")
        return value

    def array(self, what: str) -> int:
        """Enter an array; return the count of its elements, all of which are there."""
        count: int = self._unpacker.read_array_header()
        if count > len(self._packed) - self.position:
            raise ProtocolError(f"{what}: an array of {count} elements in a smaller frame")
        return count

    def message(
        self, message_type: type, blobs: Sequence[memoryview]
    ) -> Generator[None, None, Any]:
        """Return a message, decoded in turns."""
        described = fields_of(message_type)
        count = self.array(message_type.__name__)
        values = []
        for name, hint in described[:count]:
            where = f"{message_type.__name__}.{name}"
            values.append((yield from self._field(hint, where, blobs)))
        for _ in range(count - len(described)):
            self.skip()
        if any(not has_default(message_type, name) for name, _ in described[count:]):
            raise ProtocolError(f"{message_type.__name__} has more than {count} fields")
        return message_type(*values)

    def _field(
        self, hint: Any, where: str, blobs: Sequence[memoryview]
    ) -> Generator[None, None, Any]:
        if inner := without_none(hint):
            if self._packed[self.position : self.position + 1] == bytes((_NIL,)):
                return self.value()
            return (yield from self._field(inner, where, blobs))
        if element := element_of(hint):
            return (yield from self._elements(element, where, blobs))
        if hint in _PLAIN or hint == Records:
            value = self.value()
            if type(value) not in _kinds_of(hint):
                raise ProtocolError(f"{where} cannot be {_name(value)}")
            decode = _decoder(hint, where)
            return decode(value, blobs) if decode else value
        return (yield from self.message(hint, blobs))

    def _elements(
        self, hint: Any, where: str, blobs: Sequence[memoryview]
    ) -> Generator[None, None, tuple[Any, ...]]:
        count = self.array(where)
        self._left -= count
        if self._left < 0:
            raise TooManyElements(f"{where}: more than {ELEMENTS_MAX} elements in a frame")
        kinds, decode = _kinds_of(hint), _decoder(hint, where)
        values = []
        pause_at = 0
        for index in range(count):
            start = self.position
            if index == pause_at + ELEMENTS_AT_ONCE:
                pause_at = index
                yield
            self.skip()
            packed = self._packed[start : self.position]
            if len(packed) > _ELEMENT_AT_ONCE_BYTES:
                reader = _HeaderReader(packed)
                reader._left = self._left
                value = yield from reader._field(hint, where, blobs)
                self._left = reader._left
            else:
                value = msgpack.unpackb(packed, max_map_len=0, max_ext_len=0)
                if type(value) not in kinds:
                    raise ProtocolError(f"{where} is an array, and has {_name(value)} in it")
                if _UNSIGNED_64 in packed:
                    _refuse_huge_integers([value])
                value = decode(value, blobs) if decode else value
            values.append(value)
        return tuple(values)


# -- one message


def fields_of(message_type: type) -> list[tuple[str, Any]]:
    """Return names and types of a message's fields, in their order on the wire."""
    return list(typing.get_type_hints(message_type).items())


def without_none(hint: Any) -> Any:
    """Return T if the type is `T | None`, else None."""
    if typing.get_origin(hint) not in (UnionType, typing.Union) or hint == Records:
        return None
    kinds = [kind for kind in typing.get_args(hint) if kind is not NoneType]
    assert len(kinds) == 1, f"{hint} does not travel"
    return kinds[0]


def element_of(hint: Any) -> Any:
    """Return T if the type is `tuple[T, ...]`, else None."""
    if typing.get_origin(hint) is not tuple:
        return None
    element, dots = typing.get_args(hint)
    assert dots is Ellipsis, f"{hint} does not travel"
    return element


@cache
def _encoder_of(message_type: type) -> _Encode:
    described = fields_of(message_type)
    names = [name for name, _ in described]
    values_of = attrgetter(*names)
    changed = [
        (index, encode) for index, (_, hint) in enumerate(described) if (encode := _encoder(hint))
    ]

    def encode_plain(message: object, _blobs: list[Records]) -> object:
        return values_of(message)

    def encode_single(message: object, _blobs: list[Records]) -> object:
        return (values_of(message),)

    def encode_message(message: object, blobs: list[Records]) -> object:
        values: list[object] = list(values_of(message)) if len(names) > 1 else [values_of(message)]
        for index, encode in changed:
            values[index] = encode(values[index], blobs)
        return values

    if changed:
        return encode_message
    return encode_plain if len(names) > 1 else encode_single


def _encoder(hint: Any) -> _Encode | None:
    """Return how a field of this type is converted before packing; None: not at all."""
    if hint == Records:
        return _encode_records
    if inner := without_none(hint):
        return _optional_encoder(_encoder(inner))
    if element := element_of(hint):
        return _tuple_encoder(_encoder(element))
    return None if hint in _PLAIN else _encoder_of(hint)


def _optional_encoder(encode: _Encode | None) -> _Encode | None:
    if encode is None:
        return None
    return lambda value, blobs: None if value is None else encode(value, blobs)


def _tuple_encoder(encode: _Encode | None) -> _Encode | None:
    if encode is None:
        return None
    return lambda value, blobs: list(map(encode, value, repeat(blobs)))


def _encode_records(records: Records, blobs: list[Records]) -> object:
    if not records:
        return None
    blobs.append(records)
    return len(blobs) - 1


@cache
def _decoder_of(message_type: type) -> _Decode:
    described = fields_of(message_type)
    kinds = [_kinds_of(hint) for _, hint in described]
    changed = [
        (index, decode)
        for index, (name, hint) in enumerate(described)
        if (decode := _decoder(hint, f"{message_type.__name__}.{name}"))
    ]
    required = sum(1 for name, _ in described if not has_default(message_type, name))
    # The combinations of types that passed the check; there are few of them.
    checked: set[tuple[type, ...]] = set()

    def check(arrived: tuple[type, ...]) -> None:
        if len(arrived) < required:
            raise ProtocolError(f"{message_type.__name__} has at least {required} fields")
        for (name, _), expected, kind in zip(described, kinds, arrived, strict=False):
            if kind not in expected:
                raise ProtocolError(f"{message_type.__name__}.{name} cannot be {kind.__name__}")
        checked.add(arrived)

    def decode_message(values: Any, blobs: Sequence[memoryview]) -> Any:
        if type(values) is not list:
            raise ProtocolError(f"{message_type.__name__} is an array, not {_name(values)}")
        del values[len(kinds) :]
        arrived = tuple(map(type, values))
        if arrived not in checked:
            check(arrived)
        for index, decode in changed:
            if index < len(values):
                values[index] = decode(values[index], blobs)
        return message_type(*values)

    return decode_message


def has_default(message_type: type, name: str) -> bool:
    """Return whether the field has a default, so that a peer may leave it out."""
    if is_dataclass(message_type):
        return any(f.name == name and f.default is not MISSING for f in fields(message_type))
    return name in message_type._field_defaults  # type: ignore[attr-defined]  # a named tuple


def _kinds_of(hint: Any) -> tuple[type, ...]:
    """Return the types that msgpack may have unpacked for a field of this type."""
    if hint == Records:
        return (NoneType, int)
    if inner := without_none(hint):
        return (NoneType, *_kinds_of(inner))
    return (hint,) if hint in _PLAIN else (list,)


def _decoder(hint: Any, where: str) -> _Decode | None:
    """Return how an unpacked value is converted to a field of this type; None: not at all."""
    if hint in _PLAIN:
        return None
    if hint == Records:
        return partial(_decode_records, where)
    if inner := without_none(hint):
        decode = _decoder(inner, where)
        return decode and partial(_decode_optional, decode)
    if element := element_of(hint):
        decode = _decoder(element, where)
        if decode is not None and _is_message(element):
            return partial(_decode_tuple, decode)
        return partial(_decode_checked_tuple, frozenset(_kinds_of(element)), decode, where)
    return _decoder_of(hint)


def _is_message(hint: Any) -> bool:
    """Return whether the decoder of this type checks by itself that it gets an array."""
    is_bare = hint in _PLAIN or hint == Records or without_none(hint) or element_of(hint)
    return not is_bare


def _decode_records(where: str, index: int | None, blobs: Sequence[memoryview]) -> Any:
    if index is None:
        return EMPTY_RECORDS
    if 0 <= index < len(blobs):
        return blobs[index]
    raise ProtocolError(f"{where} is blob {index} of {len(blobs)}")


def _decode_optional(decode: _Decode, value: Any, blobs: Sequence[memoryview]) -> Any:
    return None if value is None else decode(value, blobs)


def _decode_checked_tuple(
    kinds: frozenset[type],
    decode: _Decode | None,
    where: str,
    values: "list[Any]",
    blobs: Sequence[memoryview],
) -> Any:
    """Decode an array whose elements nothing else checks, such as integers or arrays of them."""
    if not kinds.issuperset(map(type, values)):
        names = " or ".join(sorted(kind.__name__ for kind in kinds))
        raise ProtocolError(f"{where} is an array of {names}")
    return tuple(values) if decode is None else tuple(map(decode, values, repeat(blobs)))


def _decode_tuple(decode: _Decode, values: "list[Any]", blobs: Sequence[memoryview]) -> Any:
    return tuple(map(decode, values, repeat(blobs)))
