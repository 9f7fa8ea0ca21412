"""The broker's settings from the command line, for `start` and the `config` commands."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from minibroker.cli.kafka_properties import foreign_properties
from minibroker.cli.terminal import USAGE, Failure, note, pairs

if TYPE_CHECKING:
    from minibroker.broker.config import Loaded

TOML: Final = ".toml"
FILE_BYTES_MAX: Final = 1 << 20
FILES: Final = ("server.properties", f"server{TOML}")  # the names that are tried in a directory

# How `load` begins its one warning, about what has no effect in the environment.
LEFT_OUT: Final = "without meaning here, and left out: "

# What an acknowledgement means with each value of `flush`, for users.
ACKNOWLEDGED = {
    "never": (
        "flush=never: an acknowledged record is in the system's page cache. It survives the end"
        " of the broker, kill -9 too, but not a power cut; the system writes it when it likes."
    ),
    "interval": (
        "flush=interval: an acknowledged record is in the system's page cache and on the disk"
        " within {flush_ms} ms. It survives the end of the broker, kill -9 too; a power cut may"
        " take what was acknowledged in the last {flush_ms} ms."
    ),
    "always": (
        "flush=always: an acknowledged record is on the disk. It survives kill -9 and a power cut."
    ),
}
COPIES = " With acks=all that holds on every in-sync replica, which are at least {needed} of {all}."

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Properties or TOML file, or the directory of server.properties or server.toml.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "--override",
        metavar="NAME=VALUE",
        help="Property, over the file and the environment; may be repeated.",
        show_default=False,
    ),
]


def load_settings(file: Path | None, settings: dict[str, str]) -> "Loaded":
    """Join flags, environment, file and defaults, and print the warnings.

    A bad setting is a usage error.
    """
    from minibroker.broker.config import ConfigError

    try:
        loaded = joined_settings(file, settings)
    except ConfigError as error:
        more = " names all problems" if len(error.problems) > 1 else ""
        look = f"`minibroker config check`{more}" if more else "`minibroker config show` lists all"
        raise Failure(f"{error}; {look}", USAGE) from None
    for warning in loaded.warnings:
        note(f"WARNING: {warning}")
    return loaded


def joined_settings(file: Path | None, settings: dict[str, str]) -> "Loaded":
    """Join flags, environment, file and defaults. Names that only Kafka has are left out of the
    file, with a warning. Raises `ConfigError`."""
    from minibroker.broker.config import load

    given = read_file(file)
    foreign = foreign_properties(given)
    known = {name: value for name, value in given.items() if name not in foreign}
    loaded = load(known, os.environ, settings)
    if not foreign:
        return loaded
    others = [warning.removeprefix(LEFT_OUT) for warning in loaded.warnings]
    return replace(loaded, warnings=(LEFT_OUT + ", ".join([*foreign, *others]),))


def read_file(path: Path | None) -> Mapping[str, str]:
    """Return the properties in a file, or in the one in a directory; none without a path.

    Raises `ConfigError` for bad contents, a usage `Failure` if the file cannot be read.
    """
    from minibroker.broker.config_sources import parse_properties, parse_toml

    file = _file_in(path) if path is not None and path.is_dir() else path
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise Failure(f"the configuration file {file} is larger than 1 MiB", USAGE)
        text = data.decode("utf-8-sig")  # some editors begin a file with a BOM
    except OSError as error:
        reason = error.strerror or error
        raise Failure(f"cannot read the configuration file {file}: {reason}", USAGE) from None
    except UnicodeDecodeError:
        raise Failure(f"the configuration file {file} is not UTF-8", USAGE) from None
    return parse_toml(text) if file.suffix == TOML else parse_properties(text)


def _file_in(directory: Path) -> Path | None:
    found = [directory / name for name in FILES if (directory / name).exists()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise Failure(f"{directory} has {names}; which one holds? Take one away", USAGE)
    return found[0] if found else None


def given_settings(settings: list[str] | None) -> dict[str, str]:
    """Return the properties given with `--set`."""
    return pairs(settings or [], "--set")


def acknowledging_replicas(needed: int, replicas: int) -> str:
    """Return the sentence for a replicated topic, "" for one that is not replicated."""
    return COPIES.format(needed=needed, all=replicas) if replicas > 1 else ""


def acknowledgement_of(flush: str, flush_ms: int) -> str:
    """Return the sentence for a value of `flush`; `flush_ms` is the interval in milliseconds."""
    return ACKNOWLEDGED[flush].format(flush_ms=flush_ms)
