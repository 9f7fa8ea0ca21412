"""One client that talks to one broker, and writes down what the broker says.

Requests are written and answers are read by kio, which has schemas of its own. An answer becomes
plain values without what differs in each run (`plain.py`).
"""

import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kio.serial import entity_reader

from minibroker.protocol.constants import LATEST_TIMESTAMP
from minibroker.protocol.kafka import admin_apis, apis, transaction_apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import decode
from minibroker.protocol.kafka.schema import Field, Struct, Version
from minibroker.protocol.records.record import encode_batch
from tests.interop.conversations.plain import Plainer
from tests.unit.kafka.frames import header
from tests.unit.kafka.values import kio_bytes, kio_class

ANSWER_S_MAX: Final = 8.0
CLOSED: Final = "the connection is closed"
SILENCE: Final = "no answer"
READY_S_MAX: Final = 20.0
LOOK_EVERY_S: Final = 0.05
BATCH: Final = bytes(encode_batch([(1_000, b"k", b"v", ())]))

Fields = Mapping[str, Any]


class Topic(NamedTuple):
    """A topic that the broker has made."""

    name: str
    id: bytes


class Talk:
    """A conversation. `said` is what the broker has said to the requests that count."""

    def __init__(self, address: str, name: str, versions: Mapping[int, Version]) -> None:
        self.name = name
        self.said: list[Any] = []
        self._address = address
        self._versions = versions
        self._sockets: dict[int, socket.socket] = {}
        self._asked: dict[int, list[tuple[KafkaApi, Version]]] = {}
        self._topics: dict[uuid.UUID, str] = {}  # by their ids

    def close(self) -> None:
        """Close all connections."""
        for one in self._sockets.values():
            one.close()

    # -- requests

    def ask(self, api: KafkaApi, version: Version, fields: Fields, connection: int = 1) -> Any:
        """Send a request, and write its answer down. Return it as kio has it."""
        self.send(api, version, fields, connection)
        return self.hear(connection)

    def prepare(self, api: KafkaApi, fields: Fields, connection: int = 1) -> Any:
        """As `ask`, in the newest version and without writing it down: it does not count."""
        said = len(self.said)
        answer = self.ask(api, self._versions[api.key], fields, connection)
        del self.said[said:]
        return answer

    def send(self, api: KafkaApi, version: Version, fields: Fields, connection: int = 1) -> None:
        """Send a request whose answer is heard later."""
        is_flexible = api.is_flexible(version)
        value = filled(api.request, fields)
        kind = kio_class(api, version, "request")
        assert kind is not None, f"kio has no {api.name} in version {version}"
        body = kio_bytes(kind, api.request, version, value)
        self.send_bytes(api, version, b"\0" * is_flexible + body, connection)

    def send_bytes(self, api: KafkaApi, version: Version, body: bytes, connection: int = 1) -> None:
        """Send a request with any bytes behind its header."""
        frame = header(api.key, version) + body
        if connection not in self._sockets:
            host, _, port = self._address.rpartition(":")
            self._sockets[connection] = socket.create_connection((host, int(port)), ANSWER_S_MAX)
        self._asked.setdefault(connection, []).append((api, version))
        with suppress(BrokenPipeError, ConnectionResetError):
            self._sockets[connection].sendall(len(frame).to_bytes(4, "big") + frame)

    def expect_silence(self, connection: int = 1) -> None:
        """Write down that the last request has no answer, unless the connection is closed."""
        self._asked[connection].pop()
        self.ask(apis.API_VERSIONS, 0, {}, connection)
        if self.said[-1] != CLOSED:
            self.said[-1] = SILENCE

    def hear(self, connection: int = 1) -> Any:
        """Receive the next answer, and write it down. Return it as kio has it."""
        api, version = self._asked[connection].pop(0)
        frame = self._frame(connection)
        if frame is None:
            self._sockets.pop(connection).close()
            self._asked.pop(connection)
            self.said.append(CLOSED)
            return None
        start = 4 + api.has_header_tags(version)
        if api is transaction_apis.DESCRIBE_TRANSACTIONS:
            # kio refuses a start time of -1.
            flexible = api.is_flexible(version)
            view = memoryview(frame)
            answer, end = decode(api.response, version, view, start, is_flexible=flexible)
        else:
            kind = kio_class(api, version, "response")
            assert kind is not None, f"kio has no {api.name} in version {version}"
            answer, size = entity_reader(kind)(frame, start)
            end = start + size
        left = frame[end:]
        assert not left, f"{api.name} in version {version}: {left!r} is left"
        self.said.append(self._plain(api, answer))
        return answer

    def _plain(self, api: KafkaApi, answer: Any) -> Any:
        """Return what an answer says, without what other conversations have left."""
        said = Plainer(self.name, self._topics).plain(answer)
        if api is apis.LIST_GROUPS:
            said["groups"] = {name: one for name, one in said["groups"].items() if "~" in name}
        if api is transaction_apis.LIST_TRANSACTIONS:
            listed = dict(said["transaction_states"] or {})
            said["transaction_states"] = {name: one for name, one in listed.items() if "~" in name}
        return said

    def _frame(self, connection: int) -> bytes | None:
        head = self._received(4, connection)
        return None if head is None else self._received(int.from_bytes(head, "big"), connection)

    def _received(self, size: int, connection: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self._sockets[connection].recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    # -- what conversations begin with

    def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
        """Make a topic and return it once it has leaders. Dots in the names of `configs` are
        written as underscores."""
        name = f"{self.name}-{name}"
        self.prepare(
            admin_apis.CREATE_TOPICS,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "configs": [
                            {"name": key.replace("_", "."), "value": value}
                            for key, value in configs.items()
                        ],
                    }
                ],
                "timeout_ms": 10_000,
            },
        )
        deadline = time.monotonic() + READY_S_MAX
        while not self._has_leaders(name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders"
            time.sleep(LOOK_EVERY_S)
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        (told,) = self.prepare(apis.METADATA, asked).topics
        self._topics[told.topic_id] = name
        return Topic(name, told.topic_id.bytes)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        """Return whether all partitions answer: metadata may know them before."""
        wanted = [
            {"partition_index": index, "timestamp": LATEST_TIMESTAMP} for index in range(partitions)
        ]
        asked = {"topics": [{"name": name, "partitions": wanted}], "timeout_ms": 1_000}
        (told,) = self.prepare(apis.LIST_OFFSETS, asked).topics
        return not any(one.error_code for one in told.partitions)

    def produced(self, topic: Topic, *batches: bytes, partition: int = 0) -> Topic:
        """Append batches to a topic, and return it."""
        for batch in batches or (BATCH,):
            partitions = [{"index": partition, "records": batch}]
            data = [{"name": topic.name, "topic_id": topic.id, "partition_data": partitions}]
            asked = {"acks": -1, "timeout_ms": 10_000, "topic_data": data}
            answer = self.prepare(apis.PRODUCE, asked)
            assert not answer.responses[0].partition_responses[0].error_code, answer
        return topic

    def end_of(self, topic: Topic) -> int:
        """The high watermark of its first partition."""
        partitions = [{"partition_index": 0, "timestamp": LATEST_TIMESTAMP}]
        asked = {"topics": [{"name": topic.name, "partitions": partitions}], "timeout_ms": 1_000}
        return self.prepare(apis.LIST_OFFSETS, asked).topics[0].partitions[0].offset


def filled(shape: Struct, fields: Fields) -> Any:
    """Return a value of a struct with these fields, and defaults for others; structs are dicts."""
    kinds = {one.name: one for one in shape.fields}
    return shape.make(**{name: _filled(kinds[name], value) for name, value in fields.items()})


def _filled(one: Field, value: Any) -> Any:
    if not isinstance(one.type, Struct) or value is None:
        return value
    if one.is_array:
        return [filled(one.type, each) for each in value]
    return filled(one.type, value)
