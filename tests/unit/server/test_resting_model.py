"""Random scenarios of a leader on two brokers: in one partitions rest, in the other none does.

Both must give the same answers at the same times, and know the same of their followers. The broker
in which partitions rest tries a request that waits only when its watch was notified or its time is
up, as the purgatory does; the other one tries it at every step.
"""

import operator
import random
from dataclasses import replace

import pytest

from minibroker.broker.replication.purgatory import Parked, Watch
from minibroker.broker.replication.roles import IsrProposal, Leader
from minibroker.broker.server.fetch_sessions import FetchSession, FetchSessions, Wanted
from minibroker.broker.server.handlers import fetch
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionAltered, PartitionState
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, records_of, state_of

NAMES = [TopicPartition("t", number) for number in range(4)]
REPLICAS = (1, 2, 3)
CONSUMER = -1
STEPS = 300
SETTINGS = {
    "replica_lag_time_max_ms": "10000",
    "log_retention_ms": "5000",
    "min_insync_replicas": "1",
}


class WakefulSession(FetchSession):
    """A session in which no partition rests."""

    __slots__ = ()

    def rest(self, wanted: Wanted, leader: Leader) -> None:
        """It is looked at again by the next request."""


class WakefulSessions(FetchSessions):
    """The sessions of a broker in which no partition rests."""

    session_type = WakefulSession


def shown(fetched: PartitionFetched) -> tuple[object, ...]:
    """One partition's answer, with the bytes in the place of the slices."""
    records = records_of(fetched) if fetched.records else b""
    return (fetched.partition, replace(fetched, records=b""), records)


class Side:
    """One of the brokers, and what waits there."""

    def __init__(self, *, rests: bool, flush: str) -> None:
        self.rests = rests
        self.node = Node(flush=flush, **SETTINGS)
        self.parked: dict[int, Parked[FetchResponse]] = {}
        self.proposals: list[IsrProposal] = []
        if not rests:
            sessions = WakefulSessions(
                random.Random(2), 10, self.node.purgatory, self.node.services.memory
            )
            self.node.services.fetch_sessions = sessions

    def ask(self, asker: int, request: FetchRequest, now: float) -> FetchResponse | None:
        """The answer to a request, if it does not wait."""
        outcome = fetch.handle(self.node.services, request, now)
        if not isinstance(outcome, Parked):
            return outcome
        self.parked[asker] = outcome
        return outcome.attempt(now)  # as the purgatory does before it waits

    def is_woken(self, asker: int, now: float) -> bool:
        """Whether a request that waits tries again."""
        parked = self.parked[asker]
        (key,) = parked.keys
        assert isinstance(key, Watch)
        return bool(key.notified) or now >= parked.deadline()

    def try_again(self, asker: int, now: float) -> FetchResponse | None:
        """The answer to a request that waits, if it is given now."""
        parked, answer = self.parked[asker], None
        if self.is_woken(asker, now) or not self.rests:
            answer = parked.attempt(now)
            if answer is None and now >= parked.deadline():
                answer = parked.expire()
        if answer is not None:
            del self.parked[asker]
        return answer

    @property
    def resting_count(self) -> int:
        """How many followers rest, over all partitions."""
        roles = [partition.role for partition in self.node.replicas.partitions.values()]
        leaders = [role for role in roles if isinstance(role, Leader)]
        return sum(role.is_resting(replica) for role in leaders for replica in REPLICAS)

    def knowledge(self) -> list[object]:
        """What it knows of its followers."""
        found: list[object] = []
        for name in NAMES:
            partition = self.node.replicas.get(name)
            if partition is None or not isinstance(partition.role, Leader):
                continue
            role = partition.role
            found.append((name, role.isr_state.isr, role.high_watermark, partition.log.log_start))
            for replica in REPLICAS[1:]:
                known = role.progress_of(replica)
                if known is not None:
                    offsets = (known.log_end, known.log_start, known.sent_from)
                    times = (known.fetched_at, known.caught_up_at)
                    found.append((replica, *offsets, *times, known.broker_epoch))
        return found


