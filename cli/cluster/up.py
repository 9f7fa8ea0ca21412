"""Starting brokers and watching them: the part of `cluster up` that takes time.

Signals are recorded, never raised: an exception between the start of a process and the line that
stores its id would leave a broker that no command can find. The first signal stops all brokers in
order. The second kills them and waits until they have ended, since `kill` returns before that.

The watch compares the present state with that of a moment ago. So it does not matter which command
killed, paused or started a broker: users do that on purpose, and the watch continues.
"""

import signal
import time
from collections.abc import Iterable, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from minibroker.cli.cluster.layout import Layout, exclusive
from minibroker.cli.cluster.process import POLL_S, Broker, Launch, State, end, wait_for
from minibroker.cli.terminal import Failure, Interrupted, end_now, note

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
KILL_S_MAX: Final = 5.0
WATCH_S: Final = 0.2
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handles SIGINT and SIGTERM inside `with`: `received` is the first one's number, else 0."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self.received = 0
        self._brokers = brokers
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            for broker in self._brokers:
                broker.send(signal.SIGKILL)
            wait_for(lambda: not any(broker.state.is_alive for broker in self._brokers), KILL_S_MAX)
            end_now(number)
        self.received = number


def start(layout: Layout, brokers: Sequence[Broker], signals: StopSignals) -> list[Launch]:
    """Start the brokers that do not run, and return once they answer.

    Raises `Failure` if one is paused or does not start, `Interrupted` at a signal before; those
    that were started are then stopped.
    """
    launches = []
    with exclusive(layout):
        refuse_paused(layout, brokers)
        for broker in brokers:
            if broker.state.is_alive:
                note(f"{broker} runs already, as process {broker.pid}")
            else:
                launches.append(broker.spawn())
    try:
        _wait_until_ready(launches, signals)
    except BaseException:
        end([launch.broker for launch in launches], STOP_S_MAX)
        raise
    return launches


def refuse_paused(layout: Layout, brokers: Iterable[Broker]) -> None:
    """Raise a `Failure` if a broker is paused."""
    paused = [broker for broker in brokers if broker.state is State.PAUSED]
    if paused:
        verb = "is" if len(paused) == 1 else "are"
        resume = layout.command("resume", *(broker.node_id for broker in paused))
        raise Failure(
            f"{', '.join(map(str, paused))} {verb} paused, and does not answer; to let it go on:"
            f" {resume}"
        )


def _wait_until_ready(launches: Sequence[Launch], signals: StopSignals) -> None:
    pending = list(launches)
    deadline = time.monotonic() + START_S_MAX
    while pending:
        if signals.received:
            raise Interrupted(signals.received)
        if time.monotonic() > deadline:
            names = ", ".join(
                f"{launch.broker} (see {launch.broker.log_file})" for launch in pending
            )
            raise Failure(f"not started within {START_S_MAX:.0f} s: {names}")
        for launch in [launch for launch in pending if launch.is_ready()]:
            pending.remove(launch)
            broker = launch.broker
            print(
                f"Broker {broker.node_id} started: {broker.address}, process {launch.pid}, log"
                f" {broker.log_file}",
                flush=True,
            )
        time.sleep(POLL_S)


def watch(brokers: Sequence[Broker], launches: Sequence[Launch], signals: StopSignals) -> None:
    """Print which brokers end and start, until a signal, or until all were stopped in order."""
    seen = {broker.node_id: broker.inspect() for broker in brokers}
    while not signals.received:
        for launch in launches:
            launch.collect()
        for broker in brokers:
            pid, state = broker.inspect()
            if (pid, state) != seen[broker.node_id]:
                _print_change(
                    broker, pid, state, was_paused=seen[broker.node_id] == (pid, State.PAUSED)
                )
                seen[broker.node_id] = (pid, state)
        if all(state is State.STOPPED for _, state in seen.values()) and _stay_stopped(brokers):
            return
        time.sleep(WATCH_S)


def _stay_stopped(brokers: Sequence[Broker]) -> bool:
    """Return whether these stopped brokers are not just being restarted by a roll."""
    with exclusive(brokers[0].layout):
        return all(broker.state is State.STOPPED for broker in brokers)


def _print_change(broker: Broker, pid: int | None, state: State, *, was_paused: bool) -> None:
    again = f"to start it again: {broker.layout.command('start', broker.node_id)}"
    match state:
        case State.RUNNING if was_paused:
            note(f"{broker} goes on")
        case State.RUNNING:
            note(f"{broker} runs again, as process {pid}")
        case State.PAUSED:
            note(f"{broker} is paused")
        case State.STOPPED:
            note(f"{broker} was stopped; {again}")
        case _:
            note(f"WARNING: {broker} has ended (see {broker.log_file}); {again}")


def stop(brokers: Iterable[Broker], timeout_s: float = STOP_S_MAX) -> list[Broker]:
    """Stop these brokers in order, all at once; return those that ran.

    Raises `Failure` if one does not end in time, or does not stop in order.
    """
    running = [broker for broker in brokers if broker.state.is_alive]
    left = end(running, timeout_s)
    if left:
        kill = left[0].layout.command("kill", *(broker.node_id for broker in left))
        raise Failure(
            f"{', '.join(map(str, left))} still runs after {timeout_s:.0f} s; to end it at once:"
            f" {kill}"
        )
    unclean = [broker for broker in running if broker.state is State.ENDED]
    if unclean:
        logs = ", ".join(str(broker.log_file) for broker in unclean)
        raise Failure(f"{', '.join(map(str, unclean))} did not stop in order; see {logs}")
    return running
