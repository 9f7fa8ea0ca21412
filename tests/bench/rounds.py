"""Running measurements in pairs, and what a row of the table says.

A figure alone says little on a machine that does other things too. So ours and its yardstick run
by turns, each in a process of its own, some seconds apart; the figure shown is the median of its
rounds, and the ratio is the median of the ratios of each round, which a slow minute changes less.

Each process prints one JSON object as its last line.
"""

import json
import operator
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from tests.support.processes import BrokerProcess, running_broker
from tests.support.wire import Wire

ROUNDS = 3
PROCESS_S_MAX = 120.0
Measure = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A line of the table; `is_met` is None where nothing is demanded."""

    name: str
    ours: str
    yardstick: str = ""
    theirs: str = ""
    ratio: str = ""
    wanted: str = ""
    is_met: bool | None = None


class Pair(NamedTuple):
    """Medians of a figure and of its yardstick, and of the ratios of their rounds."""

    ours: float
    theirs: float
    ratio: float


def by_turns(ours: Measure, theirs: Measure, rounds: int = ROUNDS) -> Pair:
    """Measure ours, theirs, ours, theirs, ..."""
    [pair] = all_by_turns([ours], theirs, rounds)
    return pair


def all_by_turns(ours: Sequence[Measure], theirs: Measure, rounds: int = ROUNDS) -> list[Pair]:
    """Several figures with one yardstick, which is measured once a round, in their middle."""
    middle = len(ours) // 2
    figures: list[list[float]] = [[] for _ in ours]
    others = []
    for _ in range(rounds):
        for place, measure in enumerate(ours):
            if place == middle:
                others.append(theirs())
            figures[place].append(measure())
    other = statistics.median(others)
    return [
        Pair(
            statistics.median(mine),
            other,
            statistics.median(map(operator.truediv, mine, others)),
        )
        for mine in figures
    ]


def median_of(measure: Measure, rounds: int = ROUNDS) -> float:
    """The median of some rounds."""
    return statistics.median(measure() for _ in range(rounds))


def run_module(name: str, *arguments: object) -> dict[str, float]:
    """Run `python -m tests.bench.NAME ...` and return what it printed."""
    command = [sys.executable, "-m", f"tests.bench.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S_MAX)
    if done.returncode:
        raise AssertionError(f"{' '.join(command[2:])} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def fresh_broker(*options: str) -> Iterator[BrokerProcess]:
    """A broker with nothing in it; its data is gone afterwards."""
    with (
        TemporaryDirectory(prefix="minibroker-bench-") as directory,
        running_broker(Path(directory) / "data", *options) as broker,
    ):
        try:
            yield broker
        except Exception as error:
            broker.kill()  # and with it comes the rest of its output
            error.add_note(f"the broker said:\n{broker.output}")
            raise


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, from the system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_time_us(pid: int) -> float:
    """The processor time of all threads of a process, from the system's scheduler."""
    files = [task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(file.read_text().split()[0]) for file in files) / 1_000


def create_topic(address: str, topic: str, partition_count: int) -> None:
    """Make it, or fail."""
    request = CreateTopicsRequest((NewTopic(topic, partition_count),))
    with Wire(address) as wire:
        [made] = wire.call(ApiKey.CREATE_TOPICS, request).topics
    assert made.error == 0, made


def millions(per_second: float) -> str:
    """Records a second."""
    return f"{per_second / 1e6:.2f} M/s"


def gigabytes(per_second: float) -> str:
    """Bytes a second."""
    return f"{per_second / 1e9:.2f} GB/s"


def seconds(duration: float) -> str:
    """A duration."""
    return f"{duration:.2f} s"


def milliseconds(duration_ms: float) -> str:
    """A short duration."""
    return f"{duration_ms:.2f} ms"


def megabytes(size: float) -> str:
    """A size."""
    return f"{size / 1e6:.1f} MB"
