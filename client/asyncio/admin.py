"""The admin client for asyncio programs."""

from types import TracebackType
from typing import Self, Unpack

import trio

from minibroker.client.admin import Admin as TrioAdmin
from minibroker.client.asyncio.methods import awaiting
from minibroker.client.asyncio.portal import AsyncioPortal
from minibroker.client.blocking.portal import Portal
from minibroker.client.option_types import AdminConfig, AdminKeywords
from minibroker.client.options import Seams, Servers


class Admin:
    """As `minibroker.client.Admin`, from tasks of asyncio.

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topics(NewTopic("orders", num_partitions=4))

    Used with `async with`, or from `start()` to `close()`.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | AdminConfig = None,
        *,
        seams: Seams | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self._client = TrioAdmin(bootstrap_servers, seams=seams, **options)
        self._portal = AsyncioPortal(Portal("minibroker-admin", self._client))

    async def start(self) -> Self:
        """Begin, and return the client: what `async with` does. `close` ends it."""
        await self._portal.open(self)
        return self

    async def close(self) -> None:
        """End it. May be repeated."""
        await self._portal.finish(trio.lowlevel.checkpoint)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._portal.close(error)

    create_topics = awaiting(TrioAdmin.create_topics)
    create_partitions = awaiting(TrioAdmin.create_partitions)
    delete_topics = awaiting(TrioAdmin.delete_topics)
    list_topics = awaiting(TrioAdmin.list_topics)
    describe_topics = awaiting(TrioAdmin.describe_topics)
    describe_cluster = awaiting(TrioAdmin.describe_cluster)
    describe_replicas = awaiting(TrioAdmin.describe_replicas)
    describe_log_dirs = awaiting(TrioAdmin.describe_log_dirs)
    alter_replica_log_dirs = awaiting(TrioAdmin.alter_replica_log_dirs)
    unregister_broker = awaiting(TrioAdmin.unregister_broker)
    describe_features = awaiting(TrioAdmin.describe_features)
    update_features = awaiting(TrioAdmin.update_features)
    elect_leaders = awaiting(TrioAdmin.elect_leaders)
    alter_partition_reassignments = awaiting(TrioAdmin.alter_partition_reassignments)
    list_partition_reassignments = awaiting(TrioAdmin.list_partition_reassignments)
    describe_configs = awaiting(TrioAdmin.describe_configs)
    describe_broker_configs = awaiting(TrioAdmin.describe_broker_configs)
    alter_configs = awaiting(TrioAdmin.alter_configs)
    alter_broker_configs = awaiting(TrioAdmin.alter_broker_configs)
    delete_records = awaiting(TrioAdmin.delete_records)
    list_offsets = awaiting(TrioAdmin.list_offsets)
    list_groups = awaiting(TrioAdmin.list_groups)
    describe_groups = awaiting(TrioAdmin.describe_groups)
    delete_groups = awaiting(TrioAdmin.delete_groups)
    committed_offsets = awaiting(TrioAdmin.committed_offsets)
    commit_offsets = awaiting(TrioAdmin.commit_offsets)
    delete_offsets = awaiting(TrioAdmin.delete_offsets)
    list_transactions = awaiting(TrioAdmin.list_transactions)
    describe_transactions = awaiting(TrioAdmin.describe_transactions)
    abort_transaction = awaiting(TrioAdmin.abort_transaction)
