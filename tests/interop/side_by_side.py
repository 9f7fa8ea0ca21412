"""The same conversations with Apache Kafka and with minibroker, answer by answer.

    python -m tests.interop.side_by_side                   # all, against docs/kafka.md
    python -m tests.interop.side_by_side --only Fetch      # those about an api
    python -m tests.interop.side_by_side --show            # each difference, also a known one

Each conversation is held in the lowest, a middle and the highest version that both serve. A
difference is a field of an answer with another value. Those that stay are the rows of a table in
docs/kafka.md. The command fails for a difference without a row, and for a row without a difference.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations import admin, broken, groups, records, transactions
from tests.interop.conversations.case import Case
from tests.interop.conversations.talk import Talk
from tests.support.apache_kafka import CannotRun, fetch, running_kafka
from tests.support.processes import running_broker

PAGE: Final = Path(__file__).parents[2] / "docs" / "kafka.md"
BEGIN: Final = "<!-- what differs from Apache Kafka: begin -->\n"
END: Final = "<!-- what differs from Apache Kafka: end -->\n"
NOTHING: Final = "-"
CHARS_MAX: Final = 60  # of a value that is shown
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
READY_S_MAX: Final = 60.0
Ranges = Mapping[int, tuple[Version, Version]]


class Difference(NamedTuple):
    """A field of which the brokers have said different things; `api` and `case` name the
    conversation."""

    api: str
    version: Version
    case: str
    field: str
    kafka: str
    ours: str

    def __str__(self) -> str:
        said = f"Kafka {self.kafka}, minibroker {self.ours}"
        return f"{self.api} {self.version}, {self.case}: {self.field}: {said}"


class Row(NamedTuple):
    """A row of the table: patterns of a difference, and why it stays."""

    api: str
    case: str
    field: str
    kafka: str
    ours: str
    why: str

    def covers(self, one: Difference) -> bool:
        """Return whether the difference is one of this row's."""
        said = (one.api, one.case, one.field, one.kafka, one.ours)
        return all(fits(part, text) for part, text in zip(said, self[:5], strict=True))


def fits(value: str, patterns: str) -> bool:
    """Return whether a value is like one of the patterns."""
    return any(fnmatchcase(value, pattern.strip()) for pattern in patterns.split(";"))


def rows() -> list[Row]:
    """Return the rows of the table in docs/kafka.md."""
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    cells = [line.strip("|\n ").split(" | ") for line in text.splitlines()[2:]]
    return [Row(*[cell.strip().strip("`") for cell in each]) for each in cells]


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
        yield path or "all", _short(kafka), _short(ours)


def _short(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "some" if value else "empty"
    if value == "":
        return "an empty text"
    return str(value).replace("|", "/")[:CHARS_MAX]


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
    """Return once the broker coordinates groups."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        talk = Talk(address, "ready", newest)
        told = talk.prepare(apis.FIND_COORDINATOR, {"coordinator_keys": ["g"]}).coordinators[0]
        if not told.error_code:
            asked = {"groups": [{"group_id": "g", "topics": None}]}
            if not talk.prepare(apis.OFFSET_FETCH, asked).groups[0].error_code:
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


def judge(found: Sequence[Difference], known: Sequence[Row], *, is_whole: bool = True) -> list[str]:
    """Return what is wrong: differences without a row, and, if all conversations were held, rows
    without a difference."""
    wrong = [str(one) for one in found if not any(row.covers(one) for row in known)]
    if is_whole:
        unused = [row for row in known if not any(map(row.covers, found))]
        wrong += [f"no difference any more: {row}" for row in unused]
    return wrong


def run(only: str = "") -> tuple[int, list[Difference]]:
    """Start both brokers and compare them. Raises `CannotRun`."""
    fetch()
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
        options = [
            part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")
        ]
        kafka = stack.enter_context(running_kafka(1, SETTINGS))
        ours = stack.enter_context(running_broker(data, *options))
        return compare(kafka.addresses, ours.address, [*all_cases()], only)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="an api")
    parser.add_argument("--show", action="store_true", help="print known differences, too")
    options = parser.parse_args()
    try:
        count, found = run(options.only)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    if options.show:
        print("\n".join(map(str, found)))
    wrong = judge(found, rows(), is_whole=not options.only)
    print("\n".join(wrong))
    print(f"{count} conversations, {len(found)} differences, {len(wrong)} of them not explained")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
