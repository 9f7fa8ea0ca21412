"""`make demo`: a broker is killed in the middle of real work, and nothing is lost or twice.

A broker in its own process, a topic with 4 partitions, every line of the standard library's Python
files as a record under its file's name. When half of the lines are acknowledged (acks=all), the
broker is killed with -9 and started again; the same idempotent producer, which knows nothing of
it, delivers the rest. Then everything is read back and compared with the files, line by line per
key. Exit code 0 if all is as it was, 1 at any difference.

The comparison trusts nobody: it takes the files as the truth, not what the producer believes.
"""

import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from minibroker.client import Admin, Consumer, Delivery, NewTopic, Producer
from tests.processes import BrokerProcess

TOPIC = "standard-library"
PARTITION_COUNT = 4
LINES_MIN = 200_000
LINES_MAX = 400_000
DIFFERENCES_SHOWN = 10
STALLED_S_MAX = 30.0

Lines = dict[bytes, list[bytes]]


@dataclass
class Story:
    """What happened, for the table and for the verdict."""

    line_count: int = 0
    byte_count: int = 0
    delivered: int = 0
    delivered_at_kill: int = 0
    consumed: int = 0
    produce_s: float = 0.0
    restart_s: float = 0.0
    consume_s: float = 0.0
    differences: list[str] = field(default_factory=list)
    half: trio.Event = field(default_factory=trio.Event)

    def on_delivery(self, delivery: Delivery) -> None:
        """Count what is acknowledged, and say when it is half."""
        if delivery.error is not None:
            self.differences.append(f"a batch was not delivered: {delivery.error}")
            return
        self.delivered += delivery.record_count
        if 2 * self.delivered >= self.line_count:
            self.half.set()


def standard_library(lines_max: int) -> Lines:
    """The lines of real files by file name; whole files, until there are `lines_max`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lines: Lines = {}
    count = 0
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if count >= lines_max or not {"site-packages", "dist-packages"}.isdisjoint(name.parts):
            continue
        found = path.read_bytes().split(b"\n")
        lines[name.as_posix().encode()] = found
        count += len(found)
    return lines


async def produce(address: str, lines: Lines, story: Story) -> None:
    """Send every line, keyed by its file, in order; return when all are acknowledged."""
    started = time.monotonic()
    async with Producer(address, acks="all", on_delivery=story.on_delivery) as producer:
        for key, values in lines.items():
            for value in values:
                await producer.send(TOPIC, value, key)
        await producer.flush()
    story.produce_s = time.monotonic() - started


async def kill_and_restart(brokers: list[BrokerProcess], data_dir: Path, story: Story) -> None:
    """In the middle: `kill -9`, and the same broker again at the same address."""
    await story.half.wait()
    brokers[-1].kill()
    story.delivered_at_kill = story.delivered
    started = time.monotonic()
    brokers.append(BrokerProcess(data_dir, listen=brokers[-1].address))
    await trio.to_thread.run_sync(brokers[-1].wait_until_ready)
    story.restart_s = time.monotonic() - started


async def consume(address: str, story: Story) -> Lines:
    """Everything that is in the topic, by key, in the order of each partition."""
    started = time.monotonic()
    found: Lines = {}
    async with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = await consumer.assign_topics(TOPIC)
        ends = await consumer.end_offsets(*partitions)
        total = sum(ends.values())
        last_progress = time.monotonic()
        while story.consumed < total and time.monotonic() - last_progress < STALLED_S_MAX:
            records = await consumer.poll(1.0)
            for record in records:
                found.setdefault(record.key or b"", []).append(record.value or b"")
            story.consumed += len(records)
            last_progress = time.monotonic() if records else last_progress
    story.consume_s = time.monotonic() - started
    return found


def differences(expected: Lines, found: Lines) -> Iterator[str]:
    """Every key whose lines are not exactly the file's lines, in the file's order."""
    for key in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(key, []), found.get(key, [])
        if wanted == got:
            continue
        name = key.decode(errors="replace")
        pairs = zip(wanted, got, strict=False)
        first = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(got)))
        yield f"{name}: {len(wanted)} lines sent, {len(got)} read, the first difference at {first}"


async def run(story: Story, lines: Lines, data_dir: Path) -> None:
    """The story from the first start to the comparison."""
    story.line_count = sum(len(values) for values in lines.values())
    story.byte_count = sum(len(value) for values in lines.values() for value in values)
    brokers = [BrokerProcess(data_dir)]
    try:
        address = brokers[0].wait_until_ready().address
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITION_COUNT))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, address, lines, story)
            nursery.start_soon(kill_and_restart, brokers, data_dir, story)
        found = await consume(address, story)
        story.differences += differences(lines, found)
        if story.delivered_at_kill == story.line_count:
            story.differences.append("the broker was killed too late: all was delivered before")
        if (code := brokers[-1].stop()) != 0:
            story.differences.append(f"exit code {code} at the end:\n{brokers[-1].output}")
    finally:
        for broker in brokers:
            broker.kill()


def show(story: Story, seconds: float) -> None:
    """The table."""
    table = Table(title="minibroker demo: kill -9 in the middle", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rates = {
        "produced with acks=all": (story.line_count, story.produce_s),
        "consumed": (story.consumed, story.consume_s),
    }
    table.add_row("lines of the standard library", f"{story.line_count:,}")
    table.add_row("megabytes", f"{story.byte_count / 1e6:,.1f}")
    table.add_row("acknowledged before kill -9", f"{story.delivered_at_kill:,}")
    table.add_row("start after kill -9 to the first answer", f"{story.restart_s:.2f} s")
    for name, (count, took) in rates.items():
        table.add_row(name, f"{count:,} in {took:.1f} s")
    table.add_row("acknowledged in the end", f"{story.delivered:,}")
    table.add_row("differences, line by line per key", f"{len(story.differences)}")
    table.add_row("all together", f"{seconds:.1f} s")
    console = Console()
    console.print(table)
    for difference in story.differences[:DIFFERENCES_SHOWN]:
        console.print(f"[red]DIFFERENT[/red] {difference}")
    if not story.differences:
        console.print("[green]Nothing lost, nothing twice, order kept.[/green]")


def main() -> int:
    """The exit code."""
    story = Story()
    started = time.monotonic()
    lines = standard_library(LINES_MAX)
    with tempfile.TemporaryDirectory(prefix="minibroker-demo-") as directory:
        trio.run(run, story, lines, Path(directory) / "data")
    if story.line_count < LINES_MIN:
        story.differences.append(f"{story.line_count} lines are there, {LINES_MIN} are wanted")
    show(story, time.monotonic() - started)
    return 1 if story.differences else 0


if __name__ == "__main__":
    sys.exit(main())
