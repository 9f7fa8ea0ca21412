"""`minibroker cluster purge`: stop a cluster and remove all that its brokers have stored.

Only what `cluster up` and its brokers have made is removed; another file stays, and so does the
directory then. `cluster.properties` goes last: a purge that was interrupted can be repeated.
"""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from minibroker.cli.cluster.layout import (
    DEFAULT_DIRECTORY,
    LOCK,
    STORE,
    DataDir,
    Layout,
    exclusive,
)
from minibroker.cli.cluster.process import Broker
from minibroker.cli.cluster.up import stop
from minibroker.cli.terminal import confirm, counted, note

STORE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def purge(
    directory: DataDir = DEFAULT_DIRECTORY,
    *,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed; stop nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop all brokers and remove all their records, topics and settings."""
    layout = Layout.load(directory)
    if is_dry_run:
        print("".join(f"{path}\n" for path in _made_by(layout)), end="")
        return
    what = f"all records and topics of {counted(layout.broker_count, 'broker')} in {layout.root}"
    confirm(f"Remove {what}? They cannot be brought back.", is_agreed=yes)
    with exclusive(layout, may_wait=False):
        stop(Broker(layout, node_id) for node_id in layout.node_ids)
        for path in _made_by(layout):
            _remove(path)
    print(f"Removed {what}.")
    try:
        layout.root.rmdir()
    except OSError:
        note(f"{layout.root} stays: it has other files, or cannot be removed")


def _made_by(layout: Layout) -> list[Path]:
    """Return what is there of what the cluster has made, in the order in which it is removed."""
    made = [
        path
        for node_id in layout.node_ids
        for path in (layout.data_dir(node_id), layout.pid_file(node_id), layout.log_file(node_id))
    ]
    made += [layout.root / f"{STORE}{suffix}" for suffix in STORE_SUFFIXES]
    made += [layout.root / LOCK, layout.file]
    return [path for path in made if path.exists() or path.is_symlink()]


def _remove(path: Path) -> None:
    """Remove a file, a directory with all that is in it, or a link, but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
