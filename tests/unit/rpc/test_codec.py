"""Messages to frames and back; what a peer sends is not trusted (rows NET-01, NET-02, NET-04)."""

import struct
import tracemalloc
from dataclasses import dataclass
from typing import get_args

import msgpack
import pytest

from minibroker.protocol.constants import (
    ELEMENTS_AT_ONCE,
    ELEMENTS_MAX,
    REQUEST_HEADER_BYTES_MAX,
    SMALL_REQUEST_BYTES_MAX,
    ApiKey,
)
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.messages import APIS, RequestEnvelope, UnsupportedVersion
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnResponse,
    TransactionPartitionResult,
    TransactionPartitionsAdded,
)
from minibroker.protocol.rpc import codec
from minibroker.protocol.rpc.codec import (
    decode_request,
    decode_request_in_turns,
    decode_response,
    encode_request,
    encode_response,
    encode_response_in_turns,
    is_large_response,
)
from minibroker.protocol.types import records_size
from tests.unit.rpc.samples import full, request_frame, requests, response_frame, responses


def frame_of(header: object, *blobs: bytes) -> memoryview:
    """A frame around any header."""
    return frame_around(msgpack.packb(header), *blobs)


def frame_around(packed: bytes, *blobs: bytes) -> memoryview:
    """A frame around any bytes."""
    return memoryview(b"".join([struct.pack(">I", len(packed)), packed, *blobs]))


@pytest.mark.parametrize("envelope", requests(), ids=lambda each: type(each.message).__name__)
def test_requests_come_back_equal(envelope):
    """Every field of every request survives the wire; correlation id -1 and no client id too."""
    assert decode_request(memoryview(request_frame(envelope))) == envelope


@pytest.mark.parametrize(("key", "message"), responses())
def test_responses_come_back_equal(key, message):
    """Every field of every response survives the wire."""
    assert decode_response(memoryview(response_frame(-5, message)), key, 0) == (-5, message)


def test_lengths_say_what_follows():
    """The first length counts all that follows it, the second the header (docs/wire.md)."""
    first, *blobs = encode_request(requests()[0])
    length, header_length = struct.unpack_from(">II", first)
    assert blobs
    assert length == len(b"".join([first, *blobs])) - 4
    assert header_length == len(first) - 8


def test_records_are_not_copied():
    """Encoding hands the same bytes on; decoding gives views of the frame."""
    batch = bytearray(b"batch")
    message = ProduceRequest(1, 5, (PartitionProduce("t", 0, batch),))
    buffers = encode_request(RequestEnvelope(ApiKey.PRODUCE, 0, 1, None, message))
    assert buffers[1] is batch
    frame = bytearray(b"".join(buffers)[4:])
    decoded = decode_request(memoryview(frame)).message.partitions[0].records
    frame[-5:] = b"other"
    assert decoded == b"other"


def test_an_answer_of_slices_is_as_long_as_all_of_them():
    """A blob may be a list of slices; its size is their sum, and no records are no blob."""
    message = FetchResponse(
        0, 0, (PartitionFetched("t", 0, records=[b"ab", b"cde"]), PartitionFetched("t", 1))
    )
    header, blobs = encode_response(3, message)
    assert blobs == [[b"ab", b"cde"]]
    assert records_size(blobs[0]) == 5
    decoded = decode_response(memoryview(header[4:] + b"abcde"), ApiKey.FETCH, 0)[1]
    assert [bytes(each.records) for each in decoded.partitions] == [b"abcde", b""]


# -- evolution


@dataclass(frozen=True, slots=True)
class Newer:
    """`Older` after two fields were added."""

    name: str
    count: int = 3
    note: str | None = None
    flags: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, slots=True)
class Older:
    """What an older peer knows."""

    name: str
    count: int = 3


def test_an_older_peer_ignores_fields_it_does_not_know():
    """Trailing fields of a newer message are dropped."""
    values = codec._encoder_of(Newer)(Newer("a", 5, "n", (9,)), [])
    assert codec._decoder_of(Older)(list(values), []) == Older("a", 5)


def test_a_newer_peer_fills_in_what_an_older_one_left_out():
    """Missing trailing fields take their defaults; a required one must be there."""
    values = codec._encoder_of(Older)(Older("a", 5), [])
    assert codec._decoder_of(Newer)(list(values), []) == Newer("a", 5)
    with pytest.raises(ProtocolError):
        codec._decoder_of(Newer)([], [])


def test_newer_envelopes_are_understood():
    """More parts in a header, and more fields at any depth of a body, are ignored."""
    partition = ["t", 0, 0, b"", "something new"]
    header = [0, 0, 1, None, [1, 30, [partition], None, 1, "new"], [3, 2], "new"]
    message = decode_request(frame_of(header, b"abc", b"de")).message
    assert message == ProduceRequest(1, 30, (PartitionProduce("t", 0, b"abc"),))


# -- what is refused


