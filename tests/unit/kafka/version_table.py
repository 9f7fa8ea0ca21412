"""The table of docs/kafka.md: `python -m tests.unit.kafka.version_table` writes it anew."""

from pathlib import Path

from minibroker.protocol.kafka.adapters.table import ADAPTERS

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"
BEGIN = "<!-- the table of apis: begin -->\n"
END = "<!-- the table of apis: end -->"


def made() -> str:
    """The rows, by key."""
    rows = ["| key | api | versions |", "|---|---|---|"]
    for key, adapter in sorted(ADAPTERS.items()):
        rows.append(f"| {key} | {adapter.api.name} | {adapter.api.first} to {adapter.api.last} |")
    return "\n".join(rows) + "\n"


def parts() -> tuple[str, str, str]:
    """The page before, in and behind its table."""
    before, rest = PAGE.read_text().split(BEGIN)
    table, behind = rest.split(END)
    return before + BEGIN, table, END + behind


if __name__ == "__main__":
    before, _, behind = parts()
    PAGE.write_text(before + made() + behind)
