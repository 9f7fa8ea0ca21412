"""Where `metadata.store` leads, and which stores a used data directory is not started with."""

from pathlib import Path
from random import Random

import pytest
import trio

from minibroker.broker.config import load
from minibroker.broker.log.directory import META
from minibroker.broker.metadata.store import Put
from minibroker.cli.broker import stores
from minibroker.cli.cluster.export import export_store
from minibroker.cli.terminal import Failure
from tests.support.etcd import NEEDS_ETCD, running_etcd

pytestmark = NEEDS_ETCD


@pytest.fixture
def etcd(tmp_path):
    with running_etcd(tmp_path) as [member]:
        yield member


def config_of(etcd, place: Path, **settings: str):
    named = {"metadata.store": f"etcd:{etcd.url}", "log.dirs": str(place / "data"), **settings}
    return load(flags=named).config


async def test_an_etcd_is_waited_for(etcd, tmp_path, monkeypatch, caplog):
    """A broker that starts first says what it waits for, and goes on as soon as it is there."""
    caplog.set_level("INFO", "minibroker.cli")
    monkeypatch.setattr(stores, "AGAIN_S", 0.05)
    config = config_of(etcd, tmp_path)
    store = await stores.open_store(config, Random(1))
    etcd.kill()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stores.wait_for_store, store, config)
        await trio.sleep(0.3)
        assert nursery.child_tasks
        etcd.start()
    begins, ends = caplog.messages
    assert begins.startswith("Waiting for the metadata store before anything else: ")
    assert f"etcd at {etcd.url} cannot be reached" in begins
    assert ends.startswith("The metadata store answers, after ")
    await store.close()


async def test_a_used_data_directory_needs_the_etcd_that_knows_it(etcd, tmp_path):
    """An etcd, or a prefix, that knows of no cluster is refused where there is data."""
    config = config_of(etcd, tmp_path)
    store = await stores.open_store(config, Random(1))
    await stores.wait_for_store(store, config)
    await trio.Path(config.data_dir).mkdir()
    await trio.Path(config.data_dir, META).write_text("")
    with pytest.raises(Failure, match=r"prefix=minibroker\) knows of no cluster, but .*data holds"):
        await stores.wait_for_store(store, config)
    await store.transact([], [Put("cluster-id", b'"c"')])
    await stores.wait_for_store(store, config)
    await store.close()


async def test_etcd_is_exported(etcd, tmp_path, monkeypatch):
    """What is in etcd is told, under the prefix that the environment names; nothing is written."""
    config = config_of(etcd, tmp_path, **{"metadata.store.prefix": "mine/"})
    store = await stores.open_store(config, Random(1))
    revision = (await store.transact([], [Put("cluster-id", b'"c"')])).revision
    with pytest.raises(Failure, match="knows of no cluster under the prefix 'minibroker'"):
        await trio.to_thread.run_sync(export_store, config.metadata_store)
    monkeypatch.setenv("KAFKA_METADATA_STORE_PREFIX", "mine/")
    found = await trio.to_thread.run_sync(export_store, config.metadata_store)
    assert (found["cluster_id"], found["brokers"], found["topics"]) == ("c", [], [])
    assert (await store.get("")).revision == revision
    await store.close()
