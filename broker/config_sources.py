"""Where the properties of a broker are written: files of two kinds, and the environment.

Each becomes a mapping from the property's name to its text; what the text may be is for the table
in `broker.properties` to say.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from minibroker.broker.property import ConfigError

ENVIRONMENT_PREFIX: Final = "KAFKA_"
CLUSTER_ID_VARIABLE: Final = "CLUSTER_ID"  # as Kafka's container image has it: without the prefix
CLUSTER_ID: Final = "cluster.id"


def parse_properties(text: str) -> dict[str, str]:
    """The `name=value` lines of a properties file; `#` and `!` begin a comment line.

    Raises `ConfigError` naming all lines that are not of this form.
    """
    given: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            problems.append(f"line {number} of the configuration is not name=value: {stripped!r}")
        given[name.strip()] = value.strip()
    if problems:
        raise ConfigError(*problems)
    return given


def parse_toml(text: str) -> dict[str, str]:
    """The values of a TOML file: tables within tables are names with dots, arrays have commas.

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
        raise ConfigError(*problems)
    return given


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: object) -> str | None:
    """A value of TOML as a properties file has it; None where it has nothing of this kind."""
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
    """The variables with our prefix, and the cluster's id, by property name.

    An empty one is as if it were not there: compose files leave variables out like that.
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
    """The environment variable of a property: `log.dirs` is KAFKA_LOG_DIRS."""
    spelled = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return ENVIRONMENT_PREFIX + spelled.upper()


def _property_name(variable: str) -> str:
    # "___" stands for "-", "__" for "_", "_" for "."; the longest is read first.
    signs = {"___": "-", "__": "_", "_": "."}
    return re.sub("_{1,3}", lambda found: signs[found.group()], variable.lower())
