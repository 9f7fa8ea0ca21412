"""Plays the steps of a run on the lab's machines, one after another, and records what happens.

Rejected: the whole app over the simulated network, as the simulation has it. There fetchers ask
when they like, and a scenario needs each FETCH, each answer and each check of the ISR at its
moment. So the stage moves the messages: the receiver handles a request at the step that sends it,
and its answer (or the waiting request) is kept until a step delivers it. Time passes only in
`wait`. After each step the stage does what brokers do at once by themselves: it tries waiting
requests again, and passes leaders' proposals to the controller and the orders back. Every method
with the name of a step yields one text for each thing that happens; the state of all replicas is
recorded with it.

A step that a broker cannot do in its role (a leader fetches nothing) is reported and not done, so
that one text can be played under several rules. A step that the scenario itself makes impossible
(at a broker that is down) is a `ScenarioError`.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minibroker.broker.replication.isr_proposals import change_of
from minibroker.broker.replication.roles import NEVER, Leader
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import AlterPartitionRequest
from minibroker.testing.disk import Tail
from minibroker.testing.lab.claims import SteppedStore
from minibroker.testing.lab.clients import READS, Clients
from minibroker.testing.lab.controller import SteppedController
from minibroker.testing.lab.follower_fetch import FollowerFetcher
from minibroker.testing.lab.machine import PARTITION, WALL_MS, ImpossibleStep, Machine, Process
from minibroker.testing.lab.scenario import Run, ScenarioError, Step
from minibroker.testing.lab.strategies import RULES, Rule
from minibroker.testing.lab.transcript import Comment, Event, Line

Texts = Iterator[str]


class Played(NamedTuple):
    """The report of a run."""

    lines: list[Line]
    verdict: str


def play(run: Run, rule: str) -> Played:
    """Play all of a run. Raises `ScenarioError` if a step cannot be played."""
    return Stage(run, RULES[rule](run.settings)).play()


class Stage:
    """See the head of this module. `now` is the virtual time in seconds."""

    def __init__(self, run: Run, rule: Rule) -> None:
        self.now = 0.0
        self._run = run
        store = SteppedStore(compares=rule.store_compares)
        self._machines = {
            number: Machine(number, run.broker_settings, rule, store, self.wall_ms)
            for number in run.brokers
        }
        self._controller = SteppedController(run, self._machines)
        self._fetchers = {number: FollowerFetcher(number, self._machines) for number in run.brokers}
        coordinator = rule.coordinator_type()
        self._clients = Clients(self.process, lambda: self.now, self.wall_ms, coordinator)
        self._has_consumer = any(step.action in READS for step in run.steps)
        self._busy: set[int] = set()
        self._lines: list[Line] = []

    def play(self) -> Played:
        """See `play`."""
        self.begin()
        self.play_steps()
        logs = {
            number: None if machine.process is None else machine.process.manager.get(PARTITION)
            for number, machine in self._machines.items()
        }
        leader = self._controller.record.leader
        return Played(self._lines, self._clients.verdict(logs, leader))

    def begin(self) -> None:
        """Start every broker, and create the partition."""
        for machine in self._machines.values():
            self._controller.register(machine.start())
        self._record(self._controller.create(self.now))

    def play_steps(self) -> None:
        """Play the run's steps. Raises `ScenarioError` if a step cannot be played."""
        for step in self._run.steps:
            if step.action == "comment":
                self._lines.append(Comment(str(step.arguments[0])))
                continue
            try:
                self._play_step(step)
            except ImpossibleStep as impossible:
                raise ScenarioError(step.line, str(impossible)) from None

    def wall_ms(self) -> int:
        """The wall clock of every broker, in milliseconds."""
        return WALL_MS + round(self.now * 1000)

    def process(self, broker: int) -> Process:
        """Return the process of a running broker."""
        process = self._machines[broker].process
        if process is None:
            raise ImpossibleStep(f"broker {broker} is down")
        return process

    def _play_step(self, step: Step) -> None:
        players = (self, self._clients, self._clients.transactions)
        player = next(each for each in players if hasattr(each, step.action))
        action: Callable[..., Texts] = getattr(player, step.action)
        self._record(action(*step.arguments))
        self._record(self._run_until_quiet())

    def _record(self, texts: Texts) -> None:
        for text in texts:
            states = tuple(machine.state for machine in self._machines.values())
            seen = self._clients.seen if self._has_consumer else ""
            self._lines.append(Event(round(self.now, 3), text, states, seen))

    # -- copying

    def ask(self, broker: int) -> Texts:
        """Have a broker send its next FETCH."""
        self.process(broker)
        yield self._fetchers[broker].ask(self.now)

    def answer(self, broker: int) -> Texts:
        """Deliver the answer to a broker's FETCH."""
        self.process(broker)
        yield self._fetchers[broker].receive(self.now)

    def fetch(self, broker: int) -> Texts:
        """Do a whole round, as far as possible: ask, unless a FETCH is under way, and deliver the
        answer if there is one."""
        fetcher = self._fetchers[broker]
        if not fetcher.is_in_flight:
            yield from self.ask(broker)
            yield from self._run_until_quiet()
        if fetcher.is_answered:
            yield from self.answer(broker)

    def copy(self, broker: int) -> Texts:
        """Do whole rounds, until the leader has nothing more to send."""
        fetcher = self._fetchers[broker]
        yield from self.fetch(broker)
        while not fetcher.is_in_flight and fetcher.may_ask(self.now):
            yield from self.fetch(broker)

    # -- what a broker does by timer

    def check(self, broker: int) -> Texts:
        """Have a leader check for followers that fell behind."""
        process = self.process(broker)
        lags = ", ".join(self._lags(process)) or "nobody lags"
        without_pause(process.replicas.review_isrs(self.now))
        yield f"{broker} looks at its ISR: {lags}"

    def _lags(self, process: Process) -> Texts:
        role, log_end = process.partition.role, process.partition.log.log_end
        lag_s_max = process.services.config.replica_lag_time_max_ms / 1000
        for other in self._machines:
            progress = role.progress_of(other) if isinstance(role, Leader) else None
            if progress is None:
                continue
            if progress.log_end < log_end:
                since_s = round(self.now - progress.caught_up_at, 3)
                since = f"{since_s:g} s" if progress.caught_up_at != NEVER else "ever"
                yield f"{other} lacks {log_end - max(0, progress.log_end)} since {since}"
            silent_s = round(self.now - progress.fetched_at, 3)
            if lag_s_max < silent_s < math.inf:
                yield f"{other} has sent no FETCH for {silent_s:g} s"

    def flush(self, broker: int) -> Texts:
        """Sync a log to the disk."""
        process = self.process(broker)
        process.flush()
        process.replicas.on_flushed(process.partition, self.now)
        yield f"{broker} forces its log to disk"

    def checkpoint(self, broker: int) -> Texts:
        """Write a high watermark's checkpoint."""
        process = self.process(broker)
        process.checkpoint()
        yield f"{broker} writes its HW {process.partition.high_watermark} to disk"

    def retain(self, broker: int) -> Texts:
        """Delete segments that are too old."""
        process = self.process(broker)
        count = process.apply_retention()
        segments = f"{count} segment{'' if count == 1 else 's'}"
        start = process.partition.log.log_start
        yield f"{broker} deletes {segments}; its log starts at {start}"

    def hold(self, broker: int) -> Texts:
        """Make a broker busy: requests that wait there are not tried."""
        self.process(broker)
        self._busy.add(broker)
        yield f"{broker} is busy; requests that wait there go on waiting"

    def release(self, broker: int) -> Texts:
        """Let a broker try the requests that wait there."""
        self._busy.discard(broker)
        yield f"{broker} looks at the requests that wait"

    # -- failing

    def crash_process(self, broker: int) -> Texts:
        """End a process, as kill -9 does."""
        yield from self._crash(broker, self._machines[broker].kill, "is killed")

    def crash_power_tail_kept(self, broker: int) -> Texts:
        """Stop a machine; its unsynced bytes happen to be on the disk."""
        power_off = self._machines[broker].power_off
        yield from self._crash(broker, lambda: power_off(Tail.KEPT), "loses power, but no data")

    def crash_power_tail_lost(self, broker: int) -> Texts:
        """Stop a machine; its unsynced bytes are lost."""
        power_off = self._machines[broker].power_off
        what = "loses power, and what was not forced to disk"
        yield from self._crash(broker, lambda: power_off(Tail.LOST), what)

    def crash_disk_lost(self, broker: int) -> Texts:
        """Stop a machine; it comes back with an empty disk."""
        yield from self._crash(broker, self._machines[broker].lose_disk, "loses its disk")

    def _crash(self, broker: int, end: Callable[[], None], what: str) -> Texts:
        self.process(broker)
        end()
        self._busy.discard(broker)
        for fetcher in self._fetchers.values():
            fetcher.on_crash(broker)
        yield f"{broker} {what}"

    def expire(self, broker: int) -> Texts:
        """End the session of a broker that is down."""
        if self._machines[broker].process is not None:
            raise ImpossibleStep(f"broker {broker} runs and keeps its session")
        self._controller.expire(broker)
        yield f"the session of {broker} ends"
        yield from self._controller.decide(self.now)

    def start(self, broker: int) -> Texts:
        """Start a broker, which registers."""
        machine = self._machines[broker]
        if machine.process is not None:
            raise ImpossibleStep(f"broker {broker} runs already")
        self._controller.register(machine.start())
        yield f"{broker} returns"
        yield from self._controller.decide(self.now)
        self.process(broker).manager.forget_lost_tail()

    # -- orders of a controller

    def replace_controller(self) -> Texts:
        """Make another broker the controller."""
        yield from self._controller.replace_controller(self.now)

    def order_leader_epoch_controller(
        self, broker: int, leader: int, epoch: int, controller: int
    ) -> Texts:
        """Deliver a LEADER_AND_ISR with these epochs, early or late."""
        self.process(broker)
        yield self._controller.order_leader(broker, leader, epoch, controller, self.now)

    def stop_replica_epoch_controller(self, broker: int, epoch: int, controller: int) -> Texts:
        """Deliver a STOP_REPLICA with these epochs."""
        self.process(broker)
        yield self._controller.stop_replica(broker, epoch, controller, self.now, delete=False)

    def stop_replica_epoch_controller_delete(
        self, broker: int, epoch: int, controller: int
    ) -> Texts:
        """Deliver one that also deletes the replica."""
        self.process(broker)
        yield self._controller.stop_replica(broker, epoch, controller, self.now, delete=True)

    # -- time

    def wait(self, seconds: float) -> Texts:
        """Let time pass; no broker fetches."""
        yield from self.wait_fetching(seconds)

    def wait_fetching(self, seconds: float, *brokers: int) -> Texts:
        """Let time pass while brokers fetch; only rounds that change something are reported."""
        for broker in brokers:
            self.process(broker)
        end = self.now + seconds
        while True:
            for broker in brokers:
                yield from self._copy_quietly(broker)
            if self.now >= end:
                break
            fetches = (each.deadline for each in self._fetchers.values())
            self.now = max(self.now, min(end, self._clients.deadline, *fetches))
            yield from self._expire(brokers)
            yield from self._run_until_quiet()
        for machine in self._machines.values():
            if machine.process is not None:
                machine.process.expire_producers()
        others = f", {' and '.join(map(str, brokers))} fetching" if brokers else ""
        yield f"{seconds:g} s pass{others}"

    def _copy_quietly(self, broker: int) -> Texts:
        fetcher, machine = self._fetchers[broker], self._machines[broker]
        while fetcher.is_answered or (not fetcher.is_in_flight and fetcher.may_ask(self.now)):
            if not fetcher.is_in_flight:
                fetcher.ask(self.now)
                yield from self._run_until_quiet()
            if fetcher.is_answered:
                before = machine.state
                text = fetcher.receive(self.now)
                if machine.state != before:
                    yield text

    def _expire(self, fetching: tuple[int, ...]) -> Texts:
        """Answer the requests whose time is up. Of fetching brokers only answers that change
        something are reported."""
        for broker, fetcher in self._fetchers.items():
            texts = list(fetcher.expire(self.now))
            yield from [] if broker in fetching else texts
        yield from self._clients.expire()

    # -- what follows at once

    def _run_until_quiet(self) -> Texts:
        """Let the brokers do what they do by themselves, until nothing is left to do."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for happenings in (self._try_waiting(), self._deliver_proposals()):
                for text in happenings:
                    is_quiet = False
                    yield text

    def _try_waiting(self) -> Texts:
        yield from self._clients.try_producers(self._busy)
        yield from self._clients.transactions.try_markers(self._busy)
        for fetcher in self._fetchers.values():
            if fetcher.leader not in self._busy:
                yield from fetcher.try_waiting(self.now)
        yield from self._clients.try_consumer(self._busy)

    def _deliver_proposals(self) -> Texts:
        for number, machine in self._machines.items():
            process = machine.process
            while process is not None and process.proposals.waiting:
                proposal = process.proposals.waiting.pop(0)
                wanted = ",".join(map(str, proposal.pending.proposed))
                yield f"{number} asks for ISR {wanted}"
                answer = self._controller.alter(
                    AlterPartitionRequest(number, process.broker_epoch, (change_of(proposal),))
                ).partitions[0]
                process.replicas.resolve(proposal, answer, self.now)
                self._controller.push(self.now)
                isr = ",".join(map(str, answer.isr))
                outcome = ErrorCode(answer.error).name if answer.error else f"ISR {isr}"
                yield f"controller: {outcome}"
