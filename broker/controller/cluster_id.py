"""The cluster's id: who starts first makes it, and data directories are marked with it.

It stands in the metadata store from before any broker is registered, and never changes: a broker
that is started with the data of another cluster finds another id, and stops.
"""

from base64 import urlsafe_b64encode
from random import Random

from minibroker.broker.controller import entries
from minibroker.broker.metadata.store import ABSENT, Compare, MetadataStore


async def ensure_cluster_id(store: MetadataStore, rng: Random) -> str:
    """The cluster's id, made at the first start."""
    while True:
        found = (await store.get(entries.CLUSTER_ID)).entries
        cluster_id = entries.read_cluster_id(found)
        if cluster_id is not None:
            return cluster_id
        made = urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
        await store.transact([Compare(entries.CLUSTER_ID, ABSENT)], [entries.cluster_id_put(made)])
