"""The versions of Kafka's apis that clients use, as the table in docs/kafka.md has them.

    python -m tests.interop.versions_seen      # runs the page's recipes, and rewrites the table

The first clients run the programs of the page's section "Recipes" against a broker, and a proxy
writes down what they send; of the others the recordings in `recorded/` are read.
"""

import base64
import sys
from collections.abc import Iterable
from typing import Final

from minibroker.protocol.kafka.adapters.table import ADAPTERS
from tests.interop.compatibility import PAGE, version_of
from tests.interop.record import FOLDER, recorded

BEGIN: Final = "<!-- the versions that clients use: begin -->\n"
END: Final = "<!-- the versions that clients use: end -->\n"
RECIPES: Final = ("kafka-python", "aiokafka", "confluent-kafka", "kcat")
# Of the recordings, which say which versions of the clients they are of.
RECORDED: Final = {
    "kafkajs": "kafkajs 2.2.4",
    "platformatic": "`@platformatic/kafka` 1.35.0",
    "kafka-go": "kafka-go 0.4.51",
    "sarama-2.0": "sarama 1.45.2, `Version` 2.0.0",
    "sarama-2.8": "sarama 1.45.2, `Version` 2.8.0",
}
PROGRAM: Final = (
    "import sys; from tests.interop.test_recipes import recipe, run;"
    " print(run(recipe(sys.argv[1]), *sys.argv[2:]))"
)

Seen = dict[int, set[int]]


def seen(lines: Iterable[str]) -> Seen:
    """Return the versions of each api in the requests of a recording."""
    found: Seen = {}
    for line in lines:
        _, way, data = line.split()
        if way == ">":
            frame = base64.b64decode(data)
            key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
            found.setdefault(key, set()).add(version)
    return found


def of_recording(name: str) -> Seen:
    """Return what one of the recordings has."""
    return seen((FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines())


def of_recipe(name: str) -> Seen:
    """Run a recipe, and return what its client has sent."""
    lines, _ = recorded(f"seen-{name}", [sys.executable, "-c", PROGRAM, name])
    return seen(lines)


def table(columns: dict[str, Seen]) -> str:
    """Return the table: a row for each api that is used."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key, adapter in sorted(ADAPTERS.items()):
        cells = [", ".join(map(str, sorted(each.get(key, ())))) for each in columns.values()]
        if any(cells):
            lines.append(f"| {adapter.api.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def recordings() -> dict[str, Seen]:
    """Return the columns of the recordings."""
    return {title: of_recording(name) for name, title in RECORDED.items()}


if __name__ == "__main__":
    recipes = {f"{name} {version_of(name)}": of_recipe(name) for name in RECIPES}
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(written(), table(recipes | recordings())), encoding="utf-8")
