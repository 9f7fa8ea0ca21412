"""The cluster's id, which the first broker makes when it starts, and which marks data directories.

The id is the `cluster.id` of that broker's settings, or else random. The cluster gets the last
feature level that this broker supports.

The id is in the metadata store before any broker is registered, and never changes. A broker that is
started with the data directory of another cluster finds a different id, and stops. So does a broker
that does not support the cluster's feature level, before it reads a log.
"""

from base64 import urlsafe_b64encode
from random import Random
from typing import NamedTuple

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import RESTORE_AGAIN
from minibroker.broker.controller.features import check_level
from minibroker.broker.controller.state import OWN_LEVELS, FeatureLevels
from minibroker.broker.metadata.store import ABSENT, Compare, MetadataStore, StoreError


class ClusterMark(NamedTuple):
    """The cluster's id, and the revision of its feature level, which the broker supports."""

    cluster_id: str
    level_revision: int


async def ensure_cluster_id(
    store: MetadataStore,
    rng: Random,
    wanted: str | None = None,
    levels: FeatureLevels = OWN_LEVELS,
) -> ClusterMark:
    """Return the cluster's id; make it at the first start. Raises `StoreError` if the cluster has
    another one than `wanted`, is half restored, or has a feature level that is none of `levels`."""
    while True:
        found = (await store.get(entries.CLUSTER)).entries
        if entries.RESTORE in found:
            raise StoreError(f"the metadata are half restored: {RESTORE_AGAIN}, before any broker")
        cluster_id = entries.read_cluster_id(found)
        if cluster_id is not None:
            if wanted not in (None, cluster_id):
                raise StoreError(
                    f"cluster.id (CLUSTER_ID) is {wanted!r}, and the metadata store is that of the"
                    f" cluster {cluster_id!r}; leave the id out, or name the store of {wanted!r}"
                )
            check_level(entries.read_feature_level(found), levels)
            return ClusterMark(cluster_id, entries.revision_of(found, entries.FEATURE_LEVEL))
        made = wanted or urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
        puts = [entries.cluster_id_put(made), entries.feature_level_put(levels.last)]
        await store.transact([Compare(entries.CLUSTER_ID, ABSENT)], puts)
