"""The matrix of cut wires: who serves what, after how long.

    python -m tests.sim.cut_wires                  # sessions of 1 s and lag times of 10 s
    python -m tests.sim.cut_wires --session-s 6    # as brokers have them with an etcd

Three brokers have one partition of three replicas, two of which must be in sync. One wire is broken
for a while: between two brokers, between a broker and the store, between a broker and the clients,
or between a broker and both others; cut, or held in one direction or in both. A producer sends one
record with acks=all after the other, and a consumer reads them. `measure` says how long the longest
of them took, and who leads and governs just before the wire is healed. The command prints a table:
of each wire the longest times, however it is broken, where the leader is the controller, and where
another broker is.
"""

import argparse
import logging
from collections.abc import Iterator
from functools import partial
from itertools import combinations, groupby
from typing import Final, NamedTuple

import trio

from minibroker.client import Consumer
from minibroker.testing.cluster import SimulatedBroker, simulate
from tests.sim.trial import SEED, TOPIC, Trial, open_trial

STORE: Final = "store"
CLIENTS: Final = "clients"
BROKERS: Final = "both others"
CLIENT_HOSTS: Final = ("producer", "consumer")
ROLES: Final = ("leader", "other", "third")
# In the direction in which the pair is named, the other way round, or both. A wire that is cut
# refuses connections; one that is held loses all that is sent, and says nothing.
HOWS: Final = ("cut", "hold there", "hold back", "hold both")
PAUSE_S: Final = 0.2
REQUEST_TIMEOUT_MS: Final = 1000


class Roles(NamedTuple):
    """Three brokers by what they are for the partition."""

    leader: SimulatedBroker
    other: SimulatedBroker  # the controller, unless the leader is
    third: SimulatedBroker


class Cut(NamedTuple):
    """A wire, and what becomes of it."""

    one: str
    other: str
    how: str

    def __str__(self) -> str:
        return " ".join(self)


class Times(NamedTuple):
    """What brokers are set to, and how long a wire is broken. In seconds."""

    session_s: float = 1.0
    lag_s: float = 10.0
    lasts_s: float = 8.0

    @property
    def fence_s(self) -> float:
        """After how long the controller fences a broker: a session and four heartbeats."""
        return 2 * self.session_s

    def settings(self) -> dict[str, str]:
        """As brokers are told them."""
        return {
            "broker_session_timeout_ms": f"{self.session_s * 1000:.0f}",
            "broker_heartbeat_interval_ms": f"{self.session_s * 250:.0f}",
            "replica_lag_time_max_ms": f"{self.lag_s * 1000:.0f}",
        }


class Served(NamedTuple):
    """The longest that a record waited from `send` to its acknowledgement, and from there until it
    was shown, in seconds; who leads and who governs before it ends."""

    acknowledged_s: float
    shown_s: float
    leader: str
    controller: str


def cuts() -> Iterator[Cut]:
    """All of them."""
    for one, other in combinations(ROLES, 2):
        for how in HOWS:
            yield Cut(one, other, how)
    for place in (STORE, CLIENTS, BROKERS):
        for one in ROLES:
            for how in HOWS:
                yield Cut(one, place, how)


async def obey_roles(trial: Trial, *, is_controller: bool) -> Roles:
    """Have a leader that is the controller, or is not."""
    while (trial.leader.node_id == await trial.controller()) != is_controller:
        await trial.leader.stop()
        await trial.cluster.start()
        await trial.settle()
    controller = await trial.controller()
    others = sorted(trial.followers, key=lambda each: each.node_id != controller)
    return Roles(trial.leader, *others)


def inflict(trial: Trial, roles: Roles, cut: Cut) -> None:
    """Break the wire."""
    one: SimulatedBroker = getattr(roles, cut.one)
    if cut.other == STORE:
        link = one.link
        breaks = (link.cut, link.hold_requests, link.hold_answers, link.hold)
        breaks[HOWS.index(cut.how)]()
    elif cut.other == CLIENTS:
        for host in CLIENT_HOSTS:
            _break_wire(trial, one.name, host, cut.how)
    elif cut.other == BROKERS:
        for each in roles:
            if each is not one:
                _break_wire(trial, one.name, each.name, cut.how)
    else:
        _break_wire(trial, one.name, getattr(roles, cut.other).name, cut.how)


