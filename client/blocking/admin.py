"""The admin client for programs without a trio loop."""

from types import TracebackType
from typing import Self, Unpack

import trio

from minibroker.client.admin import Admin as TrioAdmin
from minibroker.client.blocking.methods import waiting
from minibroker.client.blocking.portal import Portal
from minibroker.client.option_types import AdminConfig, AdminKeywords
from minibroker.client.options import Seams, Servers


class Admin:
    """As `minibroker.client.Admin`, with plain methods, from any thread.

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topics(NewTopic("orders", num_partitions=4))

    Used with `with`, or from `start()` to `close()`.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | AdminConfig = None,
        *,
        seams: Seams | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self._client = TrioAdmin(bootstrap_servers, seams=seams, **options)
        self._portal = Portal("minibroker-admin", self._client)

    def start(self) -> Self:
        """Begin, and return the client: what `with` does. `close` ends it."""
        self._portal.open(self)
        return self

    def close(self) -> None:
        """End it. May be repeated."""
        self._portal.finish(trio.lowlevel.checkpoint)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.close(error)

    create_topics = waiting(TrioAdmin.create_topics)
    create_partitions = waiting(TrioAdmin.create_partitions)
    delete_topics = waiting(TrioAdmin.delete_topics)
    list_topics = waiting(TrioAdmin.list_topics)
    describe_topics = waiting(TrioAdmin.describe_topics)
    describe_cluster = waiting(TrioAdmin.describe_cluster)
    describe_replicas = waiting(TrioAdmin.describe_replicas)
    describe_log_dirs = waiting(TrioAdmin.describe_log_dirs)
    alter_replica_log_dirs = waiting(TrioAdmin.alter_replica_log_dirs)
    unregister_broker = waiting(TrioAdmin.unregister_broker)
    describe_features = waiting(TrioAdmin.describe_features)
    update_features = waiting(TrioAdmin.update_features)
    elect_leaders = waiting(TrioAdmin.elect_leaders)
    alter_partition_reassignments = waiting(TrioAdmin.alter_partition_reassignments)
    list_partition_reassignments = waiting(TrioAdmin.list_partition_reassignments)
    describe_configs = waiting(TrioAdmin.describe_configs)
    describe_broker_configs = waiting(TrioAdmin.describe_broker_configs)
    alter_configs = waiting(TrioAdmin.alter_configs)
    alter_broker_configs = waiting(TrioAdmin.alter_broker_configs)
    delete_records = waiting(TrioAdmin.delete_records)
    list_offsets = waiting(TrioAdmin.list_offsets)
    list_groups = waiting(TrioAdmin.list_groups)
    describe_groups = waiting(TrioAdmin.describe_groups)
    delete_groups = waiting(TrioAdmin.delete_groups)
    committed_offsets = waiting(TrioAdmin.committed_offsets)
    commit_offsets = waiting(TrioAdmin.commit_offsets)
    delete_offsets = waiting(TrioAdmin.delete_offsets)
    list_transactions = waiting(TrioAdmin.list_transactions)
    describe_transactions = waiting(TrioAdmin.describe_transactions)
    abort_transaction = waiting(TrioAdmin.abort_transaction)
