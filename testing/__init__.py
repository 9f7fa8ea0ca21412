"""A cluster of real brokers for tests of a program: started, broken and inspected by the test.

    from minibroker.testing import running_cluster

    with running_cluster(brokers=3) as cluster:
        topic = cluster.topic()
        with cluster.kill(cluster.leader(topic)):
            cluster.wait_for_leader(topic)

With pytest, the fixtures `kafka_broker` and `kafka_cluster` provide these (docs/testing.md). The
other modules here are the project's own simulation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from minibroker.testing.kit.breakable import Disk
    from minibroker.testing.kit.broker_process import BrokerFailed
    from minibroker.testing.kit.brokers import Event
    from minibroker.testing.kit.cluster import KafkaCluster, running_cluster
    from minibroker.testing.kit.faults import Fault
    from minibroker.testing.kit.history import Commit, History, PromiseBroken
    from minibroker.testing.kit.requests import Request
    from minibroker.testing.kit.run_directory import AllPortsTaken
    from minibroker.testing.kit.service_process import ServiceFailed, ServiceProcess
    from minibroker.testing.kit.settings import ClusterSettings
    from minibroker.testing.kit.stored import StoredRecord
    from minibroker.testing.kit.waiting import WaitTimeout

__all__ = [
    "AllPortsTaken",
    "BrokerFailed",
    "ClusterSettings",
    "Commit",
    "Disk",
    "Event",
    "Fault",
    "History",
    "KafkaCluster",
    "PromiseBroken",
    "Request",
    "ServiceFailed",
    "ServiceProcess",
    "StoredRecord",
    "WaitTimeout",
    "running_cluster",
]

_HOMES: Final = {
    "AllPortsTaken": "run_directory",
    "BrokerFailed": "broker_process",
    "ClusterSettings": "settings",
    "Commit": "history",
    "Disk": "breakable",
    "Event": "brokers",
    "Fault": "faults",
    "History": "history",
    "KafkaCluster": "cluster",
    "PromiseBroken": "history",
    "Request": "requests",
    "ServiceFailed": "service_process",
    "ServiceProcess": "service_process",
    "StoredRecord": "stored",
    "WaitTimeout": "waiting",
    "running_cluster": "cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"minibroker.testing.kit.{_HOMES[name]}"), name)
