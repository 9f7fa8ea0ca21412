"""`minibroker cluster export`: the metadata of a cluster as JSON, for the audit and for people.

It has all decisions of the controller (leaders, epochs, in-sync sets) as one snapshot of the
metadata store. No broker is queried, so it works while the cluster runs, is stopped or is lost.

It changes nothing. Opening a SQLite store is not harmless: the store is created if it is missing
and upgraded to the newest format, and entries of ended leases are removed. So the function that
opens a broker's store opens a copy here. While another process has the file open, the copy is made
by SQLite's own backup, since a plain copy could be torn; otherwise it is a plain copy, since a
connection would create files beside the store. A store that is a server is read directly.

`brokers` are the registered ones, so a stopped cluster has none. `directories` has the data
directory and the run of each broker when it was last admitted, also of stopped ones. For brokers
that stopped in order and have not come back, `left` says how far their logs went by then.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from minibroker.cli.broker.stores import ETCD, SQLITE, open_store, store_name
from minibroker.cli.cluster.layout import DEFAULT_DIRECTORY, STORE, DataDir
from minibroker.cli.settings import ConfigFile, Settings, given_settings, load_settings
from minibroker.cli.terminal import USAGE, Failure

if TYPE_CHECKING:
    from minibroker.broker.config import Config
    from minibroker.broker.controller.entries import Entries
    from minibroker.broker.controller.state import PartitionRecord, TopicRecord
    from minibroker.broker.metadata.store import Snapshot

VERSION: Final = 1

Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="sqlite:PATH|etcd:URL",
        help=f"Metadata store; default: metadata.store, or {STORE} in --data-dir.",
        show_default=False,
    ),
]


def export(
    directory: DataDir = DEFAULT_DIRECTORY,
    file: ConfigFile = None,
    settings: Settings = None,
    *,
    store: Store = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: stdout.", show_default=False),
    ] = None,
) -> None:
    """Write the cluster's metadata as JSON: topics, leaders, epochs, in-sync sets.

    It reads the metadata store and changes nothing, whether the cluster runs or not. --data-dir is
    a cluster's directory or that of a single broker. How an etcd is reached is told as to a broker,
    with --config or --set.
    """
    config = store_config(directory, file, settings, store)
    text = json.dumps(_export(config), indent=2)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


def store_config(
    directory: Path, file: Path | None, settings: list[str] | None, store: str
) -> "Config":
    """Return settings that name a store and how it is reached, from a command's options."""
    named = {"metadata.store": store} if store else {}
    config = load_settings(file, given_settings(settings) | named).config
    if config.metadata_store is None:
        config = replace(config, metadata_store=f"{SQLITE}{directory / STORE}")
    return config


def export_store(store: Path | str) -> dict[str, Any]:
    """Return the output of `cluster export` for a SQLite file, or for a `metadata.store` value.

    The access to an etcd is configured by the environment. It blocks, so not for an event loop.
    Raises `Failure` if the store does not exist (none is created), `StoreError` if it cannot be
    read.
    """
    from minibroker.broker.config import Config

    if isinstance(store, Path):
        return _export(Config(metadata_store=f"{SQLITE}{store}"))
    return _export(load_settings(None, {"metadata.store": store}).config)


def _export(config: "Config") -> dict[str, Any]:
    from minibroker.broker.controller.entries import CLUSTER_ID

    name = store_name(config)
    found = read_store(config).entries
    if name.startswith(ETCD) and CLUSTER_ID not in found:
        raise Failure(
            f"{name} knows of no cluster under the prefix {config.metadata_store_prefix!r}"
        )
    return _described(found)


def read_store(config: "Config") -> "Snapshot":
    """Return the contents of the store that `metadata.store` names, and change nothing.

    It blocks, so not for an event loop. Raises `Failure` if a SQLite store does not exist,
    `StoreError` if the store cannot be read.
    """
    import trio

    name = store_name(config)
    if name.startswith(ETCD):
        return trio.run(_read, config)
    if not name.startswith(SQLITE):
        raise Failure(
            f"{name!r} cannot be read from outside; a store is {SQLITE}PATH or {ETCD}URL[,URL...]",
            USAGE,
        )
    with _copied(Path(name.removeprefix(SQLITE))) as copy:
        return trio.run(_read, replace(config, metadata_store=f"{SQLITE}{copy}"))


