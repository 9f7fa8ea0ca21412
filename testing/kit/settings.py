"""The settings of a test's cluster, and the properties that its brokers start with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

HOST: Final = "127.0.0.1"
STORE: Final = "metadata.db"  # beside the brokers' directories
BROKERS_MAX: Final = 15
# Each broker has its own, which follow from the directory of the cluster.
DECIDED_HERE: Final = {
    "node.id": "it follows from the number of the broker",
    "broker.id": "it follows from the number of the broker",
    "listeners": "each broker has a port of its own",
    "advertised.listeners": "each broker has a port of its own",
    "inter.broker.listener.name": "each broker has a listener for the others",
    "log.dirs": "each broker has a directory of its own",
    "log.dir": "each broker has a directory of its own",
    "metadata.store": "say store=",
    "flush": "say flush=",
}
# Tests wait for what a broker does after a time, so these times are short. They also wait until the
# preferred replicas lead again, so the controller moves even a single leadership.
TEST_PROPERTIES: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "broker.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
    "http.listener": "",
}


class BrokerPorts(NamedTuple):
    """A broker's ports: for clients, for other brokers, and for orders."""

    clients: int
    brokers: int
    orders: int

    @classmethod
    def of(cls, base_port: int, node_id: int) -> Self:
        """Return the ports of one broker; `base_port` is the cluster's."""
        first = base_port + node_id
        return cls(first, first + BROKERS_MAX + 1, first + 2 * (BROKERS_MAX + 1))


@dataclass(frozen=True)
class ClusterSettings:
    """The number of brokers, and their properties beside those for tests.

    `flush` is "never", "interval" or "always"; `store` is a `metadata.store`, by default a SQLite
    file of the cluster's own. Raises `ValueError` for impossible settings.
    """

    brokers: int = 3
    properties: tuple[tuple[str, str], ...] = ()
    flush: str = "never"
    store: str = ""

    @classmethod
    def of(
        cls,
        brokers: int = 3,
        properties: Mapping[str, object] | None = None,
        flush: str = "never",
        store: str = "",
    ) -> "ClusterSettings":
        """Make settings with properties from a mapping; True and False are spelt as Kafka spells
        them."""
        if properties is not None and not isinstance(properties, Mapping):
            raise ValueError(f"properties={properties!r}: expected a mapping of names to values")
        given = {str(name): _text(value) for name, value in (properties or {}).items()}
        return cls(brokers, tuple(sorted(given.items())), flush, store)

    def __post_init__(self) -> None:
        if not isinstance(self.brokers, int) or not 1 <= self.brokers <= BROKERS_MAX:
            raise ValueError(f"brokers={self.brokers}: a cluster of a test has 1 to {BROKERS_MAX}")
        for name, _ in self.properties:
            if name in DECIDED_HERE:
                raise ValueError(f"leave {name} out of the properties: {DECIDED_HERE[name]}")

    @property
    def node_ids(self) -> range:
        """The numbers of the brokers."""
        return range(1, self.brokers + 1)

    def broker_properties(
        self, node_id: int, root: str, ports: "BrokerPorts", prefix: str
    ) -> dict[str, str]:
        """Return all properties of one broker of a cluster in the directory `root`. Clusters that
        share an etcd each have their own `prefix` there."""
        replicas = str(min(3, self.brokers))
        listeners = f"BROKERS://{HOST}:{ports.brokers},CLIENTS://{HOST}:{ports.clients}"
        return {
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "min.insync.replicas": "2" if self.brokers >= 3 else "1",
            "flush": self.flush,
            "metadata.store.prefix": prefix,
            **TEST_PROPERTIES,
            **dict(self.properties),
            "node.id": str(node_id),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "BROKERS",
            "metadata.store": self.store or f"sqlite:{root}/{STORE}",
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
