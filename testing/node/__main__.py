"""`python -m minibroker.testing.node`: one broker that a test can break.

It takes the properties of `minibroker start`, and from the environment the port for orders, their
token, and the faults that hold from the start. It runs only where a test's kit has put its mark.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minibroker.testing.node.faults import NodeFaults
from minibroker.testing.node.settings import FAULTS, MARK, PORT, TOKEN

if TYPE_CHECKING:
    from minibroker.broker.app import System
    from minibroker.broker.config import Config

WARN_EVERY_S: Final = 60.0
USAGE: Final = 2


def main() -> None:
    """Run the broker until a signal ends it."""
    from minibroker.cli.broker.start import run_broker
    from minibroker.cli.settings import given_settings, load_settings
    from minibroker.cli.terminal import failures_as_one_line

    try:
        port, token = int(os.environ.get(PORT, "")), os.environ[TOKEN]
        faults = NodeFaults.from_json(json.loads(os.environ.get(FAULTS, "{}")))
    except (KeyError, ValueError) as error:
        sys.exit(f"this command is started by a test's kit, which says {PORT} and {TOKEN}: {error}")
    with failures_as_one_line():
        config = load_settings(None, given_settings(sys.argv[1:])).config
        if not (Path(config.log_dirs) / MARK).exists():
            sys.exit(
                f"{config.log_dirs} was not made by a test's kit ({MARK} is not there): a broker"
                " with faults does not run on it; minibroker start does"
            )
        run_broker(config, Surrounding(config, port, token, faults).surround)


class Surrounding:
    """Puts the faults around a broker's system, and takes orders while it runs."""

    def __init__(self, config: "Config", port: int, token: str, faults: NodeFaults) -> None:
        self._config = config
        self._port = port
        self._token = token
        self._faults = faults

    @asynccontextmanager
    async def surround(self, system: "System") -> "AsyncIterator[System]":
        """The system with faults."""
        import trio

        from minibroker.testing.node.disk import DiskState, FaultyFiles
        from minibroker.testing.node.network import FaultyNetwork
        from minibroker.testing.node.orders import OrderServer
        from minibroker.testing.node.requests import FaultyDispatch
        from minibroker.testing.store import StoreLink

        for_brokers = self._config.served_listeners[0]
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

            def obey_set_faults(order: Mapping[str, Any]) -> Mapping[str, Any]:
                set_faults(NodeFaults.from_json(order.get("faults")))
                return {}

            def obey_reset(order: Mapping[str, Any]) -> Mapping[str, Any]:
                network.reset()
                return {}

            def obey_requests(order: Mapping[str, Any]) -> Mapping[str, Any]:
                return {"requests": [asdict(each) for each in dispatch.seen()]}

            orders = {
                "set_faults": obey_set_faults,
                "reset_connections": obey_reset,
                "requests": obey_requests,
            }
            set_faults(self._faults)
            await nursery.start(OrderServer(self._token, orders).serve, self._port)
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
    import logging

    import trio

    while True:
        logging.getLogger(__name__).warning("this broker is a test's, which can break it")
        await trio.sleep(WARN_EVERY_S)


if __name__ == "__main__":
    main()
