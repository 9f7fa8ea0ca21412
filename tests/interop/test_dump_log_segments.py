"""Apache Kafka's DumpLogSegments reads what compaction has left, and says what `log dump` says.

`make soak` runs it: it needs Java and Maven.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin
from tests.interop.clients import CODECS, Confluent, Record, Settings
from tests.interop.foreign_process import NEEDS_JAVA
from tests.support.apache_kafka import java
from tests.support.processes import run_cli, running_broker

TOPIC: Final = "table"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "8000",
    "retention.ms": "-1",
}
CLEANED_S_MAX: Final = 60.0
DUMP_S_MAX: Final = 120.0
HORIZON: Final = re.compile(r"deleteHorizonMs: OptionalLong(?:\.empty ?|\[(\d+)\])")
KINDS: Final = {"whole", "thinned", "empty", "filler"}


def write_tables(bootstrap: str) -> None:
    """Write the same keys with each compression, by another producer each. It writes a batch with a
    key of its own, then deletes it; of its last batch nothing will stay."""
    now_ms = int(time.time() * 1000)
    for codec in CODECS:
        mine = b"only with " + codec.encode()
        records = [Record(b"first of " + mine, b"key-%d" % n, (), now_ms) for n in range(20)]
        batches = [
            [*records, Record(mine, mine, (("codec", codec.encode()),), now_ms)],
            records,
            [Record(None, mine + b" for a while", (), now_ms)],
            records,
        ]
        with_codec = Settings(is_idempotent=True, compression=codec)
        for batch in batches:
            Confluent().write(bootstrap, TOPIC, 0, batch, with_codec)
    padding = [Record(b"x" * 900, b"padding", (), now_ms)]
    for _ in range(10):  # the active segment is not compacted
        Confluent().write(bootstrap, TOPIC, 0, padding, Settings())


def dumped(directory: Path) -> list[str]:
    """Return the lines of `minibroker log dump` about the segments of a log."""
    done = run_cli("log", "dump", "--deep-iteration", *map(str, segments(directory)))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def shows_all(text: str) -> bool:
    """Whether compaction has left batches of each kind, and thinned ones of each compression."""
    codecs = re.findall(r"compacted: thinned .* compresscodec: (\w+)", text)
    return set(re.findall(r"compacted: (\w+)", text)) == KINDS and set(codecs) == set(CODECS)


def segments(directory: Path) -> list[Path]:
    """The files of its segments, in order."""
    return sorted(directory.glob("*.log"))


def dumped_by_kafka(files: list[Path]) -> tuple[list[str], str]:
    """Return the lines of Kafka's tool, and its complaints."""
    names = ",".join(map(str, files))
    options = ("--deep-iteration", "--print-data-log", "--files", names)
    done = subprocess.run(
        java("kafka.tools.DumpLogSegments", *options),
        capture_output=True,
        text=True,
        timeout=DUMP_S_MAX,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def contents(lines: list[str]) -> Iterator[str]:
    """Yield the lines about batches and records, without what only one of the tools says."""
    for line in lines:
        if line.startswith(("baseOffset:", "| offset:")):
            line = HORIZON.sub(lambda at: f"deleteHorizonMs: {at[1]}" if at[1] else "", line)
            yield re.sub(r"compacted: \w+ ", "", line)


@pytest.mark.soak
@NEEDS_JAVA
def test_kafkas_tool_reads_compacted_segments(kafka_libraries: None, tmp_path: Path) -> None:
    """Fillers, empty batches, thinned ones in each compression, tombstones with their horizons;
    and the indexes fit."""
    with running_broker(tmp_path / "data", "--set", "log.cleaner.backoff.ms=100") as broker:
        with Admin(broker.address) as admin:
            admin.create_topics(NewTopic(TOPIC, 1, configs=CONFIGS))
        write_tables(broker.address)
        directory = tmp_path / "data" / f"{TOPIC}-0"
        deadline = time.monotonic() + CLEANED_S_MAX
        while not shows_all("\n".join(dumped(directory))):
            assert time.monotonic() < deadline, "\n".join(dumped(directory))
            time.sleep(0.5)
        assert broker.stop() == 0
    ours = [*contents(dumped(directory))]
    files = segments(directory)
    theirs, complaints = dumped_by_kafka(files)
    assert [*contents(theirs)] == ours
    # The offsets of records have gaps, as in any compacted log.
    gaps = r"Non-consecutive offsets in .*|  \d+ is followed by \d+|"
    assert not [line for line in complaints.splitlines() if not re.fullmatch(gaps, line)]
    indexes = [
        path for path in sorted(directory.iterdir()) if path.suffix in (".index", ".timeindex")
    ]
    assert indexes
    _, complaints = dumped_by_kafka(indexes)
    assert not complaints
