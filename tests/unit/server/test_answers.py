"""The answers of one connection: all of them in order, whoever sends them, or none behind one that
failed."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.defects import Stage
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.server.answers import Answers, Reply, Step
from minibroker.broker.server.request_times import RequestKind
from minibroker.broker.turns import Steps
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import TooManyElements
from minibroker.protocol.types import Endpoint, Part
from minibroker.testing.cluster import in_worker
from minibroker.testing.network import SimulatedNetwork, SimulatedStream

SEEDS = 60
SIZES = (0, 1, 100, 20_000, 200_000)


class Encoder:
    """Encodes a number of bytes, in turns if there are many; -1 cannot be encoded."""

    def __init__(self, is_large: bool = False) -> None:
        self._is_large = is_large

    def encode(self, correlation_id: int, answer: int) -> list[Part]:
        """The id, the size and so many bytes."""
        if self._is_large:
            raise TooManyElements
        if answer < 0:
            raise KeyError("a defect")
        return expected(correlation_id, answer)

    def in_turns(self, correlation_id: int, answer: int) -> Steps[list[Part]]:
        """The same."""
        yield
        return expected(correlation_id, answer)


def expected(number: int, size: int) -> list[Part]:
    return [b"%08d%08d" % (number, size), memoryview(bytes([number % 256]) * size)]


class Bench:
    """Answers that go to one end of a connection, and what the other end receives."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = RequestKind(ApiKey.FETCH, "FetchFollower")
        self.purgatory = Purgatory()
        self.failures: list[tuple[Exception, Step]] = []
        self.scope = trio.CancelScope()
        self.received = bytearray()
        self.arrived_before_the_end = b""
        self.sent = b""
        self.network = SimulatedNetwork(self.rng)

    async def run(self, replies: Sequence[Reply]) -> None:
        """Add them in bursts, as a reader does."""
        listener = await self.network.host("broker").listen(Endpoint("broker", 0))
        client = await self.network.host("client").connect(listener.endpoint)
        stream = await listener.accept()
        self.answers = Answers(stream, self.purgatory, lambda _: None, self._give_up, in_worker)

        async def receive() -> None:
            view = memoryview(bytearray(50_000))
            while count := await client.receive_into(view):
                self.received += view[:count]
                await trio.sleep(self.rng.choice((0.0, 0.0, 0.1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            with self.scope:
                async with trio.open_nursery() as session:
                    session.start_soon(self.answers.run)
                    for reply in replies:
                        self.answers.add(reply)
                        if self.rng.random() < 0.5:
                            self.answers.send_ready()
                            await trio.sleep(self.rng.choice((0.0, 0.01, 1.0)))
                    self.answers.send_ready()
                    await trio.sleep(100)
                    self.arrived_before_the_end = bytes(self.received)
                    self.answers.end()
            self.answers.abandon()
            stream.close()

    def _give_up(self, error: Exception, step: Step) -> None:
        self.failures.append((error, step))
        self.scope.cancel()

    def reply(self, number: int, size: int) -> Reply:
        """One that is answered now, later, in turns, or never."""
        outcome: Any = size
        match self.rng.choice(("now", "now", "parked", "both", "turns", "none")):
            case "parked":
                outcome = self.parked(number, size)
            case "both":
                outcome = self.parked(number, turns(size))
            case "turns":
                outcome = turns(size)
            case "none":
                outcome, size = None, -1
        if size >= 0:
            self.sent += b"".join(map(bytes, expected(number, size)))  # type: ignore[arg-type]
        encoder: Any = Encoder(is_large=self.rng.random() < 0.2)
        return Reply(number, outcome, encoder, self.kind, 0.0, 10)

    def parked(self, number: int, answer: Any) -> Parked[Any]:
        """Until some time after it was made, or the time is up."""
        at = self.rng.choice((0.0, 0.05, 3.0))
        return Parked(
            (number,), lambda: at, lambda now: answer if now >= at else None, lambda: answer
        )


def turns(size: int) -> Iterator[Any]:
    yield
    return (yield lambda: size)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_all_answers_come_in_order(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Through a connection that often has no room, to a peer that is slow."""
    bench = Bench(seed)
    replies = [bench.reply(number, bench.rng.choice(SIZES)) for number in range(40)]
    await bench.run(replies)
    assert bench.arrived_before_the_end == bytes(bench.received) == bench.sent
    assert not bench.failures
    assert (bench.kind.parked, bench.answers.waiting_size, bench.answers.encoded_size) == (0, 0, 0)
    assert sum(bench.kind.times.statistics().counts) == len(replies)
    assert bench.purgatory.statistics() == 0


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_follows_an_answer_that_failed(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The failure is told once, with what was being done."""
    bench = Bench(seed)
    replies = [bench.reply(number, bench.rng.choice(SIZES)) for number in range(10)]
    encoder: Any = Encoder()
    replies.append(Reply(10, -1, encoder, bench.kind, 0.0, 10))
    before = bench.sent
    replies += [bench.reply(number, 1) for number in range(11, 20)]
    await bench.run(replies)
    assert before.startswith(bench.received)
    [(error, step)] = bench.failures
    assert isinstance(error, KeyError)
    assert step == (bench.kind, Stage.ENCODE)
    assert bench.kind.parked == 0


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_defect_in_sending_changes_nothing(
    is_waiting: bool, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the session, whichever task sends: no request is at work."""

    def broken(*_: object) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(SimulatedStream, "send" if is_waiting else "send_now", broken)
    if is_waiting:
        monkeypatch.setattr(SimulatedStream, "send_now", lambda _, parts: parts)
    bench = Bench(0)
    encoder: Any = Encoder()
    await bench.run([Reply(0, 5, encoder, bench.kind, 0.0, 10)])
    assert [step for _, step in bench.failures] == [(None, Stage.ENCODE)]
