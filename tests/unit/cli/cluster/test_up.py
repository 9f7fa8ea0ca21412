"""The signals that stop what `cluster up` has started."""

import signal

import pytest

from minibroker.cli.cluster import up
from minibroker.cli.cluster.process import Broker, State
from minibroker.cli.cluster.up import StopSignals


class Reluctant(Broker):
    """Its process is seen for a while after SIGKILL, as that of a busy system is."""

    def __init__(self) -> None:
        self.looks_left = 0

    def send(self, number: signal.Signals) -> bool:
        """Only SIGKILL."""
        assert number is signal.SIGKILL
        self.looks_left = 3
        return True

    def inspect(self) -> tuple[int | None, State]:
        """Alive a few times."""
        self.looks_left -= 1
        return (1, State.RUNNING) if self.looks_left >= 0 else (None, State.ENDED)


def test_a_second_signal_returns_once_the_killed_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill` returns before its process is gone; `up` does not."""
    brokers = [Reluctant(), Reluctant()]
    left: list[list[int]] = []

    def end_now(number: int) -> None:
        assert number == signal.SIGTERM
        left.append([broker.looks_left for broker in brokers])

    monkeypatch.setattr(up, "end_now", end_now)
    with StopSignals(brokers) as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        assert not left
        signal.raise_signal(signal.SIGTERM)
    assert left
    assert all(looks < 0 for looks in left[0])