def _break_wire(trial: Trial, one: str, other: str, how: str) -> None:
    network = trial.world.network
    if how == "cut":
        network.cut(one, other)
    if how in ("hold there", "hold both"):
        network.hold(one, other)
    if how in ("hold back", "hold both"):
        network.hold(other, one)


def heal(trial: Trial) -> None:
    """Mend all wires."""
    trial.world.network.heal()
    for broker in trial.cluster.brokers:
        broker.link.heal()


async def measure(cut: Cut, *, is_controller: bool, times: Times) -> Served:
    """Break a wire for a while, and see."""
    async with open_trial(**times.settings()) as trial:
        await trial.send(3)
        roles = await obey_roles(trial, is_controller=is_controller)
        acknowledged: dict[bytes, float] = {}
        waits, shown_s = [0.0], [0.0]
        ruling: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, trial, acknowledged, shown_s)
            await trio.sleep(1)
            inflict(trial, roles, cut)
            healed_at = trio.current_time() + times.lasts_s
            nursery.start_soon(_heal_at, trial, healed_at, ruling)
            while trio.current_time() < healed_at:
                sent_at = trio.current_time()
                await trial.send(1)
                now = trio.current_time()
                waits.append(now - sent_at)
                acknowledged[max(trial.acked.items())[1]] = now
                await trio.sleep(PAUSE_S)
            with trio.fail_after(60):
                while acknowledged:  # noqa: ASYNC110 -- the reader empties it
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        await trial.settle()
        named = {each.node_id: name for name, each in roles._asdict().items()}
        leader, controller = (named.get(node, "nobody") for node in ruling)
        return Served(max(waits), max(shown_s), leader, controller)


async def _heal_at(trial: Trial, moment: float, ruling: list[int]) -> None:
    """Mend all wires then, and note who leads and who governs before."""
    await trio.sleep_until(moment)
    ruling += [(await trial.agreed()).leader, await trial.controller()]
    heal(trial)


async def _read(trial: Trial, acknowledged: dict[bytes, float], shown_s: list[float]) -> None:
    """Note how long after its acknowledgement each record is shown."""
    async with Consumer(
        trial.cluster.address,
        auto_offset_reset="earliest",
        seams=trial.world.seams("consumer"),
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    ) as consumer:
        await consumer.assign_topics(TOPIC)
        seen: set[bytes] = set()
        while True:
            seen.update(bytes(record.value or b"") for record in await consumer.poll(0.05))
            now = trio.current_time()
            shown = seen.intersection(acknowledged)
            shown_s += [now - acknowledged.pop(value) for value in shown]


# -- the table


def table(times: Times) -> Iterator[str]:
    """Lines of Markdown: of each wire the longest times, however it is broken."""
    yield "| broken wire | if the leader governs | if another broker governs |"
    yield "|---|---|---|"
    for wire, some in groupby(cuts(), key=lambda cut: f"{cut.one} - {cut.other}"):
        hows = list(some)
        cells = [_cell(hows, times, is_controller=flag) for flag in (True, False)]
        yield f"| {wire} | {' | '.join(cells)} |"


def _cell(hows: list[Cut], times: Times, *, is_controller: bool) -> str:
    served = [
        simulate(partial(measure, cut, is_controller=is_controller, times=times), SEED)
        for cut in hows
    ]
    leaders = " or ".join(sorted({each.leader for each in served}))
    governors = " or ".join(sorted({each.controller for each in served}))
    acknowledged_s = max(each.acknowledged_s for each in served)
    shown_s = max(each.shown_s for each in served)
    return (
        f"acknowledged in {acknowledged_s:.1f} s, shown in {shown_s:.1f} s;"
        f" {leaders} leads, {governors} governs"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--session-s", type=float, default=1.0, help="of brokers [1]")
    parser.add_argument("--lag-s", type=float, default=10.0, help="of followers [10]")
    given = parser.parse_args()
    lasts_s = max(8.0, 6 * given.session_s, 2 * given.lag_s)
    logging.disable(logging.CRITICAL)
    for line in table(Times(given.session_s, given.lag_s, lasts_s)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
