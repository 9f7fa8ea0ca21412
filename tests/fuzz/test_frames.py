"""Each field of each request with each wrong value: decoders raise nothing but `ProtocolError`.

In order, not by chance: each api and version, each place in its message, each value that the place
cannot have. `tests/fuzz/test_fuzz.py` sends such frames to real brokers.
"""

import copy
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from minibroker.protocol.constants import SMALL_REQUEST_BYTES_MAX, ApiKey
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.kafka import wire as kafka
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import encode
from minibroker.protocol.messages import APIS
from minibroker.protocol.rpc import codec as msgpack_wire
from tests.fuzz import kafka_frames, msgpack_frames
from tests.fuzz.frames import THOUSANDS
from tests.fuzz.kafka_frames import KafkaFrames
from tests.fuzz.known import Known
from tests.fuzz.msgpack_frames import MsgpackFrames, Raw, pack

SEED = 1
MARK = b"<the place of a wrong value>"
# Without arrays of thousands: they cost seconds, and show no more than short ones.
WRONG = {name: pack(value) for name, value in msgpack_frames.WRONG.items() if "20,000" not in name}


class Full(Known):
    """Each array has so many elements and nothing is null, so that no field is left out."""

    def __init__(self, elements: int) -> None:
        super().__init__(random.Random(SEED))
        self._elements = elements

    def is_null(self, name: str) -> bool:
        """Never."""
        return False

    def count(self) -> int:
        """The same for all."""
        return self._elements


def outcome(decode: Any, data: bytes, what: str) -> str:
    """Whether a frame, without its length, can be decoded or is refused; anything else raises."""
    try:
        decode(memoryview(data))
    except ProtocolError:
        return "refused"
    except BaseException as error:
        error.add_note(f"{what}: {data[:200].hex()}")
        raise
    return "decoded"


def request_decoder(wire: Any) -> Any:
    """What a broker does with a frame: it decodes in turns what has many elements."""

    def decode(frame: memoryview) -> None:
        try:
            wire.decode_request(frame)
        except TooManyElements:
            for _ in wire.decode_request_in_turns(frame):
                pass

    return decode


DECODE_MSGPACK = request_decoder(msgpack_wire)
DECODE_KAFKA = request_decoder(kafka)


def around(header: list[Any], path: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The bytes of a header before and behind the node at the path."""
    marked = copy.deepcopy(header)
    msgpack_frames.replace(marked, path, Raw(MARK))
    before, mark, behind = pack(marked).partition(MARK)
    assert mark
    return before, behind


def framed(header: object, blobs: bytes) -> bytes:
    """A frame of the msgpack wire without its length."""
    packed = pack(header)
    return len(packed).to_bytes(4, "big") + packed + blobs


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_each_node_of_a_msgpack_request_with_each_type(key: ApiKey) -> None:
    """Whatever stands at a place of a header, the frame is a request or it is refused."""
    seen = Counter[str]()
    header, blobs = MsgpackFrames(Full(1)).tree(key, 1)
    for path in list(msgpack_frames.paths(header)):
        before, behind = around(header, path)
        for name, packed in WRONG.items():
            size = len(before) + len(packed) + len(behind)
            data = b"".join((size.to_bytes(4, "big"), before, packed, behind, blobs))
            what = f"{key.name} with {name} at {path}"
            seen[outcome(DECODE_MSGPACK, data, what)] += 1
    assert min(seen["refused"], seen["decoded"]) > 0


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_each_node_of_a_msgpack_answer_with_each_type(key: ApiKey) -> None:
    """So it is for a client, which reads answers."""
    decode = partial(msgpack_wire.decode_response, api_key=key, version=0)
    parts: list[bytes] = []
    body = MsgpackFrames(Full(1)).body(APIS[key].response, parts)
    header, blobs = [1, body, list(map(len, parts))], b"".join(parts)
    assert outcome(decode, framed(header, blobs), key.name) == "decoded"
    for path in list(msgpack_frames.paths(header)):
        before, behind = around(header, path)
        for name, packed in WRONG.items():
            size = len(before) + len(packed) + len(behind)
            data = b"".join((size.to_bytes(4, "big"), before, packed, behind, blobs))
            outcome(decode, data, f"an answer to {key.name} with {name} at {path}")


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_each_value_of_a_type_is_a_msgpack_request(key: ApiKey) -> None:
    """Nulls, boundary numbers, long texts and long arrays are within a message's types."""
    made = MsgpackFrames(Full(1))
    for twist in msgpack_frames.twists(key):
        if twist.times == THOUSANDS:
            continue  # it costs seconds, and shows no more than hundreds
        header, blobs = made.tree(key, 1, twist)
        told = outcome(DECODE_MSGPACK, framed(header, blobs), f"{key.name}, {twist}")
        is_huge = len(framed(header, b"")) > 1024 * 1024 or twist.value == 2**63 - 1
        assert told == "decoded" or is_huge, twist


def versions(api: KafkaApi) -> range:
    """All that are served."""
    return range(api.first, api.last + 1)


@pytest.mark.parametrize("api", kafka_frames.APIS, ids=lambda api: api.name)
def test_each_piece_of_a_kafka_request_with_each_wrong_value(api: KafkaApi) -> None:
    """Boundary numbers, lengths that lie, invalid text: a request, or refused."""
    seen = Counter[str]()
    for version in versions(api):
        parts = KafkaFrames(Full(2)).pieces(api, version, 1)
        whole = [part.data for part in parts]
        assert outcome(DECODE_KAFKA, b"".join(whole), api.name) == "decoded"
        for index, part in enumerate(parts):
            for wrong in kafka_frames.WRONG[part.kind]:
                data = b"".join((*whole[:index], wrong, *whole[index + 1 :]))
                what = f"{api.name} v{version} with {wrong[:8].hex()} at {part.path}"
                seen[outcome(DECODE_KAFKA, data, what)] += 1
            cut = b"".join(whole[:index])
            assert outcome(DECODE_KAFKA, cut, f"{api.name} cut at {index}") == "refused"
    assert min(seen["refused"], seen["decoded"]) > 0


@pytest.mark.parametrize("api", kafka_frames.APIS, ids=lambda api: api.name)
def test_each_value_of_a_type_is_a_kafka_request(api: KafkaApi) -> None:
    """As on the other wire; and what is written here is what the product's encoder writes."""
    for version in versions(api):
        is_flexible = api.is_flexible(version)
        for twist in kafka_frames.twists(api, version):
            if twist.times == THOUSANDS:
                continue  # it costs seconds, and shows no more than hundreds
            value = KafkaFrames(Full(2)).value(api.request, version, twist)
            parts = KafkaFrames(Full(2)).pieces(api, version, 1, twist)
            data = b"".join(part.data for part in parts)
            try:
                encoded = b"".join(encode(api.request, version, value, is_flexible=is_flexible))
            except ProtocolError:  # a text that is too long for the wire
                encoded = b""
            else:
                assert data.endswith(encoded)
            told = outcome(DECODE_KAFKA, data, f"{api.name} v{version}, {twist}")
            is_replica = twist.path == "replica_id"  # brokers do not copy over this wire
            is_nameless = twist.path == "topics.name" and twist.value is None  # Metadata by ids
            is_huge = len(data) > SMALL_REQUEST_BYTES_MAX
            is_refused = is_replica or is_nameless or is_huge
            assert told == "decoded" or is_refused or not encoded, twist