class Asker:
    """A follower, or a consumer, with one session."""

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.session_id = self.session_epoch = 0
        self.wanted: dict[TopicPartition, PartitionFetch] = {}
        self.known: dict[TopicPartition, PartitionFetch] = {}

    def request(self, wait_ms_max: int, broker_epoch: int) -> FetchRequest:
        """What it asks next."""
        if self.session_epoch == 0:
            self.known = {}
        known, self.known = self.known, dict(self.wanted)
        request = FetchRequest(
            self.replica_id,
            wait_ms_max,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            partitions=tuple(each for name, each in self.wanted.items() if known.get(name) != each),
            forgotten=tuple(name for name in known if name not in self.wanted),
            broker_epoch=broker_epoch,
        )
        self.session_epoch += 1
        return request

    def take(self, answer: FetchResponse, rng: random.Random) -> None:
        """Go on from an answer; what is refused is given up for now."""
        if answer.error:
            self.session_epoch = 0
            return
        self.session_id = answer.session_id
        for fetched in answer.partitions:
            name = TopicPartition(fetched.topic, fetched.partition)
            asked = self.wanted.get(name)
            if asked is None:
                continue
            if fetched.error or fetched.diverging_epoch >= 0:
                del self.wanted[name]
            elif fetched.records and rng.random() < 0.9:
                headers = iterate_headers(memoryview(records_of(fetched)))
                *_, (_, last) = headers
                self.wanted[name] = replace(asked, fetch_offset=last.next_offset)


