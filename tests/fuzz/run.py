"""A fuzz of running brokers, with a good client beside it, and the verdict.

A broker obeys who is let in, and there is no authentication. So the frames have the right types and
sound values only where that harms nobody but the fuzz itself: see `known.py`.

The good client's latencies are compared in one run: "alone" without frames, "beside" with some
frames a second, over and over. In between, frames are sent as fast as brokers take them: then a
processor is busy all the time, and how long others wait says little about single frames. These
times are reported, too ("flooded"), and not judged.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.brokers import DescribeBrokerRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from tests.fuzz.frames import THOUSANDS
from tests.fuzz.good_client import GoodProcess
from tests.fuzz.known import PARTITIONS, TOPICS
from tests.fuzz.sender import WIRES, Sender, Sent
from tests.support.processes import BrokerProcess, running_broker, running_cluster
from tests.support.wire import Wire

MB: Final = 1024 * 1024
MEMORY_BYTES_MAX: Final = 64 * MB
SLOWER_MAX: Final = 3.0
WARM_FRAMES: Final = 2_000  # before memory is measured: code is generated, caches fill
SETTLE_S: Final = 3.0
SERVED_S: Final = (
    60.0  # for the requests of the last frames, of which some have thousands of batches
)
TRACEBACK_LINES: Final = 150  # of nested groups of exceptions
LOOK_EVERY: Final = 1000  # frames
AGAIN_S: Final = 0.05  # after a connection was refused
ROUNDS: Final = 5
PHASE_S: Final = 5.0  # of "alone" and of "beside"
BESIDE_FRAMES: Final = 200  # a second
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "2",
    "producer.id.expiration.ms": "10000",
    "producer.id.expiration.check.interval.ms": "5000",
}


@dataclass
class Verdict:
    """What came of a fuzz. `problems` is empty if all went well; times are in milliseconds."""

    seed: int
    frames: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    alive: bool = True
    memory_mb: list[int] = field(default_factory=list)  # by which it has grown
    peak_mb: list[int] = field(default_factory=list)  # by which it had grown at times
    p99_alone_ms: dict[str, float] = field(default_factory=dict)
    p99_beside_ms: dict[str, float] = field(default_factory=dict)
    p99_flooded_ms: dict[str, float] = field(default_factory=dict)
    slower: dict[str, float] = field(default_factory=dict)
    acknowledged: int = 0
    refused: int = 0
    sessions_ended: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@contextmanager
def running_brokers(place: Path, count: int) -> Iterator[list[BrokerProcess]]:
    """One broker, or a cluster; they are gone when the block ends."""
    if count > 1:
        factor = {"offsets.topic.replication.factor": str(count), "default.replication.factor": "3"}
        with running_cluster(place, count, SETTINGS | factor) as cluster:
            yield list(cluster.brokers.values())
    else:
        options = [part for pair in SETTINGS.items() for part in ("--set", "=".join(pair))]
        with running_broker(place / "data", *options) as broker:
            yield [broker]


class Fuzz:
    """Frames from a seed to brokers that run. `place` gets what they print, and the last frames."""

    def __init__(
        self,
        brokers: Sequence[BrokerProcess],
        seed: int,
        place: Path,
        wires: Sequence[str] = WIRES,
        elements_max: int = THOUSANDS,
    ) -> None:
        self._brokers = brokers
        self._place = place
        self._addresses = [broker.address for broker in brokers]
        self._sender = Sender(random.Random(seed), self._addresses, wires, elements_max)
        self._tracebacks: list[str] = []
        self._peaks = [0] * len(brokers)
        self.verdict = Verdict(seed)

    def run(self, frames: int, rounds: int = 0) -> Verdict:
        """Send so many frames as fast as possible; before, measure the good client in rounds."""
        began = time.monotonic()
        create_topics(self._addresses)
        epochs = [broker_epoch(address) for address in self._addresses]
        good = GoodProcess(self._addresses)
        try:
            self._send(min(WARM_FRAMES, frames // 4))
            settled = [broker.resident_bytes for broker in self._brokers]
            for number in range(rounds):
                good.begin(f"alone-{number}")
                time.sleep(PHASE_S)
                good.begin(f"beside-{number}")
                self._send_slowly(PHASE_S)
                good.begin("flooded")
                self._send((frames - self.verdict.frames) // (rounds - number))
            self._send(frames - self.verdict.frames)
            self._sender.drain(SETTLE_S)
            if self._look():
                self._judge_memory(settled)
                self._count_sessions(epochs)
                self._judge_client(good.stop(), rounds)
        except (OSError, AssertionError) as error:
            self._look()
            self.verdict.problems.append(f"{type(error).__name__}: {error}")
        finally:
            good.kill()
            self._sender.close()
        self.verdict.outcomes = dict(self._sender.outcomes)
        self.verdict.seconds = round(time.monotonic() - began, 1)
        if self.verdict.problems:
            write_frames(self._place / "frames.jsonl", list(self._sender.last))
        return self.verdict

    def _send_slowly(self, seconds: float) -> None:
        began = time.monotonic()
        for number in range(int(seconds * BESIDE_FRAMES)):
            time.sleep(max(0.0, began + number / BESIDE_FRAMES - time.monotonic()))
            self._send(1)

    def _send(self, frames: int) -> None:
        for _ in range(frames):
            try:
                self._sender.send_one()
            except OSError:
                if not self._look():
                    raise
                time.sleep(AGAIN_S)
            self.verdict.frames += 1
            if self.verdict.frames % LOOK_EVERY == 0 and not self._look():
                raise AssertionError("a broker ended")

    def _look(self) -> bool:
        """Whether all brokers run. What they printed goes to a file; tracebacks are problems."""
        for number, broker in enumerate(self._brokers):
            if broker.is_running:
                self._peaks[number] = max(self._peaks[number], broker.resident_bytes)
            if not broker.is_running:
                broker.wait()  # until all that it has printed is here
            lines = broker.lines[:]
            del broker.lines[: len(lines)]
            with (self._place / f"{broker.data_dir.name}.txt").open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
            starts = [n for n, line in enumerate(lines) if "Traceback" in line]
            if starts:
                end = starts[0] + TRACEBACK_LINES
                self._tracebacks.append("\n".join(lines[max(0, starts[0] - 2) : end]))
            if starts:
                self.verdict.problems.append(f"{broker.address} printed {len(starts)} tracebacks")
            if not broker.is_running:
                self.verdict.alive = False
                self.verdict.problems.append(f"{broker.address} ended: {lines[-3:]}")
        if self._tracebacks:
            (self._place / "tracebacks.txt").write_text("\n\n".join(self._tracebacks))
        return self.verdict.alive

    def _judge_memory(self, settled: list[int]) -> None:
        """Compare what the brokers hold with `settled`, once they have served what was sent."""
        until = time.monotonic() + SERVED_S
        grown = self._grown(settled)
        while max(grown) > MEMORY_BYTES_MAX and time.monotonic() < until:
            time.sleep(1.0)
            grown = list(map(min, grown, self._grown(settled)))
        self.verdict.memory_mb = [one // MB for one in grown]
        peaks = zip(self._peaks, settled, strict=True)
        self.verdict.peak_mb = [(peak - before) // MB for peak, before in peaks]
        if max(grown) > MEMORY_BYTES_MAX:
            self.verdict.problems.append(f"memory grew by {self.verdict.memory_mb} MB")

    def _grown(self, settled: list[int]) -> list[int]:
        pairs = zip(self._brokers, settled, strict=True)
        return [broker.resident_bytes - before for broker, before in pairs]

    def _count_sessions(self, epochs: list[int]) -> None:
        after = [broker_epoch(address) for address in self._addresses]
        pairs = zip(epochs, after, strict=True)
        self.verdict.sessions_ended = sum(new != old for old, new in pairs)

    def _judge_client(self, told: dict[str, Any], rounds: int) -> None:
        self.verdict.acknowledged, self.verdict.refused = told["acknowledged"], told["refused"]
        self.verdict.problems += told["problems"]
        p99 = told["p99_ms"]
        for what in ("ping", "produce", "fetch"):
            pairs = [
                (p99.get(f"alone-{number} {what}"), p99.get(f"beside-{number} {what}"))
                for number in range(rounds)
            ]
            self.verdict.p99_flooded_ms[what] = p99.get(f"flooded {what}", 0.0)
            whole = [(alone, beside) for alone, beside in pairs if alone and beside]
            if whole:
                alone, beside = min(whole, key=lambda pair: pair[1] / pair[0])
                self.verdict.p99_alone_ms[what] = alone
                self.verdict.p99_beside_ms[what] = beside
                self.verdict.slower[what] = round(beside / alone, 2)

    def judge_times(self) -> None:
        """Count as problems what a busy machine does, too: in its best round the good client was
        too slow, or a broker of a cluster was fenced."""
        for what, times in self.verdict.slower.items():
            if times > SLOWER_MAX:
                self.verdict.problems.append(f"p99 of {what} is {times} times that alone")
        if self.verdict.sessions_ended and len(self._brokers) > 1:
            ended = self.verdict.sessions_ended
            self.verdict.problems.append(f"{ended} brokers lost their sessions with the store")


def create_topics(addresses: Sequence[str]) -> None:
    """Those of the fuzz."""
    asked = CreateTopicsRequest(tuple(NewTopic(topic, PARTITIONS) for topic in TOPICS))
    for address in addresses:
        with Wire(address) as wire:
            wire.call(ApiKey.CREATE_TOPICS, asked)


def broker_epoch(address: str) -> int:
    """That of the present registration: another one if a session has ended."""
    with Wire(address) as wire:
        answer = wire.call(ApiKey.DESCRIBE_BROKER, DescribeBrokerRequest())
        return int(answer.broker_epoch)


def write_frames(path: Path, sent: list[Sent]) -> None:
    """One JSON object a line, the last frame last."""
    with path.open("w", encoding="utf-8") as file:
        for address, wire, frame in sent:
            row = {"what": frame.what, "wire": wire, "broker": address, "data": frame.data.hex()}
            file.write(json.dumps(row) + "\n")
