"""The cluster's id, which the first broker makes when it starts, and which marks data directories.

The id is the `cluster.id` of that broker's settings, or else random.

It is in the metadata store before any broker is registered, and never changes. A broker that is
started with the data directory of another cluster finds a different id, and stops.
"""

from base64 import urlsafe_b64encode
from random import Random

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import RESTORE_AGAIN
from minibroker.broker.metadata.store import ABSENT, Compare, MetadataStore, StoreError


async def ensure_cluster_id(store: MetadataStore, rng: Random, wanted: str | None = None) -> str:
    """Return the cluster's id; make it at the first start. Raises `StoreError` if the cluster has
    another one than `wanted`, or is half restored."""
    while True:
        found = (await store.get(entries.CLUSTER_ID)).entries
        if entries.RESTORE in found:
            raise StoreError(f"the metadata are half restored: {RESTORE_AGAIN}, before any broker")
        cluster_id = entries.read_cluster_id(found)
        if cluster_id is not None:
            if wanted not in (None, cluster_id):
                raise StoreError(
                    f"cluster.id (CLUSTER_ID) is {wanted!r}, and the metadata store is that of the"
                    f" cluster {cluster_id!r}; leave the id out, or name the store of {wanted!r}"
                )
            return cluster_id
        made = wanted or urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
        await store.transact([Compare(entries.CLUSTER_ID, ABSENT)], [entries.cluster_id_put(made)])
