"""A member of a group in a process of its own, which writes down what it has done, as it does it.

    python -m tests.support.group_worker FILE BOOTSTRAP TOPIC OPTION=VALUE...

It works on one record after the other and commits after each poll's worth, through the blocking
consumer, until SIGTERM. Each line goes to the file by one write of its own, so what a `kill -9`
leaves is what had been done:

    assigned PARTITION...      lost PARTITION...
    record PARTITION OFFSET VALUE      the work on it is done
    commit                             it is being asked for
    committed                          all records above
    refused WHY                        nobody commits the records since the last `committed`
"""

import argparse
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from minibroker.client import CommitFailed, TopicPartition
from minibroker.client.blocking import Consumer

WORK_S = 0.0001  # on each record
POLL_S = 0.2


class Place(NamedTuple):
    """Of a record in the topic."""

    partition: int
    offset: int


@dataclass
class Account:
    """What one worker's file says. `open` is what it had worked on and not committed at its end."""

    values: dict[Place, bytes] = field(default_factory=dict)
    committed: list[Place] = field(default_factory=list)
    refused: list[Place] = field(default_factory=list)
    open: list[Place] = field(default_factory=list)

    @property
    def worked_on(self) -> list[Place]:
        """All of it, those that it did twice twice."""
        return [*self.committed, *self.refused, *self.open]


def read_account(path: Path) -> Account:
    """A worker's file; a last line that was cut is an error, for each is one write."""
    account = Account()
    for line in path.read_bytes().splitlines(keepends=True):
        assert line.endswith(b"\n"), line
        kind, *words = line.split()
        if kind == b"record":
            place = Place(int(words[0]), int(words[1]))
            account.open.append(place)
            account.values[place] = words[2]
        elif kind == b"committed":
            account.committed += account.open
            account.open = []
        elif kind == b"refused":
            account.refused += account.open
            account.open = []
    return account


def is_at_work(path: Path) -> bool:
    """Whether the last thing it did was a record: it has work that it has not asked to commit."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1000))
        lines = file.read().splitlines()
    return bool(lines) and lines[-1].startswith(b"record ")


def work(given: argparse.Namespace) -> None:
    """Until SIGTERM."""
    output = os.open(given.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    is_stopped = False

    def say(kind: str, *words: object) -> None:
        os.write(output, f"{' '.join(map(str, (kind, *words)))}\n".encode())

    def say_partitions(kind: str, names: list[TopicPartition]) -> None:
        say(kind, *(name.partition for name in names))

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    options = dict(option.split("=", 1) for option in given.options)
    with Consumer({"bootstrap.servers": given.bootstrap, **options}) as consumer:
        consumer.subscribe(
            given.topic,
            on_assigned=lambda names: say_partitions("assigned", names),
            on_lost=lambda names: say_partitions("lost", names),
        )
        while not is_stopped:
            records = consumer.poll(POLL_S)
            for record in records:
                time.sleep(WORK_S)
                say("record", record.partition, record.offset, (record.value or b"").decode())
            if records:
                say("commit")
                try:
                    consumer.commit()
                except CommitFailed as error:
                    say("refused", error)
                else:
                    say("committed")


def main() -> None:
    """Work as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("options", nargs="*")
    work(parser.parse_args())


if __name__ == "__main__":
    main()
