"""The programs in which real clients do everything once, and what two brokers answer to each."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.interop.client_answers import PREFIX, Answers, differences, of_recording, versions
from tests.interop.known_differences import Difference
from tests.interop.record import Recorder, run
from tests.support.apache_kafka import java

FOLDER: Final = Path(__file__).parent / "programs"
# What is run with a broker's address and the name that topics and groups begin with.
PROGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "confluent-kafka": (sys.executable, str(FOLDER / "everything_confluent.py")),
    "kafka-python": (sys.executable, str(FOLDER / "everything_kafka_python.py")),
    "aiokafka": (sys.executable, str(FOLDER / "everything_aiokafka.py")),
    "Java": java(str(FOLDER / "Everything.java")),
}


def case_of(client: str) -> str:
    """Return what the table calls a client."""
    return f"the client {client}"


def lines_of(recorder: Recorder, client: str) -> list[str]:
    """Run a client's program at a recorded broker, and return its recording."""
    before = len(recorder.lines)
    run([*PROGRAMS[client], recorder.address, PREFIX + client])
    return recorder.lines[before:]


def compare_clients(kafka: Recorder, ours: Recorder) -> tuple[int, list[Difference]]:
    """Run all programs at both brokers. Return how many versions of apis the clients use, and what
    differs."""
    count = 0
    found: list[Difference] = []
    for client in PROGRAMS:
        theirs, mine = (
            of_recording(lines_of(recorder, client), PREFIX + client) for recorder in (kafka, ours)
        )
        count += len(theirs | mine)
        found += compare_answers(client, theirs, mine)
    return count, found


def compare_answers(client: str, kafka: Answers, ours: Answers) -> Iterator[Difference]:
    """Yield the differences of what a client was answered."""
    for api, version in sorted(kafka | ours):
        used = versions(kafka, api), versions(ours, api)
        if used[0] != used[1]:
            yield Difference(api, version, case_of(client), "versions", *used)
        for field in differences(kafka.get((api, version), {}), ours.get((api, version), {})):
            yield Difference(api, version, case_of(client), *field)
