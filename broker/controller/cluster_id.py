"""The cluster's id: who starts first makes it, and data directories are marked with it.

It is drawn, or the one that the settings of that broker name (`cluster.id`).

It stands in the metadata store from before any broker is registered, and never changes: a broker
that is started with the data of another cluster finds another id, and stops.
"""

from base64 import urlsafe_b64encode
from random import Random

from minibroker.broker.controller import entries
from minibroker.broker.metadata.store import ABSENT, Compare, MetadataStore, StoreError


async def ensure_cluster_id(store: MetadataStore, rng: Random, wanted: str | None = None) -> str:
    """The cluster's id, made at the first start. Raises `StoreError` if it is not the `wanted`."""
    while True:
        found = (await store.get(entries.CLUSTER_ID)).entries
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
