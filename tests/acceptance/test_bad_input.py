"""What hostile and broken peers may do to a broker: end their own connection, and nothing else."""

import contextlib
import random
import resource
import struct
import time
from collections.abc import Iterator

import pytest

from minibroker.protocol.constants import (
    ACKS_ALL,
    FRAME_BYTES_MAX,
    PREFACE,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
)
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from tests.support.processes import BrokerProcess
from tests.support.wire import Wire, frame_of

ANSWER_S_MAX = 2.0


STORED = b"stored"


class Bystander:
    """Somebody who behaves, on a connection that stays open, and whose record must stay."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire = wire
        self.topic = topic
        create_topic(wire, topic)
        now_ms = int(time.time() * 1000)  # a record of long ago would not stay for long
        batch = encode_batch([(now_ms, None, STORED, [])])
        assert produce(wire, topic, batch).error == ErrorCode.NONE

    def goes_on(self) -> None:
        """The same connection is answered soon, and what was stored is there, and nothing else."""
        began = time.monotonic()
        records = fetch(self._wire, self.topic)
        assert time.monotonic() - began < ANSWER_S_MAX
        assert [record.value for record in records] == [STORED]


def create_topic(wire: Wire, topic: str) -> None:
    """One partition."""
    [made] = wire.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic(topic, 1),))).topics
    assert made.error == ErrorCode.NONE


def produce(wire: Wire, topic: str, data: bytes | bytearray) -> PartitionProduced:
    """The answer for one batch."""
    request = ProduceRequest(ACKS_ALL, 1000, (PartitionProduce(topic, 0, data),))
    [answer] = wire.call(ApiKey.PRODUCE, request).partitions
    return answer


def fetch(wire: Wire, topic: str) -> list[Record]:
    """All records of a small topic."""
    [answer] = wire.call(
        ApiKey.FETCH, FetchRequest(partitions=(PartitionFetch(topic, 0),))
    ).partitions
    assert answer.error == ErrorCode.NONE
    return [
        record
        for position, header in iterate_headers(answer.records)
        for record in decode_records(answer.records[position : position + header.size], header)
    ]


@pytest.fixture(scope="module")
def bystander(broker: BrokerProcess) -> Iterator[Bystander]:
    """One for all of this file."""
    with Wire(broker.address) as wire:
        yield Bystander(wire, "bystander")


def noise(size: int, seed: int) -> bytes:
    """Bytes without meaning, the same every time."""
    return random.Random(seed).randbytes(size)


def whole() -> bytes:
    """A request that means something."""
    return frame_of(ApiKey.METADATA, MetadataRequest(None))


ENDS_ITS_CONNECTION = {
    "random bytes": (b"", noise(4096, 1)),
    "http": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "random bytes behind the preface": (PREFACE, noise(4096, 2)),
    "a negative length": (PREFACE, b"\xff\xff\xff\xff"),
    "the largest length": (PREFACE, b"\x7f\xff\xff\xff"),
    "one byte more than allowed": (PREFACE, struct.pack(">I", FRAME_BYTES_MAX + 1)),
    "an empty frame": (PREFACE, bytes(4)),
    "a header longer than its frame": (PREFACE, struct.pack(">II", 8, 1000) + bytes(4)),
    "a header that is no msgpack": (PREFACE, struct.pack(">II", 8, 4) + b"\xc1\xc1\xc1\xc1"),
    "lengths that lie": (PREFACE, struct.pack(">II", 9, 5) + b"\xdd\xff\xff\xff\xff"),
    "an unknown api": (PREFACE, frame_of(9999, MetadataRequest(None))),
    "an unknown version": (PREFACE, frame_of(ApiKey.METADATA, MetadataRequest(None), 1, 77)),
    "another api's body": (PREFACE, frame_of(ApiKey.PRODUCE, MetadataRequest(("a",)))),
}


@pytest.mark.parametrize("attack", ENDS_ITS_CONNECTION)
def test_it_ends_its_own_connection(
    broker: BrokerProcess, bystander: Bystander, attack: str
) -> None:
    """Bytes that are no request close their connection, and no other (NET-01, NET-02)."""
    preface, data = ENDS_ITS_CONNECTION[attack]
    with Wire(broker.address, preface) as wire:
        wire.send(data)
        assert wire.read_frame() is None
    bystander.goes_on()


@pytest.mark.parametrize("cut", [1, 4, 6, len(whole()) - 1])
def test_half_a_request_is_no_request(
    broker: BrokerProcess, bystander: Bystander, cut: int
) -> None:
    """A peer that goes away in the middle of a frame leaves nothing behind."""
    with Wire(broker.address) as wire:
        wire.send(whole()[:cut])
    bystander.goes_on()


def changed(batch: bytearray, position: int, new: bytes) -> bytes:
    """A batch with some bytes replaced."""
    batch[position : position + len(new)] = new
    return bytes(batch)


def sound() -> bytearray:
    """A batch that a broker takes."""
    return encode_batch([(1, None, b"value", [])])


BAD_BATCHES = {
    "a flipped bit": (changed(sound(), 65, b"\xff"), ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (changed(sound(), 16, b"\1"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "a length that lies": (changed(sound(), 8, b"\x7f\xff\xff\xff"), None),
    "a negative length": (changed(sound(), 8, b"\xff\xff\xff\xff"), None),
    "half a batch": (bytes(sound()[:40]), None),
    "nothing": (b"", None),
    "two batches": (bytes(sound() + sound()), ErrorCode.INVALID_RECORD),
    "too large": (bytes(encode_batch([(1, None, bytes(2**21), [])])), ErrorCode.MESSAGE_TOO_LARGE),
    "noise": (noise(500, 3), None),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_not_stored(
    broker: BrokerProcess, bystander: Bystander, name: str
) -> None:
    """A batch that is not sound is an error in its answer; the connection goes on (LOG-03)."""
    data, expected = BAD_BATCHES[name]
    with Wire(broker.address) as wire:
        answer = produce(wire, bystander.topic, data)
        assert answer.error != ErrorCode.NONE
        if expected is not None:
            assert answer.error == expected
        assert answer.base_offset == -1
        assert wire.call(ApiKey.METADATA, MetadataRequest((bystander.topic,))).topics
    bystander.goes_on()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../x", "a b", "ü", "x" * 250])
def test_a_bad_topic_name_makes_nothing(broker: BrokerProcess, name: str) -> None:
    """A name that cannot be a directory is refused, also where a topic is made on first use."""
    with Wire(broker.address) as wire:
        [topic] = wire.call(ApiKey.METADATA, MetadataRequest((name,))).topics
        assert topic.error == ErrorCode.INVALID_TOPIC_EXCEPTION
        [made] = wire.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic(name),))).topics
        assert made.error == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_huge_lengths_take_no_memory(broker: BrokerProcess, bystander: Bystander) -> None:
    """A broker gives memory for bytes that came, never for a length that was claimed."""
    before = broker.resident_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            wire = stack.enter_context(Wire(broker.address))
            wire.send(struct.pack(">I", FRAME_BYTES_MAX) + bytes(100))
        bystander.goes_on()
        assert broker.resident_bytes - before < 20e6


def test_idle_connections_are_cheap(broker: BrokerProcess, bystander: Bystander) -> None:
    """A thousand silent connections cost under 30 KB each, and delay nobody."""
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count, hard))
    with contextlib.ExitStack() as stack:
        before = broker.resident_bytes
        wires = [stack.enter_context(Wire(broker.address)) for _ in range(count)]
        for wire in wires:
            assert wire.call(ApiKey.METADATA, MetadataRequest((bystander.topic,))).topics
        assert (broker.resident_bytes - before) / count < 30e3
        bystander.goes_on()


def ask_for_ever(wire: Wire, request: FetchRequest) -> None:
    """Ask for gigabytes; raises TimeoutError when the broker does not read requests any more."""
    for number in range(10**6):
        wire.socket.sendall(frame_of(ApiKey.FETCH, request, number))


def test_a_client_that_does_not_read_costs_no_memory(
    broker: BrokerProcess, bystander: Bystander
) -> None:
    """Answers that nobody takes are not piled up, and others do not wait for them (NET-08)."""
    topic = "unread"
    request = FetchRequest(bytes_max=2**24, partitions=(PartitionFetch(topic, 0, 0, 2**24),))
    batch = encode_batch([(1, None, bytes(1000), [])] * 500)
    with Wire(broker.address) as wire:
        create_topic(wire, topic)
        for _ in range(40):
            assert produce(wire, topic, batch).error == ErrorCode.NONE
        before = broker.resident_bytes
        wire.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            ask_for_ever(wire, request)
        bystander.goes_on()
        assert broker.resident_bytes - before < 20e6
