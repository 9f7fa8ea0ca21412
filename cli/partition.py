"""`minibroker partition recover`: accept that a damaged partition has lost records.

A broker that finds damage in a log (not a torn tail, which nobody was promised) keeps the bytes
aside and leaves the partition offline: a log never becomes shorter without somebody saying so.
This is how somebody says so. It works on the files of a stopped broker.
"""

from pathlib import Path
from typing import Annotated

import typer

from minibroker.cli.settings import load_settings
from minibroker.cli.terminal import Failure, note

app = typer.Typer(help="Repair partitions.", no_args_is_help=True)


@app.callback()
def partition() -> None:
    """Repair partitions."""


@app.command()
def recover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    number: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", "-d", help="Of the broker, which is stopped.")
    ] = None,
) -> None:
    """Accept the loss of records in a damaged partition, so that it comes online again.

    The damaged bytes stay beside the log in files named *.damaged-accepted.
    """
    from minibroker.broker.disk import RealFiles
    from minibroker.broker.log.directory import DataDirectory, explaining
    from minibroker.broker.log.outcomes import Place
    from minibroker.broker.log.recovery import accept_damage, known_damage
    from minibroker.protocol.types import TopicPartition

    files = RealFiles()
    given = {"log.dirs": str(data_dir)} if data_dir else {}
    root = Path(load_settings(None, given).config.log_dirs).absolute()
    directory = root / f"{topic}-{number}"
    if not directory.is_dir():
        raise Failure(f"there is no partition {topic}-{number} in {root}; see --data-dir")
    data = DataDirectory(files, root)
    with explaining(root):
        data.take()
    try:
        damage = known_damage(Place(files, directory, TopicPartition(topic, number), b""))
        if damage is None:
            note(f"{topic}-{number} is not damaged")
            return
        accept_damage(files, directory)
    finally:
        data.release()
    note(f"{topic}-{number}: records from offset {damage.offset} on were given up")
    print(f"Recovered partition {topic}-{number}.")