class Scenario:
    """What happens, to both brokers alike."""

    def __init__(self, seed: int, flush: str) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.wall_ms = 1_000
        self.epoch = 1  # in which the followers are registered
        self.sides = [Side(rests=True, flush=flush), Side(rests=False, flush=flush)]
        self.askers = {replica_id: Asker(replica_id) for replica_id in (2, 3, CONSUMER)}
        self.states = {name: state_of(name, isr=REPLICAS, replicas=REPLICAS) for name in NAMES}
        self.deleted: set[TopicPartition] = set()
        self.rested = 0
        for side in self.sides:
            side.node.live(*REPLICAS)
            side.node.lead(*self.states.values())

    # -- steps

    def run(self) -> None:
        """Take all steps; compare after each."""
        steps = {
            self.append: 20,
            self.fetch: 60,
            self.want: 20,
            self.fetch_alone: 3,
            self.reconnect: 2,
            self.unwant: 3,
            self.pass_time: 15,
            self.pass_long: 2,
            self.review: 4,
            self.answer_proposals: 10,
            self.change_role: 2,
            self.change_isr: 2,
            self.delete: 1,
            self.remake: 5,
            self.retain: 2,
            self.lapse: 1,
            self.register: 1,
            self.flush: 10,
        }
        for number in range(STEPS):
            [step] = self.rng.choices([*steps], [*steps.values()])
            step()
            self.try_waiting()
            first, second = (side.knowledge() for side in self.sides)
            assert first == second, f"step {number}: {step.__name__}"
            self.rested += self.sides[0].resting_count
            assert self.sides[1].resting_count == 0

    def try_waiting(self) -> None:
        """Answer the requests whose answers are due."""
        for asker in list(self.sides[0].parked):
            self.answer(asker, [side.try_again(asker, self.now) for side in self.sides])
        first, second = (
            {asker: parked.deadline() for asker, parked in side.parked.items()}
            for side in self.sides
        )
        assert first == second

    def answer(self, asker: int, answers: list[FetchResponse | None]) -> None:
        """Both sides say the same, or both wait."""
        first, second = answers
        if first is None or second is None:
            assert first is second
            return
        assert first.error == second.error
        assert first.session_id == second.session_id
        by_partition = [
            sorted(map(shown, answer.partitions), key=operator.itemgetter(0)) for answer in answers
        ]
        assert by_partition[0] == by_partition[1]
        self.askers[asker].take(first, self.rng)

    def name(self) -> TopicPartition:
        """Any partition."""
        return self.rng.choice(NAMES)

    def tell(self, state: PartitionState) -> None:
        """A role as the controller has it."""
        name = TopicPartition(state.topic, state.partition)
        self.states[name] = state
        for side in self.sides:
            side.node.apply(state, now=self.now)

    # -- producers and the disk

    def append(self) -> None:
        """A producer's batch, or several."""
        name, count = self.name(), self.rng.choice((1, 1, 3))
        if name in self.deleted or self.states[name].leader != 1:
            return
        for side in self.sides:
            for _ in range(count):
                side.node.append(name=name, now=self.now)

    def flush(self) -> None:
        """A log becomes durable."""
        name = self.name()
        for side in self.sides:
            partition = side.node.replicas.get(name)
            if partition is not None:
                partition.log.finish_flush(partition.log.start_flush())
                side.node.replicas.on_flushed(partition, self.now)

    def retain(self) -> None:
        """Records become too old."""
        self.wall_ms += self.rng.choice((10, 10_000))
        for side in self.sides:
            side.node.wall_time_ms = self.wall_ms
            without_pause(side.node.replicas.apply_retention(self.wall_ms))

    # -- askers

    def fetch(self) -> None:
        """An asker sends its next request, unless one waits."""
        replica_id = self.rng.choice([*self.askers])
        if replica_id in self.sides[0].parked:
            return
        asker = self.askers[replica_id]
        epoch = self.epoch - (self.rng.random() < 0.03)
        request = asker.request(self.rng.choice((0, 500, 500)), epoch)
        self.answer(replica_id, [side.ask(replica_id, request, self.now) for side in self.sides])

    def want(self) -> None:
        """An asker wants one partition more, or from elsewhere."""
        asker, name = self.askers[self.rng.choice([*self.askers])], self.name()
        state, log = self.states[name], self.sides[0].node.replicas.get(name)
        end = 0 if log is None else log.log.log_end
        offset = self.rng.choice((*[end] * 12, max(0, end - 1), end + 1, 0))
        epoch = state.leader_epoch - (self.rng.random() < 0.05)
        asked = PartitionFetch(*name, offset, leader_epoch=epoch, log_start=0)
        if self.rng.random() < 0.2:
            asked = replace(asked, last_fetched_epoch=max(0, epoch - 1))
        asker.wanted[name] = asked

    def unwant(self) -> None:
        """An asker gives one up."""
        self.askers[self.rng.choice([*self.askers])].wanted.pop(self.name(), None)

    def fetch_alone(self) -> None:
        """A follower fetches without its session, perhaps from further back."""
        replica_id, name = self.rng.choice((2, 3)), self.name()
        asked = self.askers[replica_id].wanted.get(name)
        if asked is not None:
            offset = max(0, asked.fetch_offset - self.rng.choice((0, 1)))
            request = FetchRequest(
                replica_id,
                0,
                partitions=(replace(asked, fetch_offset=offset),),
                broker_epoch=self.epoch,
            )
            answers = [fetch.handle(side.node.services, request, self.now) for side in self.sides]
            first, second = ([*map(shown, answer.partitions)] for answer in answers)
            assert first == second

    def reconnect(self) -> None:
        """A connection breaks: a request that waits is lost, and a session is opened anew."""
        asker = self.rng.choice([*self.askers])
        for side in self.sides:
            side.parked.pop(asker, None)
        self.askers[asker].session_epoch = 0

    # -- time

    def pass_time(self) -> None:
        """A little."""
        self.now += self.rng.choice((0.005, 0.01, 0.2, 0.5, 1.0))

    def pass_long(self) -> None:
        """Longer than a follower may be behind; some askers too long for their sessions."""
        self.now += self.rng.choice((11.0, 130.0))

    def review(self) -> None:
        """The timer of in-sync sets."""
        for side in self.sides:
            without_pause(side.node.replicas.review_isrs(self.now))

    # -- the controller

    def answer_proposals(self) -> None:
        """The controller grants what leaders want, or not."""
        for side in self.sides:
            wanted = side.node.isr_proposals.next_batch_nowait()
            side.proposals = sorted(wanted, key=operator.attrgetter("partition"))
        for pair in zip(*(side.proposals for side in self.sides), strict=True):
            first, second = pair
            assert first.pending.proposed == second.pending.proposed
            assert first._replace(pending=None) == second._replace(pending=None)
            name = TopicPartition(first.topic, first.partition)
            state = self.states[name]
            error = self.rng.choice((0, 0, 0, ErrorCode.INELIGIBLE_REPLICA))
            epochs = (state.leader_epoch, state.partition_epoch)
            if epochs != (first.leader_epoch, first.partition_epoch):
                error = ErrorCode.INVALID_UPDATE_VERSION
            elif not error:
                epochs = (epochs[0], epochs[1] + 1)
                self.states[name] = replace(
                    state, isr=first.pending.proposed, partition_epoch=epochs[1]
                )
            altered = PartitionAltered(*name, error, 1, *epochs, first.pending.proposed)
            for side, proposal in zip(self.sides, pair, strict=True):
                side.node.replicas.resolve(proposal, altered, self.now)

    def change_role(self) -> None:
        """Another term: of this broker, or of another one."""
        state = self.states[self.name()]
        leader = self.rng.choice((1, 1, 2))
        epochs = {"leader_epoch": state.leader_epoch + self.rng.choice((1, 2))}
        isr = (
            leader,
            *(each for each in state.replicas if each != leader and self.rng.random() < 0.7),
        )
        epochs["partition_epoch"] = state.partition_epoch + 1
        self.tell(replace(state, leader=leader, isr=isr, **epochs))

    def change_isr(self) -> None:
        """The controller has changed an in-sync set, or the assignment, by itself."""
        state = self.states[self.name()]
        replicas = self.rng.choice((REPLICAS, REPLICAS, (1, 2)))
        isr = tuple(
            each for each in replicas if each == state.leader or self.rng.random() < 0.7
        ) or (1,)
        self.tell(
            replace(state, isr=isr, replicas=replicas, partition_epoch=state.partition_epoch + 1)
        )

    def delete(self) -> None:
        """A partition is deleted."""
        name = self.name()
        self.deleted.add(name)
        for side in self.sides:
            side.node.stop(self.states[name], delete=True, leader_epoch=-2)

    def remake(self) -> None:
        """What was deleted is made anew."""
        for name in self.deleted:
            self.tell(
                replace(
                    self.states[name],
                    leader=1,
                    isr=REPLICAS,
                    replicas=REPLICAS,
                    leader_epoch=self.states[name].leader_epoch + 1,
                )
            )
        self.deleted.clear()

    def lapse(self) -> None:
        """The broker's session with the cluster becomes doubtful, or sure again."""
        is_over = self.rng.random() < 0.3
        for side in self.sides:
            side.node.controller.is_session_over = is_over

    def register(self) -> None:
        """The followers register anew."""
        self.epoch += 1
        for side in self.sides:
            side.node.live(*REPLICAS, epoch=self.epoch)


@pytest.mark.parametrize("flush", ["never", "always"])
@pytest.mark.parametrize("seed", range(20))
def test_who_rests_is_as_who_does_not(seed: int, flush: str) -> None:
    """Repeat: `python -m pytest tests/unit/server/test_resting_model.py -k SEED-FLUSH`."""
    scenario = Scenario(seed, flush)
    scenario.run()
    assert scenario.rested
