"""A client that does as little as a client can, on a blocking socket: for what the broker costs.

    python -m tests.bench.raw fill ADDRESS TOPIC --total BYTES --batch BYTES
    python -m tests.bench.raw fetch ADDRESS TOPIC --total BYTES

`fill` produces the same batch of random records until TOTAL bytes are in partition 0; `fetch`
reads that partition from its start, again and again, and throws the bytes away. Each prints bytes
per second, as JSON.
"""

import argparse
import itertools
import json
import random
import socket
import time
from collections.abc import Iterator

from minibroker.protocol.constants import ACKS_LEADER, PREFACE, ApiKey
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.rpc.codec import decode_response, encode_request

BATCH_BYTES = 64 * 1024
RECORD_BYTES = 1000
FETCH_BYTES = 4 * 1024 * 1024
PRODUCES_IN_FLIGHT = 4
FETCHES_IN_FLIGHT = 2


class RawClient:
    """One connection; requests are answered in order."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(PREFACE)
        self._buffer = memoryview(bytearray(8 * 1024 * 1024))

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, key: ApiKey, message: object) -> None:
        """Send a request without waiting."""
        version = APIS[key].version_max
        for buffer in encode_request(RequestEnvelope(key, version, 0, "raw", message)):
            self._socket.sendall(buffer)

    def receive_frame(self) -> memoryview:
        """The next answer, without its length; valid until the next call."""
        size = int.from_bytes(self._receive(4), "big")
        return self._receive(size)

    def receive(self, key: ApiKey) -> object:
        """The next answer, decoded."""
        return decode_response(self.receive_frame(), key, APIS[key].version_max)[1]

    def call(self, key: ApiKey, message: object) -> object:
        """A request and its answer."""
        self.send(key, message)
        return self.receive(key)

    def _receive(self, size: int) -> memoryview:
        view = self._buffer[:size]
        received = 0
        while received < size:
            count = self._socket.recv_into(view[received:])
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            received += count
        return view


def fill(address: str, topic: str, total: int, batch_bytes: int = BATCH_BYTES) -> float:
    """Produce batches until `total` bytes are stored; bytes per second."""
    rng = random.Random(1)
    values = [rng.randbytes(RECORD_BYTES - 10) for _ in range(batch_bytes // RECORD_BYTES)]
    batch = bytes(encode_batch([(1, None, value, ()) for value in values]))
    request = ProduceRequest(ACKS_LEADER, 30_000, (PartitionProduce(topic, 0, batch),))
    count = total // len(batch)
    with RawClient(address) as client:
        client.call(ApiKey.METADATA, MetadataRequest(topics=(topic,)))  # makes it
        start = time.perf_counter()
        for number in range(count + PRODUCES_IN_FLIGHT):
            if number < count:
                client.send(ApiKey.PRODUCE, request)
            if number >= PRODUCES_IN_FLIGHT:
                [answer] = client.receive(ApiKey.PRODUCE).partitions
                assert answer.error == 0, answer
        return count * len(batch) / (time.perf_counter() - start)


def fetch(address: str, topic: str, total: int) -> float:
    """Read partition 0 from its start, over and over, until `total` bytes came."""
    received = asked = 0
    with RawClient(address) as client:
        offsets = _offsets_of_answers(client, topic, total)
        start = time.perf_counter()
        while received < total:
            while asked < FETCHES_IN_FLIGHT:
                client.send(ApiKey.FETCH, _fetch_request(topic, next(offsets)))
                asked += 1
            received += len(client.receive_frame())
            asked -= 1
        return received / (time.perf_counter() - start)


def _offsets_of_answers(client: RawClient, topic: str, total: int) -> Iterator[int]:
    """Where the answers to one fetch after the other begin, for at most `total` bytes; again and
    again. Found by one pass over them."""
    offsets = [0]
    covered = 0
    while covered < total:
        [answer] = client.call(ApiKey.FETCH, _fetch_request(topic, offsets[-1])).partitions
        if not answer.records:
            break
        covered += len(answer.records)
        *_, (_, last) = iterate_headers(answer.records)
        offsets.append(last.next_offset)
    return itertools.cycle(offsets[:-1])


def _fetch_request(topic: str, offset: int) -> FetchRequest:
    partition = PartitionFetch(topic, 0, offset, FETCH_BYTES)
    return FetchRequest(bytes_max=FETCH_BYTES, partitions=(partition,))


def main() -> None:
    """Run one of the two and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["fetch", "fill"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--total", type=int, default=1 << 30)
    parser.add_argument("--batch", type=int, default=BATCH_BYTES)
    given = parser.parse_args()
    if given.name == "fill":
        speed = fill(given.address, given.topic, given.total, given.batch)
    else:
        speed = fetch(given.address, given.topic, given.total)
    print(json.dumps({"bytes_per_s": speed}))


if __name__ == "__main__":
    main()
