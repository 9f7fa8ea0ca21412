"""Ctrl-C at every line with which a trio client begins or ends: trio survives it, and a producer
says how many records are dropped."""

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.client import Admin, Consumer, Producer

ENDS_OF_PRODUCER = {"__aexit__", "close", "_run", "_stop_taking", "_give_up", "_wait_for_all"}
END_S_MAX = 0.05  # on a clock that only runs while the client waits
LINES_MAX = 1_000


class SignalAtLine:
    """A trace function: SIGINT before the line of this number that these functions execute."""

    def __init__(self, number: int, client: type, functions: set[str]) -> None:
        self._left = number
        self._file = sys.modules[client.__module__].__file__
        self._functions = functions

    @property
    def is_reached(self) -> bool:
        """Whether there were so many lines."""
        return self._left < 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> "Callable[..., Any] | None":
        code = frame.f_code
        is_traced = code.co_name in self._functions and code.co_filename == self._file
        return self._at_line if is_traced else None

    def _at_line(self, _frame: FrameType, event: str, _: Any) -> "Callable[..., Any]":
        if event == "line":
            if self._left == 0:
                signal.raise_signal(signal.SIGINT)
            self._left -= 1
        return self._at_line


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """An address at which nobody answers, while SIGINT is Python's, as in a program."""
    before, trace = signal.getsignal(signal.SIGINT), sys.gettrace()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(50)
            yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        signal.signal(signal.SIGINT, before)
        sys.settrace(trace)


def is_interrupted(main: Callable[[], Any], tracer: SignalAtLine) -> bool:
    """Run a program; whether the tracer's line was reached."""
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except KeyboardInterrupt:
        assert tracer.is_reached
    finally:
        sys.settrace(None)
    return tracer.is_reached


@pytest.mark.parametrize("is_closed", [False, True], ids=["leaves the block", "closes it"])
def test_an_interrupt_of_a_producers_end_drops_no_record_silently(
    is_closed: bool, silent_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before the end has begun, and while it gives records up."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with Producer(silent_broker) as producer:
                await producer.send("topic", b"value")
                scope.deadline = trio.current_time() + END_S_MAX
                sys.settrace(tracer)
                if is_closed:
                    await producer.close()

    for number in range(LINES_MAX):
        caplog.clear()
        tracer = SignalAtLine(number, Producer, ENDS_OF_PRODUCER)
        is_last = not is_interrupted(main, tracer)
        dropped = [each for each in caplog.messages if "dropped" in each]
        assert len(dropped) == 1, (number, caplog.messages)
        if is_last:
            break
    assert number > 10


@pytest.mark.parametrize("client", [Producer, Consumer, Admin], ids=lambda client: client.__name__)
def test_an_interrupt_of_a_clients_beginning_or_end_leaves_trio_whole(
    client: type, silent_broker: str
) -> None:
    """It is raised as itself. In between, trio would find nurseries that were not left."""

    async def main() -> None:
        with trio.move_on_after(END_S_MAX):
            sys.settrace(tracer)
            async with client(silent_broker):
                pass

    for number in range(LINES_MAX):
        tracer = SignalAtLine(number, client, {"__aenter__", "__aexit__"})
        if not is_interrupted(main, tracer):
            break
    assert number >= 3
