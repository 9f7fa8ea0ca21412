"""The stores that `metadata.store` can name; all of them are opened here.

A broker whose data directory has been used before needs the store that it was used with. An empty
store is refused, and none is created: the broker would set all its data aside, because the store
knows none of its topics. The broker waits for an etcd that does not answer, since etcd may well
start after its brokers.
"""

import logging
from pathlib import Path, PurePath
from random import Random
from typing import TYPE_CHECKING, Final

from minibroker.cli.terminal import Failure

if TYPE_CHECKING:
    from minibroker.broker.config import Config
    from minibroker.broker.metadata.etcd_gateway import Access
    from minibroker.broker.metadata.store import MetadataStore

METADATA_FILE: Final = "metadata.db"
MEMORY: Final = "memory:"
SQLITE: Final = "sqlite:"
ETCD: Final = "etcd:"
AGAIN_S: Final = 0.5

log = logging.getLogger(__name__)


def store_name(config: "Config") -> str:
    """Return the value of `metadata.store`, or its default."""
    return config.metadata_store or f"{SQLITE}{config.data_dir / METADATA_FILE}"


def check_store(config: "Config") -> None:
    """Refuse a store that cannot know the data directory's topics, before anything is created."""
    name = store_name(config)
    if not _was_used(config) or name.startswith(ETCD):
        return
    if name == MEMORY:
        raise Failure(
            f"metadata.store={MEMORY} forgets its topics with the process, and"
            f" {config.data_dir} holds data of an earlier run; name a new directory with --data-dir"
        )
    path = Path(name.removeprefix(SQLITE))
    if not path.exists() or not path.stat().st_size:
        raise _unknown_store(f"{path} is {'empty' if path.exists() else 'not there'}", config)


async def open_store(config: "Config", rng: Random) -> "MetadataStore":
    """Open the store that `metadata.store` names. Raises `StoreError`."""
    name = store_name(config)
    if name == MEMORY:
        from minibroker.broker.metadata.memory_store import MemoryStore

        return MemoryStore()
    if name.startswith(ETCD):
        from minibroker.broker.metadata.etcd_store import EtcdStore

        prefix = config.metadata_store_prefix
        return EtcdStore(etcd_access(config), prefix, str(config.node_id), rng)
    from minibroker.broker.clock import boot_id, boottime_s
    from minibroker.broker.disk import in_worker
    from minibroker.broker.metadata.sqlite_leases import BootClock
    from minibroker.broker.metadata.sqlite_store import SqliteStore

    clock = BootClock(boot_id(), boottime_s)
    return await SqliteStore.open(PurePath(name.removeprefix(SQLITE)), clock, in_worker)


async def wait_for_store(store: "MetadataStore", config: "Config") -> None:
    """Wait for an etcd, and check that it is the one that the data directory was used with."""
    import trio

    from minibroker.broker.controller.entries import CLUSTER_ID
    from minibroker.broker.metadata.store import StoreUnavailable

    name = store_name(config)
    if not name.startswith(ETCD):
        return
    began_at, is_announced = trio.current_time(), False
    while True:
        try:
            found = await store.get(CLUSTER_ID)
            break
        except StoreUnavailable as error:
            if not is_announced:
                log.warning("Waiting for the metadata store before anything else: %s", error)
            is_announced = True
        await trio.sleep(AGAIN_S)
    if is_announced:
        waited_s = trio.current_time() - began_at
        log.info("The metadata store answers, after %.1f s", waited_s)
    if not found.entries and _was_used(config):
        place = f"{name} (metadata.store.prefix={config.metadata_store_prefix})"
        raise _unknown_store(f"{place} knows of no cluster", config)


def etcd_access(config: "Config") -> "Access":
    """Return how to reach the etcd that `metadata.store` names."""
    from minibroker.broker.config_property import parse_endpoints
    from minibroker.broker.metadata.etcd_gateway import Access

    return Access(
        endpoints=parse_endpoints(store_name(config)),
        user=config.metadata_store_user or "",
        password_file=config.metadata_store_password_file,
        ca_file=config.metadata_store_ca_file,
        cert_file=config.metadata_store_cert_file,
        key_file=config.metadata_store_key_file,
    )


def _was_used(config: "Config") -> bool:
    from minibroker.broker.log.directory import META

    return Path(config.data_dir, META).is_file()


def _unknown_store(what: str, config: "Config") -> Failure:
    return Failure(
        f"the metadata store {what}, but {config.data_dir} holds data of an earlier run: its"
        " topics are not known without it. Put back a copy of the store, or name a new directory"
        " with --data-dir"
    )