@pytest.mark.parametrize(("key", "version"), [(0, 1), (0, -1), (99, 0), (-1, 0), (18, 7)])
def test_unknown_apis_and_versions_say_who_asked(key, version):
    """The body is not looked at; API_VERSIONS can so be answered in any version (NET-02)."""
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(frame_of([key, version, 42, "c", "a body of the future", []]))
    error = caught.value
    assert (error.api_key, error.version, error.correlation_id) == (key, version, 42)


GOOD = [0, 0, 1, None, [1, 30, [["t", 0, 0]]], [3]]


def changed(*path_and_value: object) -> list:
    """`GOOD` with another value at a path."""
    *path, last, value = path_and_value
    header = msgpack.unpackb(msgpack.packb(GOOD))
    inner = header
    for index in path:
        inner = inner[index]
    inner[last] = value
    return header


BAD_HEADERS = {
    "no array": 1,
    "a map": {1: 2},
    "too few parts": GOOD[:5],
    "text for a key": changed(0, "0"),
    "a boolean for a key": changed(0, True),
    "a key of 64 bits": changed(0, 2**64 - 1),
    "a correlation id of 64 bits": changed(2, 2**64 - 1),
    "bytes for a client": changed(3, b"c"),
    "no body": changed(4, None),
    "a body without its required field": changed(4, []),
    "text for a number": changed(4, 0, "1"),
    "a float for a number": changed(4, 1, 1.5),
    "a boolean for a number": changed(4, 0, True),
    "a number of 64 bits": changed(4, 1, 2**63),
    "nil for an array": changed(4, 2, None),
    "nil for text": changed(4, 2, 0, 0, None),
    "bytes for text": changed(4, 2, 0, 0, b"t"),
    "a blob that is not there": changed(4, 2, 0, 2, 1),
    "a blob before the first": changed(4, 2, 0, 2, -1),
    "bytes for a blob": changed(4, 2, 0, 2, b"abc"),
    "no sizes": changed(5, None),
    "a size too small": changed(5, [2]),
    "a size too large": changed(5, [4]),
    "a size below zero": changed(5, [-1, 4]),
    "a size that is text": changed(5, ["3"]),
}


def test_the_good_header_is_good():
    """What the bad ones are made from is understood."""
    assert decode_request(frame_of(GOOD, b"abc")).message.acks == 1


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_malformed_headers_are_protocol_errors(header):
    """Every value is checked for what it must be (NET-02), also in turns."""
    with pytest.raises(ProtocolError):
        decode_request(frame_of(header, b"abc"))
    with pytest.raises(ProtocolError):
        all_turns(decode_request_in_turns(frame_of(header, b"abc")))


@pytest.mark.parametrize("element", [1, None, "text", b"bytes", True, 0.5, ["text"], [None]])
def test_an_element_of_an_array_of_arrays_is_checked(element):
    """No message checks such an element; CREATE_PARTITIONS has one (NET-02)."""
    header = [ApiKey.CREATE_PARTITIONS, 0, 1, None, [[["t", 2, [element]]], 1000, False], []]
    with pytest.raises(ProtocolError, match=r"NewPartitions\.assignments is an array of"):
        decode_request(frame_of(header, b""))


def test_an_array_of_arrays_is_decoded():
    """Its elements are tuples, as everywhere."""
    header = [ApiKey.CREATE_PARTITIONS, 0, 1, None, [[["t", 3, [[1, 2], []]]], 1000, False], []]
    [topic] = decode_request(frame_of(header, b"")).message.topics
    assert topic.assignments == ((1, 2), ())


BAD_BYTES = {
    "nothing": b"",
    "an unfinished array": b"\x96\x00",
    "bytes behind the header": msgpack.packb(GOOD) + b"\x00",
    "no msgpack": b"\xc1",
    "text that is not UTF-8": msgpack.packb(changed(4, 2, 0, 0, "t")).replace(
        b"\xa1t", b"\xa1\xff"
    ),
    "an array as the key of a map": b"\x81\x90\x00",
    "an extension": b"\xd6\xff\x00\x00\x00\x00",
    "deeper than any message": b"\x91" * 100_000,
    "a huge array": b"\xdd\xff\xff\xff\xff",
    "a huge text": b"\xdb\xff\xff\xff\xff",
    "a huge map": b"\xdf\xff\xff\xff\xff",
}


@pytest.mark.parametrize("packed", BAD_BYTES.values(), ids=BAD_BYTES)
def test_malformed_bytes_are_protocol_errors(packed):
    """Whatever msgpack says about them, one exception comes out (NET-02)."""
    with pytest.raises(ProtocolError):
        decode_request(frame_around(packed, b"abc"))
    with pytest.raises(ProtocolError):
        all_turns(decode_request_in_turns(frame_around(packed, b"abc")))
    with pytest.raises(ProtocolError):
        decode_response(frame_around(packed, b"abc"), ApiKey.FETCH, 0)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x05abcd", b"\xff\xff\xff\xffabcd"])
def test_header_lengths_must_be_true(frame):
    """A frame that is shorter than its header says is refused (NET-01)."""
    with pytest.raises(ProtocolError):
        decode_request(memoryview(frame))


