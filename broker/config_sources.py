"""The sources of a broker's properties: properties files, TOML files, and the environment.

Each is read into a mapping from the property's name to its text. The table in `broker.properties`
checks the texts.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from minibroker.broker.config_property import ConfigError, bounded, shown

ENVIRONMENT_PREFIX: Final = "KAFKA_"
CLUSTER_ID_VARIABLE: Final = "CLUSTER_ID"  # as Kafka's container image has it: without the prefix
CLUSTER_ID: Final = "cluster.id"


def parse_properties(text: str) -> dict[str, str]:
    """Read the `name=value` lines of a properties file; `#` and `!` begin a comment line.

    Raises `ConfigError`, which names all lines that are not of this form.
    """
    given: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            text = shown(stripped)
            problems.append(f"line {number} of the configuration is not name=value: {text}")
        given[name.strip()] = value.strip()
    if problems:
        raise ConfigError(*bounded(problems, "lines are not name=value"))
    return given


def parse_toml(text: str) -> dict[str, str]:
    """Read a TOML file. Nested tables become names with dots, arrays become words with commas.

    Raises `ConfigError`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # `flush.ms = 5` is a table `flush`, which cannot be where `flush = "always"` is.
        hint = (
            "; a name that begins with another one's, as flush.ms with flush, stands in quotes:"
            ' "flush.ms" = 1000'
        )
        is_both = str(error).startswith("Cannot ")
        raise ConfigError(
            f"the configuration is no good TOML: {error}{hint if is_both else ''}"
        ) from None
    given: dict[str, str] = {}
    problems: list[str] = []
    for name, value in _flat(tables):
        text_of_value = _text(value)
        if text_of_value is None:
            kind = type(value).__name__
            problems.append(f"{name} cannot be a {kind}; it takes a text, a number or true/false")
        elif name in given:
            problems.append(f"{name} is given twice, in quotes and in a table")
        else:
            given[name] = text_of_value
    if problems:
        raise ConfigError(*bounded(problems, "values are of no type that a property takes"))
    return given


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: object) -> str | None:
    """Return a TOML value as a properties file has it; None for a type that has no such form."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float() | str():
            return str(value)
        case list():
            texts = [_text(item) for item in value if not isinstance(item, list)]
            known = [text for text in texts if text is not None]
            return ",".join(known) if len(known) == len(value) else None
        case _:
            return None


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the prefix `KAFKA_`, and the cluster's id, by property name.

    Empty variables are left out, because a compose file sets an empty one where it has no value.
    """
    given = {
        _property_name(name.removeprefix(ENVIRONMENT_PREFIX)): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and value.strip()
    }
    if environ.get(CLUSTER_ID_VARIABLE, "").strip():
        given.setdefault(CLUSTER_ID, environ[CLUSTER_ID_VARIABLE])
    return given


def environment_name(name: str) -> str:
    """Return the environment variable of a property: KAFKA_LOG_DIRS for `log.dirs`."""
    spelled = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return ENVIRONMENT_PREFIX + spelled.upper()


def _property_name(variable: str) -> str:
    # "___" stands for "-", "__" for "_", "_" for "."; the longest is read first.
    signs = {"___": "-", "__": "_", "_": "."}
    return re.sub("_{1,3}", lambda found: signs[found.group()], variable.lower())
