"""Who lives, who came and who went: the registrations against what the controller admitted.

A broker came back when its registration is not the one that was admitted, whether or not anybody
saw it gone (CTL-14). What it may have lost follows from what it says of its last run, and from
whether it is what was admitted before: the same data directory, one run further. A process that
lost its session and registered again has lost nothing; it is known by the name it drew.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from minibroker.broker.controller.state import Admission, BrokerRegistration, State
from minibroker.protocol.types import TopicPartition

FLUSH = "flush"
FLUSH_ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Liveness:
    """`brokers` are all that are registered, `arrived` those of them that were not admitted yet.

    `lost` were live and are gone; `leaving` have asked to stop; `fenced` are not heard. `previous`
    are the admissions before, `admissions` those after this.
    """

    brokers: Mapping[int, BrokerRegistration]
    previous: Mapping[int, Admission]
    admissions: Mapping[int, Admission]
    arrived: frozenset[int]
    lost: frozenset[int]
    leaving: frozenset[int]
    fenced: frozenset[int] = frozenset()

    def has_restarted(self, node_id: int) -> bool:
        """Whether another process has just come: one that registered anew leads on as it did."""
        return node_id in self.arrived and not self._goes_on(node_id)

    def _goes_on(self, node_id: int) -> bool:
        """Whether the process of a broker that has just come is the one that was admitted."""
        before = self.previous.get(node_id)
        return before is not None and before.process == self.brokers[node_id].process

    def may_lack(self, node_id: int, name: TopicPartition, configs: Mapping[str, str]) -> bool:
        """Whether the end of this replica's log may have been lost just now (K2)."""
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
        """What became of the data directory of a broker that has just come; "" if nothing did."""
        broker, before = self.brokers[node_id], self.previous.get(node_id)
        if before is None or self._goes_on(node_id):
            return ""
        if before.directory_id != broker.directory_id:
            return "another data directory than before"
        if broker.run <= before.run:
            return "an older copy of its data directory"
        return ""


def compare(
    state: State,
    registered: Mapping[int, BrokerRegistration],
    unheard: frozenset[int] = frozenset(),
) -> Liveness:
    """What the registrations mean, given what the controller knew, and whom it does not hear."""
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
            node, broker.epoch, broker.directory_id, broker.run, broker.process
        )
    return Liveness(
        brokers=registered,
        previous=previous,
        admissions=admissions,
        arrived=arrived,
        lost=frozenset(state.brokers) - frozenset(registered),
        leaving=frozenset(node for node in registered if admissions[node].is_leaving),
        fenced=unheard.intersection(registered) - arrived,
    )
