"""How long a log alone takes to open after `kill -9`: no process start, no store, no network.

    python -m tests.bench.opening --segment FILE

opens the log whose directory holds that segment, as a broker does that knows of no flush and runs
on the same boot of the machine, and prints the seconds as JSON.
"""

import argparse
import json
import time
from pathlib import Path

from minibroker.broker.config import load
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import LastKnownState, LogLocation
from minibroker.protocol.types import TopicPartition


def seconds_to_open(directory: Path) -> float:
    """Open it, abandon it."""
    topic, _, partition = directory.name.rpartition("-")
    location = LogLocation(RealFiles(), directory, TopicPartition(topic, int(partition)))
    opening = LastKnownState(is_clean=False, recovery_point=0, same_boot=True)
    limits = load().config.for_topic().limits()
    start = time.perf_counter()
    log = Log.open(location, limits, opening, now_ms=int(time.time() * 1000))
    duration = time.perf_counter() - start
    assert log.log_end > 0
    log.abandon()
    return duration


def main() -> None:
    """Open the log of the given segment and print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segment", type=Path, required=True)
    directory = parser.parse_args().segment.parent
    print(json.dumps({"seconds": seconds_to_open(directory)}))


if __name__ == "__main__":
    main()
