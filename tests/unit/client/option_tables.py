"""What is made from the table of options (client/options.py): the types of option_types.py, and the
tables of docs/producer.md, docs/consumer.md and docs/admin.md.

`python -m tests.unit.client.option_tables` writes them again.
"""

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

from minibroker.client.options import (
    ACKS,
    INT_MAX,
    LONG_MAX,
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)

ROOT = Path(__file__).resolve().parents[3]
TYPES = ROOT / "client" / "option_types.py"
KINDS: Final[dict[str, type[ClientOptions]]] = {
    "Producer": ProducerOptions,
    "Consumer": ConsumerOptions,
    "Admin": AdminOptions,
}
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"
HEAD = '''"""The options as editors and type checkers know them: made from the table of options.py.

`ProducerKeywords` and the like are the keywords that a client takes. `ProducerConfig` and the
like are for a mapping of dotted names: annotate one with it and a wrong name is an error there,

    config: ProducerConfig = {"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 5}

while any other mapping, as one that is read from a file, is checked when the client is made. Do not
edit: change options.py and say `python -m tests.unit.client.option_tables`.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict
'''


def type_of(each: "Field[Any]") -> str:
    """The values that a keyword takes, as an annotation."""
    default, choices = each.default, each.metadata["choices"]
    if each.name == "bootstrap_servers" or isinstance(default, tuple):
        return "str | Sequence[str]"
    if each.name == "acks":
        return f"Literal[{', '.join([*map(repr, choices), *map(str, sorted(set(ACKS.values())))])}]"
    if choices:
        return f"Literal[{', '.join(map(repr, choices))}]"
    return type(default).__name__


def types_text() -> str:
    """All of option_types.py."""
    parts = [HEAD]
    for client, kind in KINDS.items():
        parts.append(f"\n\nclass {client}Keywords(TypedDict, total=False):\n")
        parts.append(f'    """Keywords of `{client}`, beside `bootstrap_servers`."""\n\n')
        parts += [
            f"    {each.name}: {type_of(each)}\n"
            for each in fields(kind)
            if each.name != "bootstrap_servers"
        ]
        parts.append(f'\n\n{client}Config = TypedDict(\n    "{client}Config",\n    {{\n')
        for each in fields(kind):
            of_text = type_of(each) + (" | str" if type(each.default) in (int, bool) else "")
            if each.metadata["choices"] and type(each.default) is int:
                of_text = type_of(each)
            parts.append(f'        "{each.name.replace("_", ".")}": {of_text},\n')
        parts.append("    },\n    total=False,\n)\n")
    return "".join(parts).replace("'", '"')


def range_of(each: "Field[Any]") -> str:
    """What an option takes, as a column of the page."""
    default, choices = each.default, each.metadata["choices"]
    if each.name == "bootstrap_servers":
        return "HOST:PORT, several"
    if choices:
        return ", ".join(choices) + (", several" if isinstance(default, tuple) else "")
    if isinstance(default, bool):
        return "bool"
    if isinstance(default, str):
        return "text"
    low, high = each.metadata["low"], each.metadata["high"]
    return (
        f"int, {low} to {({INT_MAX: '2^31-1', LONG_MAX: '2^63-1'}).get(high, high)}{unit_of(each)}"
    )


def unit_of(each: "Field[Any]") -> str:
    """The unit of a number."""
    if each.name.endswith("_ms"):
        return " ms"
    is_size = re.search(r"bytes|size|memory", each.name) is not None
    return " bytes" if is_size else ""


def default_of(each: "Field[Any]") -> str:
    """The default, as a column of the page."""
    default = each.default
    if each.name == "bootstrap_servers":
        return "must be given"
    if each.name == "acks":
        return "all"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ", ".join(default)
    if default == INT_MAX:
        return "2^31-1"
    return "none" if default == "" else str(default)


def table_of(kind: type[ClientOptions]) -> str:
    """The options of a client as a table: its own first, then those of all clients."""
    shared = {each.name for each in fields(ClientOptions)}
    ordered = sorted(fields(kind), key=lambda each: each.name in shared)
    rows = [
        f"| `{each.name}` | {range_of(each)} | {default_of(each)} | {each.metadata['text']} |\n"
        for each in ordered
    ]
    return "| option | type | default | what it does |\n|---|---|---|---|\n" + "".join(rows)


def pages() -> Iterator[tuple[Path, str]]:
    """Every file that is made, and what it has to be."""
    yield TYPES, types_text()
    for client, kind in KINDS.items():
        page = ROOT / "docs" / f"{client.lower()}.md"
        before, rest = page.read_text("utf-8").split(BEGIN)
        yield page, before + BEGIN + table_of(kind) + END + rest.split(END)[1]


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
