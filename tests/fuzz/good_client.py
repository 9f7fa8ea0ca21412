"""A client that behaves, beside a fuzz, as a process: `python -m tests.fuzz.good_client ADDRESS`.

It pings each broker, produces a record with acks=all and reads it back, over and over, and measures
each. A line on its stdin begins another phase; at its end it reads everything again, and prints as
JSON: the latencies by phase, and every record that was acknowledged and is not there unchanged.
"""

import argparse
import json
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from minibroker.protocol.constants import ACKS_ALL, ApiKey, ErrorCode
from minibroker.protocol.errors import RETRIABLE
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from tests.support.wire import Wire

TOPIC: Final = "good"
PAUSE_S: Final = 0.005
FETCHED_BYTES: Final = 4_000_000
# While leaders change; the client then goes on with its next record.
RETRIED: Final = RETRIABLE - {ErrorCode.CORRUPT_MESSAGE}
START_S_MAX: Final = 30.0


class GoodClient:
    """See the head of this module."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._wires = {address: Wire(address) for address in addresses}
        self._partitions = len(addresses)
        self._leaders: dict[int, str] = {}
        self._acknowledged: dict[tuple[int, int], bytes] = {}
        self._sent: dict[int, set[bytes | None]] = defaultdict(set)  # by partition
        self._number = 0
        self._refused = 0
        self.times: dict[str, list[float]] = defaultdict(list)
        self.problems: list[str] = []
        self.is_served = True

    def try_to(self, work: Callable[[], None]) -> None:
        """Do something; an answer that does not come is a problem, and the client stops there."""
        try:
            work()
        except OSError as error:
            self.is_served = False
            self.problems.append(f"{type(error).__name__}: {error}, after {self._number} records")

    def create_topic(self) -> None:
        """Its own, with a partition led by each broker, which it waits for."""
        any_wire = next(iter(self._wires.values()))
        asked = CreateTopicsRequest((NewTopic(TOPIC, self._partitions, self._partitions),))
        end = time.monotonic() + START_S_MAX
        for wire in (any_wire, *self._wires.values()):
            answer = wire.call(ApiKey.CREATE_TOPICS, asked)
            if answer.topics[0].error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                break
        while len(self._leaders) < self._partitions and time.monotonic() < end:
            self._find_leaders()
            time.sleep(PAUSE_S)

    def _find_leaders(self) -> None:
        for wire in self._wires.values():
            answer = wire.call(ApiKey.METADATA, MetadataRequest((TOPIC,)))
            nodes = {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers}
            for part in answer.topics[0].partitions:
                if part.leader_id in nodes and not part.error:
                    self._leaders[part.partition] = nodes[part.leader_id]

    def work(self, phase: str) -> None:
        """One round: ping all, produce a record, read it back."""
        for wire in self._wires.values():
            began = time.perf_counter()
            wire.call(ApiKey.API_VERSIONS, ApiVersionsRequest())
            self.times[f"{phase} ping"].append(time.perf_counter() - began)
        self._number += 1
        value = b"%d" % self._number
        partition = self._number % self._partitions
        began = time.perf_counter()
        offset = self._produce(partition, value)
        self.times[f"{phase} produce"].append(time.perf_counter() - began)
        if offset is None:
            return
        self._acknowledged[partition, offset] = value
        began = time.perf_counter()
        found = self._fetch(partition, offset)
        self.times[f"{phase} fetch"].append(time.perf_counter() - began)
        if found is None:
            return  # its leader has just changed; it is read at the end
        if not found or found[0].offset != offset or found[0].value != value:
            self.problems.append(f"partition {partition}, offset {offset}: {found[:1]}")

    def _produce(self, partition: int, value: bytes) -> int | None:
        self._sent[partition].add(value)
        batch = encode_batch([(int(time.time() * 1000), None, value, [])])
        asked = ProduceRequest(ACKS_ALL, 30_000, (PartitionProduce(TOPIC, partition, batch),))
        [answer] = self._leader(partition).call(ApiKey.PRODUCE, asked).partitions
        if answer.error in RETRIED:
            self._refused += 1
            self._find_leaders()
            return None
        if answer.error != ErrorCode.NONE:
            self.problems.append(f"partition {partition}: {ErrorCode(answer.error).name}")
            return None
        return int(answer.base_offset)

    def _leader(self, partition: int) -> Wire:
        return self._wires[self._leaders[partition]]

    def _fetch(self, partition: int, offset: int) -> list[Record] | None:
        part = PartitionFetch(TOPIC, partition, offset, FETCHED_BYTES)
        asked = FetchRequest(wait_ms_max=0, partitions=(part,))
        [answer] = self._leader(partition).call(ApiKey.FETCH, asked).partitions
        if answer.error in RETRIED:
            self._find_leaders()
            return None
        if answer.error != ErrorCode.NONE:
            self.problems.append(f"FETCH of {partition}: {ErrorCode(answer.error).name}")
        return [
            record
            for position, header in iterate_headers(answer.records)
            for record in decode_records(answer.records[position : position + header.size], header)
        ]

    def check_all(self) -> None:
        """Read everything: each acknowledged record is there, and none that was not sent."""
        for partition in range(self._partitions):
            found: dict[int, bytes | None] = {}
            end = time.monotonic() + START_S_MAX
            while time.monotonic() < end:
                records = self._fetch(partition, max(found, default=-1) + 1)
                if records is not None and not records:
                    break
                found |= {one.offset: one.value for one in records or ()}
            self._compare(partition, found)

    def _compare(self, partition: int, found: dict[int, bytes | None]) -> None:
        wrong = [
            (offset, value, found.get(offset))
            for (of_partition, offset), value in self._acknowledged.items()
            if of_partition == partition and found.get(offset) != value
        ]
        if wrong:
            self.problems.append(f"partition {partition}: {len(wrong)} are wrong: {wrong[:5]}")
        if not self._sent[partition].issuperset(found.values()):
            self.problems.append(f"partition {partition} has records that were not sent")
        if len(set(found.values())) != len(found):
            self.problems.append(f"partition {partition} has records twice")

    def report(self) -> dict[str, Any]:
        """What `GoodProcess.stop` returns."""
        return {
            "acknowledged": len(self._acknowledged),
            "refused": self._refused,
            "problems": self.problems[:10],
            "p50_ms": {name: _quantile(times, 0.5) for name, times in self.times.items()},
            "p99_ms": {name: _quantile(times, 0.99) for name, times in self.times.items()},
        }


def _quantile(times: list[float], part: float) -> float:
    return round(sorted(times)[int(len(times) * part)] * 1000, 3)


class GoodProcess:
    """The good client as a child of this process."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.good_client", *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n", "the good client did not start"

    def begin(self, phase: str) -> None:
        """Measure under this name from now on."""
        assert self._process.stdin
        self._process.stdin.write(f"{phase}\n")
        self._process.stdin.flush()

    def stop(self) -> dict[str, Any]:
        """Its report."""
        told, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, f"the good client ended with an error: {told}"
        return dict(json.loads(told))

    def kill(self) -> None:
        """If it still runs."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Run until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addresses", nargs="+")
    client = GoodClient(parser.parse_args().addresses)
    client.create_topic()
    print("ready", flush=True)
    phase = "before"
    while True:  # until stdin ends
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            phase = line.strip()
        if client.is_served:
            client.try_to(partial(client.work, phase))
    if client.is_served:
        client.try_to(client.check_all)
    print(json.dumps(client.report()))


if __name__ == "__main__":
    main()
