"""A broker's `System` with faults around it, and the port at which a test gives its orders."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, Final

import trio

from minibroker.broker.app import System
from minibroker.broker.config import Config
from minibroker.testing.node.disk import DiskState, FaultyFiles
from minibroker.testing.node.faults import BadOrder, NodeFaults
from minibroker.testing.node.network import FaultyNetwork
from minibroker.testing.node.orders import OrderServer
from minibroker.testing.node.requests import FaultyDispatch
from minibroker.testing.store import StoreLink

WARN_EVERY_S: Final = 60.0

logger = logging.getLogger(__name__)


@asynccontextmanager
async def with_faults(
    system: System, config: Config, port: int, token: str, faults: NodeFaults
) -> AsyncIterator[System]:
    """Yield the system with these faults, and take orders at `port` until the block ends."""
    for_brokers = config.served_listeners[0]
    async with trio.open_nursery() as nursery:
        network = FaultyNetwork(system.network, for_brokers.endpoint, system.rng, nursery)
        disk = DiskState()
        store = StoreLink(system.store, system.rng, delay_s_max=0)
        dispatch = FaultyDispatch(for_brokers.name, system.wall_ms)

        def set_faults(faults: NodeFaults) -> None:
            dispatch.set(faults.rules)
            network.set(faults.links)
            disk.is_full = faults.is_disk_full
            disk.delay_s = faults.disk_delay_ms / 1000
            (store.cut if faults.is_store_cut else store.heal)()

        def handle_set_faults(order: Mapping[str, Any]) -> Mapping[str, Any]:
            set_faults(NodeFaults.from_json(order.get("faults")))
            return {}

        def handle_reset_connections(order: Mapping[str, Any]) -> Mapping[str, Any]:
            network.reset()
            return {}

        def handle_requests(order: Mapping[str, Any]) -> Mapping[str, Any]:
            client_id = order.get("client_id")
            if not isinstance(client_id, str | None):
                raise BadOrder(f"client_id={client_id!r}: expected a string or null (all clients)")
            return {"requests": [asdict(each) for each in dispatch.received(client_id)]}

        handlers = {
            "set_faults": handle_set_faults,
            "reset_connections": handle_reset_connections,
            "requests": handle_requests,
        }
        set_faults(faults)
        await nursery.start(OrderServer(token, handlers).serve, port)
        nursery.start_soon(_warn)
        yield replace(
            system,
            network=network,
            files=FaultyFiles(disk),
            store=store,
            connect_socket=network.connect_socket,
            dispatch=dispatch,
        )
        nursery.cancel_scope.cancel()


async def _warn() -> None:
    while True:
        logger.warning("this broker was started by a test, which can break it")
        await trio.sleep(WARN_EVERY_S)
