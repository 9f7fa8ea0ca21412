"""The state of partitions, from their leaders.

Any broker answers METADATA from its image, and a broker that was away may have an old one. So the
kit asks all running brokers, and uses the leader with the newest epoch.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from minibroker.testing.kit.waiting import NotKnown

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.replicas import ReplicaDescription


class PartitionState(NamedTuple):
    """A partition. If no running broker leads it, `leader` is None and `isr` is empty."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]
    high_watermark: int
    log_end: int

    @property
    def is_in_sync(self) -> bool:
        """Whether all replicas are in sync."""
        return set(self.isr) == set(self.replicas)

    def __str__(self) -> str:
        leads = "nobody leads" if self.leader is None else f"broker {self.leader} leads"
        isr = numbers(sorted(self.isr)) or "none"
        return (
            f"{self.topic}-{self.partition}: {leads}; in sync are {isr} of {numbers(self.replicas)}"
        )


def partition_states(
    admin: "Admin", topics: Collection[str], running: Collection[int]
) -> list[PartitionState]:
    """Return the partitions of these topics. Raises `NotKnown`, and what the admin client raises.

    A replica counts as in sync if its leader and its own broker have the same state of the
    partition: a leader may not know yet that a replica has restarted and has lost the end of its
    log. Brokers that are not in `running` neither lead nor are in sync, whatever others say.
    """
    if not topics:
        return []
    report = admin.describe_replicas(*topics)
    # A broker that the others count as dead neither leads nor is in sync.
    running = [each for each in running if report.silent.get(each) != "not alive"]
    for node_id in running:
        if node_id not in report.answers:
            why = report.silent.get(node_id, "it is not registered")
            raise NotKnown(f"broker {node_id} does not answer: {why}")
    leaders: dict[tuple[str, int], tuple[int, ReplicaDescription]] = {}
    states: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for node_id in running:
        for replica in report.answers[node_id].replicas:
            name = replica.topic, replica.partition
            if replica.role in ("leader", "follower"):
                state = replica.leader_epoch, replica.partition_epoch
                states.setdefault(name, {})[node_id] = state
            if replica.role == "leader":
                newest = leaders.get(name)
                if newest is None or newest[1].leader_epoch < replica.leader_epoch:
                    leaders[name] = node_id, replica
    found = []
    for topic in admin.describe_topics(*topics):
        for partition in topic.partitions:
            name = topic.name, partition.partition
            if name in leaders:
                node_id, replica = leaders[name]
                known = states[name]
                isr = tuple(each for each in replica.isr if known.get(each) == known[node_id])
                ends = replica.high_watermark, replica.log_end
                found.append(PartitionState(*name, partition.replicas, node_id, isr, *ends))
            else:
                found.append(PartitionState(*name, partition.replicas, None, (), -1, -1))
    return found


def numbers(node_ids: Collection[int]) -> str:
    """Return the numbers of brokers as a list in a sentence."""
    return ", ".join(map(str, node_ids))