async def _read(config: "Config") -> "Snapshot":
    opened = await open_store(config, Random())
    try:
        return await opened.get("")
    finally:
        await opened.close()


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Yield copies of the store's file and of its leases', in a temporary directory."""
    from minibroker.broker.metadata.sqlite_store import LEASES_SUFFIX
    from minibroker.broker.metadata.store import StoreError

    if not path.is_file() or not path.stat().st_size:
        what = "empty" if path.is_file() else "not there"
        raise Failure(f"the metadata store {path} is {what}")
    with tempfile.TemporaryDirectory(prefix="minibroker-export-") as directory:
        copy = Path(directory, STORE)
        # The leases are copied last. A lease granted in between does no harm; a missing one would
        # remove its entries.
        for suffix in ("", LEASES_SUFFIX):
            if (source := Path(f"{path}{suffix}")).is_file():
                _copy(source, Path(f"{copy}{suffix}"))
        try:
            yield copy
        except StoreError as error:
            raise type(error)(str(error).replace(str(copy), str(path))) from error


def _copy(path: Path, copy: Path) -> None:
    """Copy a SQLite file. `-shm` exists while a process has the file open, and after a crash."""
    import sqlite3
    from contextlib import closing

    from minibroker.broker.metadata.sqlite_file import errors

    if not Path(f"{path}-shm").exists():
        for suffix in ("", "-wal"):
            if (part := Path(f"{path}{suffix}")).exists():
                shutil.copyfile(part, f"{copy}{suffix}")
        return
    url = f"file:{quote(str(path.absolute()))}?mode=ro"
    with (
        errors(path),
        closing(sqlite3.connect(url, uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


# -- the output


def _described(found: "Entries") -> dict[str, Any]:
    from minibroker.broker.clock import wall_ms
    from minibroker.broker.controller import entries
    from minibroker.broker.controller.features import check_level
    from minibroker.broker.controller.state import OWN_LEVELS
    from minibroker.broker.turns import without_pause
    from minibroker.protocol.constants import NO_NODE

    check_level(entries.read_feature_level(found), OWN_LEVELS)
    state = without_pause(entries.read_state(found))
    left: dict[tuple[bytes, int], list[dict[str, int]]] = {}
    for node_id, departure in sorted(entries.read_departures(found).items()):
        for log in departure.logs:
            said = {"node_id": node_id, "last_epoch": log.last_epoch, "log_end": log.log_end}
            left.setdefault((log.topic_id, log.partition), []).append(said)
    active = entries.read_active_controller(found)
    admitted = {node_id: admission.epoch for node_id, admission in state.admissions.items()}
    return {
        "version": VERSION,
        "cluster_id": state.cluster_id,
        "exported_at_ms": wall_ms(),
        "controller_id": NO_NODE if active is None else active.node_id,
        "controller_epoch": entries.read_controller_epoch(found),
        "brokers": [
            {
                "node_id": node_id,
                "host": broker.endpoint.host,
                "port": broker.endpoint.port,
                "epoch": broker.epoch,
                "admitted_epoch": admitted.get(node_id),
            }
            for node_id, broker in sorted(entries.read_brokers(found).items())
        ],
        "directories": [
            {
                "node_id": node_id,
                "directory_id": admission.directory_id,
                "run": admission.run,
            }
            for node_id, admission in sorted(state.admissions.items())
        ],
        "topics": [_topic(topic, left) for _, topic in sorted(state.topics.items())],
        "tombstones": [
            {"id": tombstone.id.hex(), "name": tombstone.name}
            for tombstone in state.tombstones.values()
        ],
    }


def _topic(
    topic: "TopicRecord", left: Mapping[tuple[bytes, int], list[dict[str, int]]]
) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "configs": dict(topic.configs),
        "partitions": [
            _partition(record, left.get((topic.id, record.number), []))
            for record in topic.partitions
        ],
    }


def _partition(record: "PartitionRecord", left: list[dict[str, int]]) -> dict[str, Any]:
    return {
        "partition": record.number,
        "leader": record.leader,
        "leader_epoch": record.leader_epoch,
        "partition_epoch": record.partition_epoch,
        "isr": list(record.isr),
        "replicas": list(record.replicas),
        "unsafe": list(record.unsafe),
        "left": left,
    }
