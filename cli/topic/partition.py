"""`minibroker partition`: move partitions (`reassign`), and accept that a damaged one has lost
records (`recover`).

A broker that finds damage in a log (other than a torn tail, which was never acknowledged) keeps the
bytes aside and leaves the partition offline: a log never becomes shorter without an operator's
consent. This command gives the consent. It works on the files of a stopped broker.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.settings import load_settings
from minibroker.cli.terminal import Failure, confirm, note
from minibroker.cli.topic.reassign import reassign

if TYPE_CHECKING:
    from minibroker.broker.log.recovery import Kept

app = typer.Typer(help="Move and repair partitions.", no_args_is_help=True)
app.command()(reassign)


@app.callback()
def partition() -> None:
    """Move and repair partitions."""


@app.command()
def recover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    number: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", "-d", help="Log directories of the stopped broker."),
    ] = None,
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="No question.")] = False,
) -> None:
    """Accept the loss of records in a damaged partition, so that it comes online again.

    Says first what is lost, and asks. The damaged bytes stay beside the log, in files named
    *.damaged-accepted. If only the partition.metadata of the log was lost, its records stay.
    """
    from minibroker.broker.disk import RealFiles
    from minibroker.broker.log.directory import DataDirectory, explaining
    from minibroker.broker.log.recovery import UNKNOWN_TOPIC, accept_damage, kept_aside
    from minibroker.broker.log.segment import offsets_in

    files = RealFiles()
    given = {"log.dirs": str(data_dir)} if data_dir else {}
    roots = [Path(one).absolute() for one in load_settings(None, given).config.log_dirs]
    root = next((one for one in roots if (one / f"{topic}-{number}").is_dir()), None)
    if root is None:
        where = ", ".join(map(str, roots))
        raise Failure(f"there is no partition {topic}-{number} in {where}; see --data-dir")
    directory = root / f"{topic}-{number}"
    data = DataDirectory(files, root)
    with explaining(root):
        data.acquire()
    try:
        kept = kept_aside(files, directory)
        is_unowned = files.exists(directory / UNKNOWN_TOPIC)
        if not (kept or is_unowned):
            note(f"{topic}-{number} is not damaged")
            return
        bases = offsets_in(files.list(directory), ".log")
        if kept:
            _print_loss(f"{topic}-{number}", kept, min(bases, default=0))
        if is_unowned:
            note(
                f"{topic}-{number}: its partition.metadata was lost, so nothing says that these"
                f" records are of the topic {topic} of today; they will count as its records"
            )
        confirm("Accept this?", is_agreed=is_agreed)
        accept_damage(files, directory)
    finally:
        data.release()
    print(f"Recovered partition {topic}-{number}.")


def _print_loss(name: str, kept: "list[Kept]", log_start: int) -> None:
    """Print which records are lost, as far as the kept files show it."""
    offsets = [int(one.path.stem) for one in kept]
    if offsets[0] < log_start:
        lost = f"from offset {offsets[0]} to {log_start - 1}"
        note(f"{name}: the records {lost} are lost; the log begins at {log_start}")
    first = min((offset for offset in offsets if offset >= log_start), default=None)
    if first is not None:
        last = max((one.last_offset for one in kept if one.last_offset is not None), default=-1)
        end = f"to {last}" if last >= first else "on (up to where, nothing that was kept can tell)"
        note(f"{name}: the records from offset {first} {end} are lost; the log goes on at {first}")
    for one in kept:
        note(f"{one.size} bytes were kept in {one.path}")
