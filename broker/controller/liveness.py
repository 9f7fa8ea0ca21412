"""Which brokers are live, arrived and lost: registrations compared with admissions.

A broker has restarted if its registration differs from the admitted one, even if the controller
never saw it gone (CTL-14). What it may have lost follows from what its registration says of its
last run, and from whether it has the same data directory as before, in a later run. A process that
lost its session and registered again has lost nothing; the random name that it drew at its start
identifies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minibroker.broker.controller.features import supporting
from minibroker.broker.controller.state import Admission, BrokerRegistration, State
from minibroker.protocol.types import TopicPartition

FLUSH = "flush"
FLUSH_ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Liveness:
    """`brokers` are the registered brokers, `arrived` those of them that are not admitted yet.

    `lost` were live and are not registered any more; `leaving` have asked to stop; `fenced` do not
    answer the controller. `previous` are the admissions before this comparison, `admissions` those
    after it. `offline` are the brokers whose log of a partition is offline.
    """

    brokers: Mapping[int, BrokerRegistration]
    previous: Mapping[int, Admission]
    admissions: Mapping[int, Admission]
    arrived: frozenset[int]
    lost: frozenset[int]
    leaving: frozenset[int]
    fenced: frozenset[int] = frozenset()
    offline: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)

    def for_partition(self, name: TopicPartition) -> "Liveness":
        """Return this as one partition sees it: a broker whose log of it is offline does not live
        for it."""
        away = self.offline.get(name)
        if not away:
            return self
        brokers = {node: one for node, one in self.brokers.items() if node not in away}
        return replace(self, brokers=brokers, arrived=self.arrived - away)

    def has_restarted(self, node_id: int) -> bool:
        """Whether a broker arrived as another process than before.

        A process that only registered again keeps its leaderships.
        """
        return node_id in self.arrived and not self._goes_on(node_id)

    def _goes_on(self, node_id: int) -> bool:
        """Whether an arrived broker is the process that was admitted before."""
        before = self.previous.get(node_id)
        return before is not None and before.process == self.brokers[node_id].process

    def may_lack(self, node_id: int, name: TopicPartition, configs: Mapping[str, str]) -> bool:
        """Whether an arrived broker may have lost the end of this replica's log (K2)."""
        if node_id not in self.arrived:
            return False
        broker = self.brokers[node_id]
        if name in broker.damaged:
            return True
        if self._goes_on(node_id):
            return False
        if self.change_of_directory(node_id):
            return True
        is_synced = broker.was_synced and configs.get(FLUSH, FLUSH_ALWAYS) == FLUSH_ALWAYS
        return not broker.tail_safe and not is_synced

    def change_of_directory(self, node_id: int) -> str:
        """Return how an arrived broker's data directory differs from before; "" if it does not."""
        broker, before = self.brokers[node_id], self.previous.get(node_id)
        if before is None or self._goes_on(node_id):
            return ""
        if before.directory_id != broker.directory_id:
            return "another data directory than before"
        if broker.run <= before.run:
            return "an older copy of its data directory"
        return ""


def liveness_of(
    state: State,
    registered: Mapping[int, BrokerRegistration],
    unheard: frozenset[int] = frozenset(),
) -> Liveness:
    """Compare the registrations with the controller's state.

    `unheard` are the brokers that do not answer the controller. A registered broker that does not
    support the feature level counts as not registered.
    """
    registered = supporting(registered, state.feature_level)
    previous = state.admissions
    arrived = frozenset(
        node
        for node, broker in registered.items()
        if node not in previous or previous[node].epoch != broker.epoch
    )
    admissions = dict(previous)
    for node in sorted(arrived):
        broker = registered[node]
        admissions[node] = Admission(
            node,
            broker.epoch,
            broker.directory_id,
            broker.run,
            broker.process,
            rack=broker.rack,
        )
    offline: dict[TopicPartition, set[int]] = {}
    for node, broker in registered.items():
        for name in broker.offline:
            offline.setdefault(name, set()).add(node)
    return Liveness(
        brokers=registered,
        previous=previous,
        admissions=admissions,
        arrived=arrived,
        lost=frozenset(state.brokers) - frozenset(registered),
        leaving=frozenset(node for node in registered if admissions[node].is_leaving),
        fenced=unheard.intersection(registered) - arrived,
        offline={name: frozenset(nodes) for name, nodes in offline.items()},
    )
