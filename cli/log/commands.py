"""`minibroker log dump`: the contents of files in a data directory, damaged ones too.

The text has the format of Kafka's dump tool, for people and scripts that know it; `--json` prints
one object per line. `dump` reads; this module prints. Damage makes the exit code 1, because a check
that fails must not look like one that passed.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from minibroker.cli.terminal import FAILED, note

app = typer.Typer(help="Read the files of a log.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Read the files of a log."""


@app.command()
def dump(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files, or whole partition directories."),
    ] = None,
    *,
    files: Annotated[
        str, typer.Option("--files", metavar="FILE,FILE", help="The same as FILE...")
    ] = "",
    data: Annotated[
        bool,
        typer.Option(
            "--print-data-log", "--deep-iteration", help="Records too, not only their batches."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Only what is wrong.")
    ] = False,
) -> None:
    """Print log segments, indexes, producer snapshots and checkpoints, and what is wrong in them.

    Ends with exit code 1 if anything is damaged.
    """
    from minibroker.cli.log.dump import DAMAGE, entries_of

    named = [*(paths or []), *(Path(name) for name in files.split(",") if name)]
    if not named:
        raise typer.BadParameter("name at least one file")
    damage_count = 0
    for path in _whole(named):
        entries = entries_of(path, data)
        if not as_json:
            print(f"Dumping {path}")
        for entry in entries:
            is_damage = entry["type"] == DAMAGE
            damage_count += is_damage
            if is_damage or not verify_only:
                line = json.dumps({"file": str(path), **entry}) if as_json else _line(entry)
                print(line)
    if damage_count:
        sys.stdout.flush()
        places = "place" if damage_count == 1 else "places"
        note(f"ERROR: damaged in {damage_count} {places}")
        raise typer.Exit(FAILED)


def _whole(named: list[Path]) -> Iterator[Path]:
    """Yield the files, with a directory replaced by the known files in it."""
    from minibroker.cli.log.dump import is_known

    for path in named:
        if path.is_dir():
            yield from (inner for inner in sorted(path.iterdir()) if is_known(inner))
        else:
            yield path


def _line(entry: Mapping[str, object]) -> str:
    """Return `name: value` pairs; a record's line has the prefix that Kafka's tool gives it."""
    texts = [f"{name}: {_text(value)}" for name, value in entry.items() if name != "type"]
    mark = {"record": "| ", "damage": "DAMAGE "}.get(str(entry["type"]), "")
    return mark + " ".join(texts)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)
