"""Plays the steps of a run on the lab's machines, one after another, and notes what happens.

Rejected: the whole app over the simulated network, as the simulation has it. There fetchers ask
when they like, and a story needs each FETCH, each answer and each look at the ISR at its moment.
So the stage moves the messages: a request is handled where it goes to at the step that sends it,
and its answer (or the waiting request) is kept until a step delivers it. Time stands still but for
`wait`. After each step follows what a broker does at once by itself: waiting requests are tried
again, and what leaders wish goes to the controller and back. Every method named like a step
yields one text for each thing that happens; the state of all replicas is noted with it.

What a broker in its role cannot do (a leader fetches nothing) is told and not done, so that one
text can be played under several rules. What the scenario itself decides (a broker that is down)
is a `ScenarioError`.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minibroker.broker.replication.isr import change_of
from minibroker.broker.replication.roles import NEVER, Leader
from minibroker.broker.server.handlers.producer_id import handle as init_producer_id
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import AlterPartitionRequest
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.testing.disk import Tail
from minibroker.testing.lab.claims import SteppedStore
from minibroker.testing.lab.copying import Copying
from minibroker.testing.lab.machine import WALL_MS, Machine, Process
from minibroker.testing.lab.office import Office
from minibroker.testing.lab.producing import Producing, Sent
from minibroker.testing.lab.scenario import Run, ScenarioError, Step
from minibroker.testing.lab.strategies import RULES, Rule
from minibroker.testing.lab.transcript import Event, Line, Told
from minibroker.testing.lab.verdict import judge

Texts = Iterator[str]


class Played(NamedTuple):
    """What is told of a run."""

    lines: list[Line]
    verdict: str


class Impossible(Exception):
    """A step that the scenario itself has made impossible."""


def play(run: Run, rule: str) -> Played:
    """Play all of a run. Raises `ScenarioError` where a step cannot be played."""
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
        self._office = Office(run, self._machines)
        self._copying = {number: Copying(number, self._machines) for number in run.brokers}
        self._producing = Producing()
        self._producer_ids: dict[str, int] = {}
        self._lines: list[Line] = []

    def play(self) -> Played:
        """See `play`."""
        self.begin()
        self.play_steps()
        logs = {
            number: None if machine.process is None else machine.process.partition.log
            for number, machine in self._machines.items()
        }
        return Played(
            self._lines, judge(self._producing.acknowledged, logs, self._office.record.leader)
        )

    def begin(self) -> None:
        """Start every broker, and make the partition."""
        for machine in self._machines.values():
            self._office.register(machine.start())
        self._note(self._office.create(self.now))

    def play_steps(self) -> None:
        """Play what the run says. Raises `ScenarioError` where a step cannot be played."""
        for step in self._run.steps:
            if step.action == "tell":
                self._lines.append(Told(str(step.arguments[0])))
                continue
            try:
                self._play_step(step)
            except Impossible as impossible:
                raise ScenarioError(step.line, str(impossible)) from None

    def wall_ms(self) -> int:
        """The wall clock of every broker, in milliseconds."""
        return WALL_MS + round(self.now * 1000)

    def process(self, broker: int) -> Process:
        """The process of a broker that runs."""
        process = self._machines[broker].process
        if process is None:
            raise Impossible(f"broker {broker} is down")
        return process

    def _play_step(self, step: Step) -> None:
        action: Callable[..., Texts] = getattr(self, step.action)
        self._note(action(*step.arguments))
        self._note(self._settle())

    def _note(self, texts: Texts) -> None:
        for text in texts:
            states = tuple(machine.state for machine in self._machines.values())
            self._lines.append(Event(round(self.now, 3), text, states))

    # -- producing

    def produce(self, broker: int, value: str) -> Texts:
        """One record, with acks=all."""
        yield from self._send(broker, Sent(value, (value.encode(),)))

    def produce_by_epoch_sequence(
        self, broker: int, value: str, producer: str, epoch: int, sequence: int
    ) -> Texts:
        """The same from an idempotent producer, with its stamp."""
        stamp = ProducerStamp(self._producer_id(producer), epoch, sequence)
        yield from self._send(broker, Sent(value, (value.encode(),), stamp))

    def burst(self, broker: int, count: int) -> Texts:
        """Many records in one batch."""
        values = tuple(b"%d" % number for number in range(count))
        yield from self._send(broker, Sent(f"{count} records", values))

    def _send(self, broker: int, sent: Sent) -> Texts:
        return self._producing.send(broker, self.process(broker), sent, self.now)

    def _producer_id(self, name: str) -> int:
        if name not in self._producer_ids and not name.isdecimal():
            raise Impossible(f"producer {name} has no id: give it one with init BROKER {name}")
        return self._producer_ids[name] if name in self._producer_ids else int(name)

    def init(self, broker: int, producer: str) -> Texts:
        """A producer asks for its id."""
        answer = init_producer_id(self.process(broker).services, InitProducerIdRequest(), self.now)
        if answer.error:
            yield f"{broker} answers {producer} with {ErrorCode(answer.error).name}"
            return
        self._producer_ids[producer] = answer.producer_id
        yield f"{broker} gives {producer} the id {answer.producer_id}"

    def claim(self, broker: int) -> Texts:
        """The next step of a broker's claim of a block of producer ids."""
        yield f"{broker} {self.process(broker).block_claim.step()}"

    # -- copying

    def ask(self, broker: int) -> Texts:
        """The broker sends its next FETCH."""
        self.process(broker)
        yield self._copying[broker].ask(self.now)

    def answer(self, broker: int) -> Texts:
        """The answer to its FETCH arrives."""
        self.process(broker)
        yield self._copying[broker].take(self.now)

    def fetch(self, broker: int) -> Texts:
        """A whole round, as far as it goes: ask, unless a FETCH is under way, and take the answer
        if there is one."""
        copying = self._copying[broker]
        if not copying.is_under_way:
            yield from self.ask(broker)
            yield from self._settle()
        if copying.is_answered:
            yield from self.answer(broker)

    def copy(self, broker: int) -> Texts:
        """Whole rounds, until the leader has nothing more to say."""
        copying = self._copying[broker]
        yield from self.fetch(broker)
        while not copying.is_under_way and copying.may_ask(self.now):
            yield from self.fetch(broker)

    # -- what a broker does by timer

    def check(self, broker: int) -> Texts:
        """Look for followers that fell behind."""
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
        """Force the log to the disk."""
        process = self.process(broker)
        process.flush()
        process.replicas.note_flushed(process.partition, self.now)
        yield f"{broker} forces its log to disk"

    def checkpoint(self, broker: int) -> Texts:
        """Write the high watermark down."""
        process = self.process(broker)
        process.checkpoint()
        yield f"{broker} writes its HW {process.partition.high_watermark} to disk"

    # -- failing

    def crash_process(self, broker: int) -> Texts:
        """The process ends, as by kill -9."""
        yield from self._crash(broker, self._machines[broker].kill, "is killed")

    def crash_power_tail_kept(self, broker: int) -> Texts:
        """The machine stops, and what was not forced to the disk is there by luck."""
        power_off = self._machines[broker].power_off
        yield from self._crash(broker, lambda: power_off(Tail.KEPT), "loses power, but no data")

    def crash_power_tail_lost(self, broker: int) -> Texts:
        """The machine stops, and what was not forced to the disk is gone."""
        power_off = self._machines[broker].power_off
        what = "loses power, and what was not forced to disk"
        yield from self._crash(broker, lambda: power_off(Tail.LOST), what)

    def _crash(self, broker: int, end: Callable[[], None], what: str) -> Texts:
        self.process(broker)
        end()
        for copying in self._copying.values():
            copying.note_crash(broker)
        yield f"{broker} {what}"

    def expire(self, broker: int) -> Texts:
        """The session of a broker that is down ends."""
        if self._machines[broker].process is not None:
            raise Impossible(f"broker {broker} runs and keeps its session")
        self._office.expire(broker)
        yield f"the session of {broker} ends"
        yield from self._office.decide(self.now)

    def start(self, broker: int) -> Texts:
        """The broker comes back, and registers."""
        machine = self._machines[broker]
        if machine.process is not None:
            raise Impossible(f"broker {broker} runs already")
        self._office.register(machine.start())
        yield f"{broker} returns"
        yield from self._office.decide(self.now)
        self.process(broker).manager.forget_lost_tail()

    # -- time

    def wait(self, seconds: float) -> Texts:
        """Time passes, and nobody fetches."""
        yield from self.wait_fetching(seconds)

    def wait_fetching(self, seconds: float, *brokers: int) -> Texts:
        """Time passes. Brokers go on fetching; only rounds that bring something are told."""
        for broker in brokers:
            self.process(broker)
        end = self.now + seconds
        while True:
            for broker in brokers:
                yield from self._copy_quietly(broker)
            if self.now >= end:
                break
            due = min(end, *(each.deadline for each in self._copying.values()), self._producing.due)
            self.now = max(self.now, due)
            yield from self._expire()
            yield from self._settle()
        others = f", {' and '.join(map(str, brokers))} fetching" if brokers else ""
        yield f"{seconds:g} s pass{others}"

    def _copy_quietly(self, broker: int) -> Texts:
        copying, machine = self._copying[broker], self._machines[broker]
        while copying.is_answered or (not copying.is_under_way and copying.may_ask(self.now)):
            if not copying.is_under_way:
                copying.ask(self.now)
                yield from self._settle()
            if copying.is_answered:
                before = machine.state
                text = copying.take(self.now)
                if machine.state != before:
                    yield text

    def _expire(self) -> Texts:
        """What waited until now is answered as it stands."""
        for copying in self._copying.values():
            copying.expire(self.now)
        yield from self._producing.expire(self.now)

    # -- what follows at once

    def _settle(self) -> Texts:
        """Let the brokers do what they do by themselves, until nothing is left to do."""
        is_settled = False
        while not is_settled:
            is_settled = True
            for happenings in (self._try_waiting(), self._bring_wishes()):
                for text in happenings:
                    is_settled = False
                    yield text

    def _try_waiting(self) -> Texts:
        yield from self._producing.try_waiting(self.now)
        for copying in self._copying.values():
            yield from copying.try_waiting(self.now)

    def _bring_wishes(self) -> Texts:
        for number, machine in self._machines.items():
            process = machine.process
            while process is not None and process.wishes.waiting:
                proposal = process.wishes.waiting.pop(0)
                wanted = ",".join(map(str, proposal.pending.wanted))
                yield f"{number} asks for ISR {wanted}"
                answer = self._office.alter(
                    AlterPartitionRequest(number, process.broker_epoch, (change_of(proposal),))
                ).partitions[0]
                process.replicas.resolve(proposal, answer, self.now)
                self._office.push(self.now)
                isr = ",".join(map(str, answer.isr))
                outcome = ErrorCode(answer.error).name if answer.error else f"ISR {isr}"
                yield f"controller: {outcome}"
