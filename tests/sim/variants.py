"""The scenario of `cluster.py`, in which the seed also draws what that one keeps constant.

* The topic that stays has two or three replicas, and one or two of them must be in sync.
* Connections break and heal repeatedly, beside all other faults.
* One seed in ten has some hundred more topics with records. The checkers judge them, too.
"""

from typing import NamedTuple

import trio

from minibroker.client.admin import NewTopic
from minibroker.testing.cluster import SimulatedCluster, SimulatedWorld
from tests.sim.cluster import Scenario
from tests.sim.faults import Chaos
from tests.sim.sights import Watcher
from tests.sim.workload import TOPIC

CROWDED = 0.1  # of all seeds
CROWDS = (100, 200)
FLAP_S = (0.05, 1.5)  # how long a wire is up, or down
FLAPPING_S = (1.0, 8.0)


class Variant(NamedTuple):
    """What is drawn. `crowd` is how many topics there are beside the usual ones."""

    replicas: int
    min_insync_replicas: int
    crowd: int


def draw_variant(world: SimulatedWorld) -> Variant:
    """The one of a world's seed."""
    rng = world.rng("variant")
    crowd = rng.choice(CROWDS) if rng.random() < CROWDED else 0
    return Variant(rng.choice((2, 3)), rng.choice((1, 2)), crowd)


class FlappingChaos(Chaos):
    """All faults of a cluster, and wires that go up and down."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, watcher: Watcher, is_flushed: bool
    ) -> None:
        super().__init__(world, cluster, watcher, is_flushed)
        self._faults |= {"flap": (4, self._flap)}

    async def _flap(self) -> None:
        wire = self.targets.draw_wire()
        if wire is None:
            return
        network, is_cut = self._world.network, self._rng.random() < 0.5
        async with self.targets.take(frozenset(wire), f"flap {wire}"):
            with trio.move_on_after(self._rng.uniform(*FLAPPING_S)):
                while True:
                    if is_cut:
                        network.cut(*wire)
                    else:
                        network.hold(*wire)
                    await trio.sleep(self._rng.uniform(*FLAP_S))
                    network.mend(*wire)
                    network.release(*wire)
                    await trio.sleep(self._rng.uniform(*FLAP_S))
            network.mend(*wire)
            network.release(*wire)


class VariantScenario(Scenario):
    """See the head of this module. The topics that are deleted meanwhile have two members in sync
    as ever, or a leader that is cut off acknowledges records of a former one
    (docs/guarantees.md)."""

    chaos_type = FlappingChaos

    def draw_topic(self, world: SimulatedWorld, partitions: int) -> NewTopic:
        """The topic that stays."""
        return self._topic(TOPIC, world, partitions)

    def draw_crowd(self, world: SimulatedWorld) -> tuple[NewTopic, ...]:
        """The topics beside it."""
        numbers = range(draw_variant(world).crowd)
        return tuple(self._topic(f"crowd-{number}", world, 1) for number in numbers)

    def _topic(self, name: str, world: SimulatedWorld, partitions: int) -> NewTopic:
        variant = draw_variant(world)
        configs = {"min.insync.replicas": str(variant.min_insync_replicas)}
        return NewTopic(name, partitions, variant.replicas, configs)