def test_a_header_is_bounded():
    """A request's header has a limit of its own, far below that of its frame."""
    with pytest.raises(ProtocolError, match="header of"):
        all_turns(decode_request_in_turns(frame_around(bytes(REQUEST_HEADER_BYTES_MAX + 1))))


def test_a_request_without_records_is_bounded():
    """Only a PRODUCE is as large as the socket takes."""
    metadata = request_frame(RequestEnvelope(ApiKey.METADATA, 0, 1, None, MetadataRequest()))
    grown = bytearray(metadata) + bytes(SMALL_REQUEST_BYTES_MAX)
    with pytest.raises(ProtocolError, match="METADATA with"):
        decode_request(memoryview(grown))


def all_turns(generator):
    """The result of a generator, which is run to its end."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("envelope", requests(), ids=lambda each: type(each.message).__name__)
def test_requests_in_turns_are_as_at_once(envelope):
    """The decoder that pauses reads the same messages."""
    frame = memoryview(request_frame(envelope))
    assert all_turns(decode_request_in_turns(frame)) == envelope


@pytest.mark.parametrize(("key", "message"), responses())
def test_responses_in_turns_are_as_at_once(key, message):
    """The encoder that pauses writes the same bytes."""
    header, blobs = all_turns(encode_response_in_turns(-5, message))
    assert (header, blobs) == encode_response(-5, message)


@pytest.mark.parametrize(("outer", "inner"), [(1, 20_000), (40, 500), (2_000, 10)])
def test_an_array_in_an_element_takes_turns_too(outer, inner):
    """One transaction may have as many partitions as others are transactions."""
    results = tuple(TransactionPartitionResult("t", number) for number in range(inner))
    message = AddPartitionsToTxnResponse(
        transactions=tuple(TransactionPartitionsAdded("x", results) for _ in range(outer))
    )
    assert is_large_response(message)
    pauses = sum(1 for _ in encode_response_in_turns(1, message))
    assert pauses >= outer * inner // ELEMENTS_AT_ONCE // 3
    assert all_turns(encode_response_in_turns(1, message)) == encode_response(1, message)


def test_a_small_response_takes_no_turns():
    """As most are."""
    results = tuple(TransactionPartitionResult("t", number) for number in range(100))
    message = AddPartitionsToTxnResponse(transactions=(TransactionPartitionsAdded("x", results),))
    assert not is_large_response(message)


def fetch_of(count):
    """A FETCH of so many partitions."""
    partitions = tuple(PartitionFetch("t", number, 0) for number in range(count))
    message = FetchRequest(partitions=partitions)
    return memoryview(request_frame(RequestEnvelope(ApiKey.FETCH, 0, 1, None, message)))


def test_a_large_header_takes_turns():
    """It is not unpacked at once; no more than some hundred elements between two pauses."""
    frame = fetch_of(5_000)
    with pytest.raises(TooManyElements):
        decode_request(frame)
    turns = decode_request_in_turns(frame)
    assert sum(1 for _ in turns) >= 5_000 // ELEMENTS_AT_ONCE
    assert len(all_turns(decode_request_in_turns(frame)).message.partitions) == 5_000


def test_a_request_has_a_limited_number_of_elements():
    """However small they are."""
    with pytest.raises(TooManyElements):
        all_turns(decode_request_in_turns(fetch_of(ELEMENTS_MAX + 1)))


@pytest.mark.parametrize("element", [b"\x90", b"\x91\x90", b"\x01", b"\xc0"])
def test_a_wrong_type_in_a_large_header_is_found_early(element):
    """A megabyte of empty arrays, which takes a third of a second at once, is given up at the
    first."""
    count = 900_000 // len(element)
    body = b"\x96\xff\x00\x00\x00\x00" + b"\xdd" + struct.pack(">I", count) + element * count
    packed = b"\x96\x01\x00\x01\xc0" + body + b"\x90"
    turns = decode_request_in_turns(frame_around(packed))
    next(turns)
    with pytest.raises(ProtocolError):
        next(turns)


@pytest.mark.parametrize("size", [200, 500, 5_000, 1_000_000])
def test_lying_lengths_reserve_no_memory(size):
    """A thousand nested arrays that claim to be as long as the frame cost next to nothing."""
    claim = b"\xdd" + struct.pack(">I", size)
    packed = (claim * (size // 5))[:size].ljust(size, b"\xc0")
    frame = frame_around(packed)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_request(frame)
        with pytest.raises(ProtocolError):
            all_turns(decode_request_in_turns(frame))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000 + 4 * size


def test_salted_messages_differ():
    """The samples of the fuzz tests are not all alike."""
    assert full(ProduceRequest, 1) != full(ProduceRequest, 2)


@pytest.mark.parametrize("api_key", [key for key in ApiKey if key is not ApiKey.PRODUCE])
def test_a_request_names_the_type_of_its_answer(api_key):
    """So `call` returns what the channel decodes. PRODUCE has a method of its own."""
    api = APIS[api_key]
    (base,) = api.request.__orig_bases__
    (named,) = get_args(base)
    assert named.__forward_arg__ == api.response.__name__
