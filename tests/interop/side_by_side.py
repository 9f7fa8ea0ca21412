"""What Apache Kafka and minibroker answer to the same conversations and to the same clients.

    python -m tests.interop.side_by_side                   # all, against docs/kafka.md
    python -m tests.interop.side_by_side --only Fetch      # the conversations about an api
    python -m tests.interop.side_by_side --clients         # the clients
    python -m tests.interop.side_by_side --show            # each difference, also a known one

Each conversation is held in the lowest, a middle and the highest version that both serve. A
difference is a field of an answer with another value. Of clients, which do not send the same
requests twice, the values of each field in all answers are compared (`client_answers.py`). The
differences that stay are the rows of a table in docs/kafka.md. The command fails for a difference
without a row, and for a row without a difference.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.schema import Version
from tests.interop.client_programs import PROGRAMS, compare_clients, install_programs
from tests.interop.conversations import admin, broken, groups, records, transactions
from tests.interop.conversations.case import Case
from tests.interop.conversations.talk import Talk
from tests.interop.known_differences import NOTHING, Difference, judge, rows, shown
from tests.interop.record import Recorder
from tests.support.apache_kafka import CannotRun, fetch, running_kafka
from tests.support.processes import running_broker

SETTINGS: Final = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
READY_S_MAX: Final = 60.0
READY_VERSIONS: Final = {
    apis.FIND_COORDINATOR.key: 6,
    apis.OFFSET_FETCH.key: 9,
    apis.INIT_PRODUCER_ID.key: 5,
}
NO_TRANSACTION: Final = {"transactional_id": None}
Ranges = Mapping[int, tuple[Version, Version]]


def differences(kafka: Any, ours: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the fields that differ, each with both values."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in kafka | ours:
            below = f"{path}.{name}" if path else str(name)
            yield from differences(kafka.get(name, NOTHING), ours.get(name, NOTHING), below)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for number, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(one, other, f"{path}.{number}" if path else str(number))
    elif kafka != ours:
        yield path or "all", shown(kafka), shown(ours)


def ranges(address: str) -> Ranges:
    """Return the versions of each api that a broker announces."""
    talk = Talk(address, "", {})
    told = talk.ask(apis.API_VERSIONS, 0, {})
    talk.close()
    return {one.api_key: (one.min_version, one.max_version) for one in told.api_keys}


def common(kafka: Ranges, ours: Ranges) -> dict[int, tuple[Version, Version]]:
    """Return the versions of each api of ours that both serve."""
    return {
        key: (max(low, kafka[key][0]), min(high, kafka[key][1]))
        for key, (low, high) in ours.items()
        if key in kafka
    }


def versions_of(case: Case, shared: Mapping[int, tuple[Version, Version]]) -> list[Version]:
    """Return the lowest, a middle and the highest version of a case."""
    if case.api.key not in shared:
        return []
    low, high = shared[case.api.key]
    low = max(low, case.since)
    return sorted({low, (low + high) // 2, high}) if low <= high else []


def all_cases() -> Iterator[Case]:
    """Yield the whole table."""
    for each in (records, groups, admin, transactions, broken):
        yield from each.cases()


def wait_until_ready(address: str, newest: Mapping[int, Version]) -> None:
    """Return once the broker coordinates groups, and gives ids to producers."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        talk = Talk(address, "ready", newest)
        told = talk.prepare(apis.FIND_COORDINATOR, {"coordinator_keys": ["g"]}).coordinators[0]
        if not told.error_code:
            asked = {"groups": [{"group_id": "g", "topics": None}]}
            is_serving = not talk.prepare(apis.OFFSET_FETCH, asked).groups[0].error_code
            if is_serving and not talk.prepare(apis.INIT_PRODUCER_ID, NO_TRANSACTION).error_code:
                talk.close()
                return
        talk.close()
        assert time.monotonic() < deadline, f"{address} does not coordinate groups: {told}"
        time.sleep(0.1)


def hold(address: str, name: str, case: Case, version: Version, newest: Any) -> list[Any]:
    """Hold a conversation, and return what the broker has said."""
    talk = Talk(address, name, newest)
    try:
        case.script(talk, version)
    except (AssertionError, AttributeError, KeyError, TimeoutError, TypeError, ValueError) as error:
        talk.said.append(f"the script ends: {type(error).__name__}: {error}"[:300])
    finally:
        talk.close()
    return talk.said


def compare(
    kafka: str, ours: str, cases: Sequence[Case], only: str = ""
) -> tuple[int, list[Difference]]:
    """Hold the conversations with both brokers. Return their number, and what differs."""
    theirs, served = ranges(kafka), ranges(ours)
    shared = common(theirs, served)
    newest = {key: high for key, (_, high) in shared.items()}
    for address in (kafka, ours):
        wait_until_ready(address, newest)
    found: list[Difference] = []
    count = 0
    for case in cases:
        if only and only != case.api.name:
            continue
        for version in versions_of(case, shared):
            count += 1
            name = f"{case.api.name}-{count}"
            said = [hold(each, name, case, version, newest) for each in (kafka, ours)]
            found += [
                Difference(case.api.name, version, case.name, *each) for each in differences(*said)
            ]
    return count, found


@contextmanager
def both_brokers() -> Iterator[tuple[Recorder, Recorder]]:
    """Start Apache Kafka and minibroker, each behind a proxy, which clients are told to use. Raises
    `CannotRun`."""
    fetch()
    with ExitStack() as stack:
        theirs, mine = (stack.enter_context(closing(Recorder())) for _ in range(2))
        data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
        settings = {**SETTINGS, "advertised.listeners": f"PLAINTEXT://{mine.address}"}
        options = [
            part for name, value in settings.items() for part in ("--set", f"{name}={value}")
        ]
        stack.enter_context(running_kafka(1, SETTINGS, advertised=theirs.start))
        mine.start(stack.enter_context(running_broker(data, *options)).address)
        yield theirs, mine


def run_conversations(only: str = "") -> tuple[int, list[Difference]]:
    """Start both brokers and hold the conversations. Raises `CannotRun`."""
    with both_brokers() as (kafka, ours):
        return compare(kafka.broker, ours.broker, [*all_cases()], only)


def run_clients() -> tuple[int, list[Difference]]:
    """Start both brokers and run the clients. Raises `CannotRun`."""
    with tempfile.TemporaryDirectory() as folder, both_brokers() as (kafka, ours):
        for recorder in (kafka, ours):
            wait_until_ready(recorder.broker, READY_VERSIONS)
        programs = {**PROGRAMS, **install_programs(Path(folder))}
        return compare_clients(kafka, ours, programs)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="an api: hold the conversations about it")
    parser.add_argument("--clients", action="store_true", help="only run the clients")
    parser.add_argument("--show", action="store_true", help="print known differences, too")
    options = parser.parse_args()
    try:
        talks, found = (0, []) if options.clients else run_conversations(options.only)
        uses, more = (0, []) if options.only else run_clients()
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    found += more
    if options.show:
        print("\n".join(map(str, found)))
    wrong = judge(found, rows(), is_whole=not (options.only or options.clients))
    print("\n".join(wrong))
    counts = f"{talks} conversations, {uses} versions of apis that clients use"
    print(f"{counts}: {len(found)} differences, {len(wrong)} of them not explained")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
