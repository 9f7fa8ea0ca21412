"""`minibroker metadata`: back up the metadata of a cluster, and restore them.

Both commands read the metadata store itself, and ask no broker. `cluster export` shows the same
metadata for people and for the audit; a restore needs every entry, so a backup is another file.
"""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Final

import typer

from minibroker.cli.broker.stores import SQLITE, open_store, store_name
from minibroker.cli.cluster.export import Store, read_store, store_config
from minibroker.cli.cluster.layout import DEFAULT_DIRECTORY, DataDir
from minibroker.cli.settings import ConfigFile, Settings
from minibroker.cli.terminal import Failure, confirm, counted, ids_in, note

if TYPE_CHECKING:
    from minibroker.broker.config import Config
    from minibroker.broker.controller.backup import Backup
    from minibroker.broker.controller.restore_plan import RestorePlan
    from minibroker.broker.metadata.store import Snapshot

NAMED_MAX: Final = 10  # topics in one line

app = typer.Typer(help="Back up and restore the metadata.", no_args_is_help=True)
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


@app.command()
def export(
    path: BackupFile,
    directory: DataDir = DEFAULT_DIRECTORY,
    file: ConfigFile = None,
    settings: Settings = None,
    *,
    store: Store = "",
) -> None:
    """Write a backup of the metadata: topics, partitions, settings.

    For example `minibroker metadata export backup.json`. It reads the metadata store and changes
    nothing, whether the cluster runs or not. FILE is replaced if it exists, and only its owner may
    read it.
    """
    from minibroker.broker.clock import wall_ms
    from minibroker.broker.controller.backup import backup_of, dump
    from minibroker.broker.disk import RealFiles

    config = store_config(directory, file, settings, store)
    backup = backup_of(read_store(config), wall_ms())
    RealFiles().write_atomic(path, dump(backup))
    note(f"{path}: {_described(backup)}.")


@app.command()
def restore(
    path: BackupFile,
    directory: DataDir = DEFAULT_DIRECTORY,
    file: ConfigFile = None,
    settings: Settings = None,
    *,
    store: Store = "",
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            metavar="ID,ID,...",
            help="Brokers whose logs are compared; default: all that backup or store names.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put a backup of the metadata back, while all brokers are stopped.

    For example `minibroker metadata restore backup.json`. Topics that the store lacks return, and
    settings of topics are those of the backup again; topics that are newer than the backup stay.
    After that a partition has no leader before the brokers have started and their logs were
    compared: the longest log leads. So acknowledged records are kept, whatever happened since the
    backup.
    """
    from minibroker.broker.clock import wall_ms
    from minibroker.broker.controller.backup import BackupError, load
    from minibroker.broker.controller.restore_plan import plan_restore
    from minibroker.broker.metadata.store import StoreError, StoreUnavailable

    nodes = ids_in(brokers)
    config = store_config(directory, file, settings, store)
    try:
        backup = load(path.read_bytes())
        plan = plan_restore(backup, _snapshot(config), wall_ms(), nodes)
    except BackupError as error:
        raise Failure(f"{path}: {error}") from None
    except StoreUnavailable:
        raise
    except StoreError as error:
        raise Failure(f"{error}. Move the store away, and restore into an empty store") from None
    note(f"{path}: {_described(backup)}.")
    for line in outlook(plan):
        note(line)
    if dry_run:
        return
    confirm(f"Restore this into {store_name(config)}?", is_agreed=yes)
    _carry_out(config, plan)
    note(f"Restored. Start the brokers {_numbers(plan.brokers)}.")


def outlook(plan: "RestorePlan") -> list[str]:
    """Return what a restore does, in lines for the operator."""
    lines = []
    for text, names in (
        ("not in the store, returns", plan.returning),
        ("gets its settings of then", plan.reset),
        ("newer than the backup, stays as it is", plan.newer),
        ("created again since the backup, stays as it is", plan.recreated),
    ):
        if names:
            more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
            lines.append(
                f"{counted(len(names), 'topic')} ({text}): {', '.join(names[:NAMED_MAX])}{more}"
            )
    if plan.settings:
        lines.append(f"Settings of {counted(plan.settings, 'group or broker')} change.")
    lines.append(
        f"No partition has a leader before all of the brokers {_numbers(plan.brokers)} have started"
        " and their logs were compared."
    )
    lines.append(
        "A topic that neither the backup nor the store knows stays unknown: brokers keep its logs"
        " aside (*-stray)."
    )
    return lines


def _described(backup: "Backup") -> str:
    topics = counted(len(backup.read().topics), "topic")
    made_at = datetime.fromtimestamp(backup.exported_at_ms / 1000, UTC)
    return f"cluster {backup.cluster_id}, {topics}, made at {made_at:%Y-%m-%d %H:%M:%S} UTC"


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "(none)"


def _snapshot(config: "Config") -> "Snapshot":
    """Return the contents of the store; a SQLite file that does not exist is empty."""
    from minibroker.broker.metadata.store import Snapshot

    name = store_name(config)
    path = Path(name.removeprefix(SQLITE))
    if name.startswith(SQLITE) and (not path.exists() or not path.stat().st_size):
        if not path.parent.is_dir():
            raise Failure(f"there is no directory {path.parent}: name the store with --store")
        note(f"The store {path} is {'empty' if path.exists() else 'not there, and is made'}.")
        return Snapshot(0, {})
    return read_store(config)


def _carry_out(config: "Config", plan: "RestorePlan") -> None:
    import trio

    from minibroker.broker.controller.restore import carry_out

    async def write() -> None:
        opened = await open_store(config, Random())
        try:
            await carry_out(opened, plan)
        finally:
            await opened.close()

    trio.run(write)
