"""The tables of docs/kafka.md that are made from code: `python -m tests.unit.kafka.version_table`
writes them anew."""

from pathlib import Path
from typing import Final

from minibroker.broker.config_property import Property
from minibroker.broker.properties import TOPIC_PROPERTIES
from minibroker.broker.properties.kept import KEPT_PROPERTIES, REFUSED_PROPERTIES
from minibroker.protocol.kafka.adapters.table import ADAPTERS

PAGE: Final = Path(__file__).parents[3] / "docs" / "kafka.md"
# The properties of which Kafka takes more values, or that Kafka does not have.
OURS: Final = {"compression.type", "flush", "flush.ms"}


def apis() -> str:
    """The rows of the served apis, by key."""
    rows = ["| key | api | versions |", "|---|---|---|"]
    for key, adapter in sorted(ADAPTERS.items()):
        rows.append(f"| {key} | {adapter.api.name} | {adapter.api.first} to {adapter.api.last} |")
    return "\n".join(rows) + "\n"


def topic_properties() -> str:
    """The rows of all topic properties, by name."""
    rows = {name: ("any", f"refused: {why}") for name, why in REFUSED_PROPERTIES.items()}
    for name, row in TOPIC_PROPERTIES.items():
        effect = _with_advice(row) if name in OURS else "as in Kafka"
        rows[name] = (row.range, effect)
    for name, row in KEPT_PROPERTIES.items():
        rows[name] = (row.range, f"kept, without effect. {_with_advice(row)}")
    lines = ["| property | values | what it does |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {values} | {effect} |" for name, (values, effect) in sorted(rows.items())
    ]
    return "\n".join(lines) + "\n"


def _with_advice(row: Property) -> str:
    return f"{row.sentence} Other values are refused: {row.advice}" if row.advice else row.sentence


TABLES: Final = {"the table of apis": apis, "the table of topic properties": topic_properties}


def parts(table: str) -> tuple[str, str, str]:
    """The page before, in and behind a table."""
    begin, end = f"<!-- {table}: begin -->\n", f"<!-- {table}: end -->"
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    inside, behind = rest.split(end)
    return before + begin, inside, end + behind


if __name__ == "__main__":
    for name, made in TABLES.items():
        before, _, behind = parts(name)
        PAGE.write_text(before + made() + behind, encoding="utf-8")
