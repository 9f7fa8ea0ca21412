"""The replicas of a cluster of processes: in sync, and stopped in order for an audit."""

import time
from typing import Final

from minibroker.client.blocking import Admin
from tests.support.processes import ClusterProcesses

IN_SYNC_S_MAX: Final = 60.0
LOOK_EVERY_S: Final = 0.1


def wait_until_in_sync(admin: Admin) -> None:
    """Until all replicas of all topics are in sync, those of the brokers' own topics, too."""
    deadline = time.monotonic() + IN_SYNC_S_MAX
    while True:
        topics = admin.describe_topics(*admin.list_topics())
        if all(len(one.isr) == len(one.replicas) for topic in topics for one in topic.partitions):
            return
        assert time.monotonic() < deadline, topics
        time.sleep(LOOK_EVERY_S)


def stop_in_order(cluster: ClusterProcesses) -> None:
    """Once all replicas are in sync, which is kept for the audit."""
    with Admin(cluster.addresses) as admin:
        wait_until_in_sync(admin)
    cluster.export()
    for node_id in cluster.layout.node_ids:
        assert cluster.stop(node_id) == 0
