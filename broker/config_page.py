"""The reference page of all properties, made from their table (docs/configuration.md)."""

from dataclasses import fields
from typing import Final

from minibroker.broker.config_property import Kind, Property, spelled
from minibroker.broker.properties import SUBJECTS

TABLE_HEAD: Final = (
    "| property | at a topic | type | default | allowed | |\n|---|---|---|---|---|---|\n"
)
PAGE_HEAD: Final = """\
# Configuration

Every property that a broker reads. This page is made from the table in `broker/properties`;
a test compares the two.

## Where values come from

A value comes from the first of these that names the property:

1. a flag of `minibroker start`: `--set name=value`, or one of its own such as `--data-dir`;
2. the environment: `log.dirs` is `KAFKA_LOG_DIRS` (a dot becomes `_`, an underscore `__`, a dash
   `___`), and `CLUSTER_ID` is `cluster.id`. An empty variable is as if it were not there;
3. the file given with `--config`, or, where that is a directory, `server.properties` or
   `server.toml` in it (not both; with neither, no file);
4. the default.

A file whose name ends in `.toml` is TOML, any other has lines of `name=value`, and lines that begin
with `#`. In TOML, tables within tables are names with dots, and an array is a list with commas. A
name that begins with another one's stands in quotes, for it cannot be a value and a table:

    listeners = ["INSIDE://:19092", "OUTSIDE://:9092"]
    flush = "interval"
    "flush.ms" = 500
    [log.retention]
    hours = 48

A name that does not exist is an error in a flag or a file, with the nearest that does. In the
environment it is one warning for all of them, so that a compose file written for Kafka comes up.
In a file such a warning names the properties that only Kafka has: a stock `server.properties`
starts a broker. Those that protect something (`ssl.`, `authorizer.class.name`) stay errors.

`minibroker config check FILE` says all that is wrong with a file, the environment and its `--set`
together, one problem a line, with exit code 2, and starts nothing. Of many problems of one kind it
prints the first hundred and the number of the others. A file may have 1 MiB.

`minibroker config show` prints what is in force and where it came from. No value holds a password,
and a URL that does is refused without showing it: `metadata.store.password.file` names a file with
the password.

## How to read the tables

A property with a name in the second column is the default of that topic property, which
`minibroker topic create --config name=value` and `minibroker topic alter` set.
A name after "or" counts in the unit that it ends in.
"""


def reference_page() -> str:
    """docs/configuration.md."""
    sections = [PAGE_HEAD]
    for subject in SUBJECTS:
        title, _, rest = (subject.__doc__ or "").partition(":")
        rows = "".join(_row(field.metadata["property"]) for field in fields(subject))
        sections.append(f"## {title}\n\n{rest.strip().capitalize()}\n\n{TABLE_HEAD}{rows}")
    return "\n".join(sections)


def _row(row: Property) -> str:
    names = [f"`{row.name}`", *(f"or `{name}`" for name, _ in row.aliases)]
    default = row.format(row.default) or "none"
    if row.kind is Kind.INT and row.default is not None:
        default = f"{spelled(int(default))} {row.unit}".strip()
    topic = f"`{row.topic_name}`" if row.topic_name else ""
    cells = ("<br>".join(names), topic, str(row.kind), default, row.range, row.sentence)
    return f"| {' | '.join(cells)} |\n"
