"""A cluster whose parts are each on a host of their own: brokers, the members of an etcd, clients.

The hosts are those of `tests/support/namespaces.py`. The test's process asks the cluster, through
sockets of the clients' host (`seams`), so that it has one clock with the faults.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from minibroker.client import Seams
from minibroker.client.net.network import Stream, TcpNetwork, TcpStream, connected_socket
from minibroker.protocol.types import Endpoint
from tests.support.etcd import EtcdMember, running_etcd
from tests.support.namespaces import Host, Network, network
from tests.support.processes import COMMAND, EXPORT, ClusterProcesses, Machine

NODES: Final = (1, 2, 3)
BROKERS: Final = tuple(f"kafka-{node}" for node in NODES)
ETCDS: Final = ("etcd-1", "etcd-2", "etcd-3")
CLIENT: Final = "client"
PORT: Final = 9092


class HostNetwork(TcpNetwork):
    """Connections that a host makes."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    async def connect(self, endpoint: Endpoint) -> Stream:
        """To an address: names would be looked up outside."""
        connection = await connected_socket(endpoint, lambda *_: self._host.socket())
        return TcpStream(connection, None)


class SpreadCluster(ClusterProcesses):
    """Made by `running_spread`. `members` are etcd's, by the names of their hosts."""

    def __init__(
        self, root: Path, net: Network, members: Sequence[EtcdMember], settings: dict[str, str]
    ) -> None:
        super().__init__(root, len(NODES), settings)
        self.net = net
        self.members = dict(zip(ETCDS, members, strict=True))
        self.store = "etcd:" + ",".join(member.url for member in members)
        self._client = net.hosts[CLIENT]

    def seams(self, seed: int) -> Seams:
        """For clients that shall be on their host."""
        return Seams(HostNetwork(self._client), Random(seed), lambda: time.time_ns() // 1_000_000)

    def machine_of(self, node_id: int) -> Machine:
        """Its host."""
        return self.net.hosts[f"kafka-{node_id}"]

    def address_of(self, node_id: int) -> str:
        """On its host."""
        return f"{self.machine_of(node_id).address}:{PORT}"

    def settings_of(self, node_id: int) -> dict[str, str]:
        """As of every cluster, but for the store and the addresses."""
        address = self.address_of(node_id)
        own = {"listeners": address, "advertised.listeners": address, "metadata.store": self.store}
        return super().settings_of(node_id) | own

    def export(self) -> None:
        """See `ClusterProcesses`; asked from the clients' host."""
        target = str(self.layout.root / EXPORT)
        command = [*COMMAND, "cluster", "export", "--store", self.store, "-o", target]
        self._client.run(command, check=True)


@contextmanager
def running_spread(root: Path, settings: dict[str, str]) -> Iterator[SpreadCluster]:
    """A cluster that answers, on a network without faults; all is gone when the block ends."""
    with network() as net:
        hosts = {name: net.add(name) for name in (*ETCDS, *BROKERS, CLIENT)}
        with running_etcd(root, machines=[hosts[name] for name in ETCDS]) as members:
            cluster = SpreadCluster(root, net, members, settings)
            try:
                cluster.start()
                yield cluster
            finally:
                net.heal()
                cluster.kill_all()
