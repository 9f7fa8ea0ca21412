"""Programs of real clients, and what two brokers answer to them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.client_answers import PREFIX, Answers, differences, of_recording, versions
from tests.interop.installed_programs import GO, NODE, go_program, node_program
from tests.interop.known_differences import Difference
from tests.interop.record import Recorder, run
from tests.support.apache_kafka import java

FOLDER: Final = Path(__file__).parent / "programs"
TOPIC_S_MAX: Final = 30.0
# The programs that do everything once. Each gets a broker's address, and the name that its topics
# and groups begin with.
PROGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "confluent-kafka": (sys.executable, str(FOLDER / "everything_confluent.py")),
    "kafka-python": (sys.executable, str(FOLDER / "everything_kafka_python.py")),
    "aiokafka": (sys.executable, str(FOLDER / "everything_aiokafka.py")),
    "Java": java(str(FOLDER / "Everything.java")),
}


def install_programs(folder: Path) -> dict[str, Sequence[str]]:
    """Install the programs of `installed_programs.py` in a folder, as far as this machine runs
    their languages. Return their commands."""
    folders = {name: folder / name for name in ("kafkajs", "platformatic", "sarama", "kafka-go")}
    for each in folders.values():
        each.mkdir()
    found: dict[str, Sequence[str]] = {}
    if NODE:
        for name in ("kafkajs", "platformatic"):
            found[name] = node_program(name, folders[name])
    if GO:
        found["sarama"] = [*go_program("sarama", folders["sarama"]), "3.9.0"]
        found["kafka-go"] = go_program("kafka-go", folders["kafka-go"])
    return found


def case_of(client: str) -> str:
    """Return what the table calls a client."""
    return f"the client {client}"


def make_topic(broker: str, name: str) -> None:
    """Make a topic for a program that makes none itself."""
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TOPIC_S_MAX)


def lines_of(recorder: Recorder, client: str, command: Sequence[str]) -> list[str]:
    """Run a client's program at a recorded broker, and return its recording."""
    if client not in PROGRAMS:
        make_topic(recorder.broker, PREFIX + client)
    before = len(recorder.lines)
    run([*command, recorder.address, PREFIX + client])
    return recorder.lines[before:]


def compare_clients(
    kafka: Recorder, ours: Recorder, programs: Mapping[str, Sequence[str]]
) -> tuple[int, list[Difference]]:
    """Run programs at both brokers. Return how many versions of apis they use, and what differs."""
    count = 0
    found: list[Difference] = []
    for client, command in programs.items():
        theirs, mine = (
            of_recording(lines_of(recorder, client, command), PREFIX + client)
            for recorder in (kafka, ours)
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
