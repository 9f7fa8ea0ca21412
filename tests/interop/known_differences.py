"""Differences of Apache Kafka and minibroker, and the rows of docs/kafka.md that explain them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.protocol.kafka.schema import Version

PAGE: Final = Path(__file__).parents[2] / "docs" / "kafka.md"
BEGIN: Final = "<!-- what differs from Apache Kafka: begin -->\n"
END: Final = "<!-- what differs from Apache Kafka: end -->\n"
NOTHING: Final = "-"  # stands for a field or a value that is not there
CHARS_MAX: Final = 60  # of a value that is shown


class Difference(NamedTuple):
    """A field of which the brokers have said different things; `case` is the name of a conversation
    about the api, or of a client."""

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


def judge(found: Sequence[Difference], known: Sequence[Row], *, is_whole: bool = True) -> list[str]:
    """Return what is wrong: differences without a row, and, if all was compared, rows without a
    difference."""
    wrong = [str(one) for one in found if not any(row.covers(one) for row in known)]
    if is_whole:
        unused = [row for row in known if not any(map(row.covers, found))]
        wrong += [f"no difference any more: {row}" for row in unused]
    return wrong


def shown(value: object) -> str:
    """Return a value as the table has it."""
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "some" if value else "empty"
    if value == "":
        return "an empty text"
    return str(value).replace("|", "/")[:CHARS_MAX]
