"""Count the files and the Python calls that one PRODUCE and one FETCH take. There is no limit.

    python -m tests.bench.calls [--list]

The client and a broker run in one process on virtual time (`testing.cluster`), so each run prints
the same figures. The program counts calls of functions in minibroker's packages except `testing`:
for PRODUCE from the first of ten `send` to the acknowledgement of their batch with acks=all, for
FETCH from the request to the response that has this batch. A coroutine counts once, however often
it waits. One that waited before the first `send` or the request counts if it then calls a function
itself; a task that only waits for another coroutine is not on the way. `--list` prints each
function with its calls.
"""

import argparse
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import trio

import minibroker
from minibroker.client import Producer
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetch
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import PORT, SimulatedWorld, open_broker, simulate

RECORDS = 10
SUSPENDABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
PACKAGE = Path(minibroker.__file__).parent


class Function(NamedTuple):
    """A function by its file below the package, and its name."""

    file: str
    name: str


class Calls:
    """The calls while `counting`, by function. `waiting` are coroutines that waited before."""

    def __init__(self, waiting: Iterable[FrameType] = ()) -> None:
        self.counts: Counter[Function] = Counter()
        self.suspendable: set[FrameType] = set()  # kept, so that each is another object
        self._files: dict[str, str] = {}
        self._waiting = set(waiting)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the block ends, in whatever task."""
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            if frame.f_code.co_flags & SUSPENDABLE:
                if frame in self.suspendable:
                    return  # it continues after a wait
                self.suspendable.add(frame)
                if frame in self._waiting:
                    return
            if self._count(frame.f_code) and frame.f_back in self._waiting:
                self._waiting.remove(frame.f_back)
                self._count(frame.f_back.f_code)

    def _count(self, code: CodeType) -> bool:
        """Count a call. Return whether it is one of minibroker's functions."""
        file = self._files.get(code.co_filename)
        if file is None:
            file = self._files[code.co_filename] = _name_of(code.co_filename)
        if file:
            self.counts[Function(file, code.co_qualname)] += 1
        return bool(file)

    def table(self, title: str) -> str:
        """Files and calls, of each package and of all."""
        lines = [f"{title:<28}{'files':>8}{'calls':>8}"]
        for package in ("client", "protocol", "broker", ""):
            of_it = {each: n for each, n in self.counts.items() if each.file.startswith(package)}
            files = len({each.file for each in of_it})
            lines.append(f"  {package or 'all':<26}{files:>8}{sum(of_it.values()):>8}")
        return "\n".join(lines)

    def files(self) -> set[str]:
        """The files of these functions, below the package."""
        return {each.file for each in self.counts}

    def listing(self) -> str:
        """Each function with its calls, by file."""
        return "\n".join(
            f"{n:6} {each.file} {each.name}" for each, n in sorted(self.counts.items())
        )


def _name_of(path: str) -> str:
    """A source file below the package; "" for what is not counted."""
    try:
        name = Path(path).relative_to(PACKAGE).as_posix()
    except ValueError:
        return ""
    return "" if name.startswith("testing/") else name


async def count() -> tuple[Calls, Calls]:
    """One PRODUCE of ten records and one FETCH of them, on connections that were used before."""
    world, produce, fetch = SimulatedWorld(1), Calls(), Calls()
    async with open_broker(world) as broker:
        seams = world.seams("client")
        async with Producer(broker.address, seams=seams) as producer:
            for _ in range(2):
                await trio.sleep(0.25)
                produce = Calls(produce.suspendable)
                with produce.counting():
                    for number in range(RECORDS):
                        await producer.send("t", b"value %d" % number)
                    await producer.flush()
        endpoint = Endpoint(broker.name, PORT)
        async with open_channel(seams.network, endpoint, ChannelOptions()) as channel:
            for _ in range(2):
                await trio.sleep(0.25)
                fetch = Calls(fetch.suspendable)
                request = FetchRequest(partitions=(PartitionFetch("t", 0, RECORDS),))
                with fetch.counting():
                    response: FetchResponse = await channel.call(ApiKey.FETCH, request)
                assert response.partitions[0].records, "the batch is found"
    return produce, fetch


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each function with its calls")
    is_listed = parser.parse_args().list
    for title, calls in zip(("PRODUCE, ten records", "FETCH"), simulate(count, 1), strict=True):
        print(calls.table(title))
        if is_listed:
            print(calls.listing())


if __name__ == "__main__":
    main()
