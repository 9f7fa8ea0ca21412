"""One transactional id among producers, coordinators and logs that fail by chance.

The coordinator here is the real state machine and the real table, over a list in place of a log:
what is appended is committed later, or lost with its coordinator. Producers follow the protocol,
lose answers, ask again, and some go on after they were replaced. What the world checks is naive: it
looks at the committed records one after the other, and at the answers.
"""

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from minibroker.broker.transactions.records import decode, encode_key, encode_value
from minibroker.broker.transactions.states import DECIDED, TRANSITIONS, State
from minibroker.broker.transactions.table import TransactionTable
from minibroker.broker.transactions.transaction import (
    NO_PRODUCER,
    Decision,
    Producer,
    Transaction,
    abort_to_go_on,
    add_partitions,
    begin_session,
    complete,
    end,
)
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, SECOND_PROTOCOL
from minibroker.protocol.types import TopicPartition

ID = "x"
TIMEOUT_MS = 60_000
LOST = object()  # an answer that did not arrive


@dataclass(eq=False)
class Client:
    """A producer as its application sees it. `part` is a partition of its open transaction alone;
    `is_ending` the outcome that it asks for until it has an answer."""

    version: int
    session: int = 0  # the number of the INIT whose answer it has
    producer: Producer = NO_PRODUCER
    part: TopicPartition | None = None
    is_added: bool = False
    is_ending: bool | None = None
    is_over: bool = False
    errors: list[ErrorCode] = field(default_factory=list)


class _Waiting(NamedTuple):
    """A request whose record is appended: its answer comes when that is committed."""

    offset: int
    decision: Decision
    client: Client
    what: str


class World:
    """See the head of this module."""

    def __init__(self, seed: int, first_epoch: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.fresh_id = 1
        self.log: list[Transaction | None] = []
        self.sessions: list[int | None] = []  # of each record that begins one, its number
        self.committed = 0
        self.table = TransactionTable()
        self.waiting: list[_Waiting] = []
        self.clients: list[Client] = []
        self.parts = 0
        self.session = 0  # the number of the last committed INIT
        self.begun = 0
        self.transitions: set[tuple[State, State]] = set()
        self.ended: dict[TopicPartition, bool] = {}  # by part, whether it was committed
        self.epochs: dict[int, int] = {}  # the highest of each producer id
        if first_epoch is not None:
            self.append(Transaction(self.take_id(), first_epoch, TIMEOUT_MS))
            self.commit()

    # -- the coordinator

    @property
    def present(self) -> Transaction | None:
        return self.table.get(ID)

    def take_id(self) -> int:
        self.fresh_id += 1
        return self.fresh_id

    def append(self, value: Transaction | None, session: int | None = None) -> int:
        assert not self.table.is_pending(ID), "one record at a time"
        self.log.append(value)
        self.sessions.append(session)
        offset = len(self.log) - 1
        self.table.add_pending(ID, offset)
        return offset

    def commit(self) -> None:
        """All that is appended is committed, replayed and answered."""
        while self.committed < len(self.log):
            offset, value = self.committed, self.log[self.committed]
            self.check(self.present, value, offset)
            decoded = decode(encode_key(ID), None if value is None else encode_value(value))
            assert decoded == (ID, value), "a record is read as it was written"
            self.table.replay(offset, ID, value)
            self.committed += 1
        answered, self.waiting = self.waiting, []
        for item in answered:
            is_lost = self.rng.random() < 0.2
            self.answer(item.client, item.what, item.decision, is_lost=is_lost)

    def fail_over(self, *, is_kept: bool) -> None:
        """Another coordinator takes over, with or without what was not committed."""
        if not is_kept:
            del self.log[self.committed :], self.sessions[self.committed :]
        for item in self.waiting:
            self.answer(item.client, item.what, item.decision, is_lost=True)
        self.waiting = []
        table = TransactionTable()
        for offset, value in enumerate(self.log[: self.committed]):
            table.replay(offset, ID, value)
        self.table = table
        self.commit()

    def finish(self) -> None:
        """All markers of a decided transaction are written."""
        if self.present is not None and self.present.state in DECIDED and not self.is_pending:
            self.append(complete(self.present, self.now_ms))

    def abort_late(self) -> None:
        if self.present is not None and self.present.is_late(self.now_ms) and not self.is_pending:
            self.append(abort_to_go_on(self.present, self.now_ms))

    def expire(self) -> None:
        present = self.present
        if present is not None and present.is_expired(self.now_ms) and not self.is_pending:
            self.append(None)

    @property
    def is_pending(self) -> bool:
        return self.table.is_pending(ID)

    # -- producers

    def ask(self, client: Client, what: str) -> None:
        """Have the coordinator decide about a request of a producer."""
        if any(item.client is client for item in self.waiting):
            return None
        if self.is_pending:
            return self.answer(client, what, Decision(ErrorCode.CONCURRENT_TRANSACTIONS))
        present, session = self.present, None
        if what == "init":
            expected = None if client.producer == NO_PRODUCER else client.producer
            decision = begin_session(present, expected, TIMEOUT_MS, self.take_id(), self.now_ms)
            if decision.write is not None and not decision.error:
                self.begun += 1
                session = self.begun
        elif what in ("add", "more"):
            assert client.part is not None
            if what == "more":
                self.parts += 1
            part = client.part if what == "add" else TopicPartition("more", self.parts)
            args = client.producer, (part,), client.version, self.now_ms
            decision = add_partitions(present, *args)
        else:
            assert client.is_ending is not None
            commit = client.is_ending
            args = client.producer, client.version, self.take_id(), self.now_ms
            decision = end(present, *args, is_commit=commit)
            if decision.write is not None and commit:
                assert client.session >= self.session, "a fenced producer commits"
        if decision.write is None:
            self.answer(client, what, decision, is_lost=self.rng.random() < 0.1)
        else:
            offset = self.append(decision.write, session)
            self.waiting.append(_Waiting(offset, decision, client, what))
        return None

    def answer(
        self, client: Client, what: str, decision: Decision, *, is_lost: bool = False
    ) -> None:
        """Give a producer its answer."""
        if is_lost:
            return
        client.errors.append(decision.error)
        if decision.error == ErrorCode.CONCURRENT_TRANSACTIONS:
            return
        if decision.error:
            client.is_over = True
            if what == "end" and client.part in self.ended and client.is_ending is not None:
                is_other = self.ended[client.part] is not client.is_ending
                assert is_other or decision.error != ErrorCode.INVALID_TXN_STATE
            return
        if what == "init":
            client.producer, client.session = decision.producer, self.session
            client.part, client.is_added, client.is_ending = None, False, None
        elif what in ("add", "more"):
            client.is_added = True
        else:
            if client.is_added:
                assert client.part is not None
                assert self.ended.get(client.part) is client.is_ending, "not as it was answered"
            if client.version == SECOND_PROTOCOL:
                client.producer = decision.producer
            client.part, client.is_added, client.is_ending = None, False, None

    # -- what must hold of committed records

    def check(self, before: Transaction | None, after: Transaction | None, offset: int) -> None:
        if (session := self.sessions[offset]) is not None:
            self.session = session
        if after is None:
            assert before is not None
            assert State.DEAD in TRANSITIONS[before.state]
            self.transitions.add((before.state, State.DEAD))
            return
        if before is not None:
            assert after.state in TRANSITIONS[before.state]
            self.transitions.add((before.state, after.state))
        highest = self.epochs.get(after.producer_id, -1)
        assert after.producer_epoch >= highest, "an epoch goes back"
        self.epochs[after.producer_id] = after.producer_epoch
        if after.state in DECIDED:
            assert before is not None
            assert after.partitions == before.partitions
            for name in after.partitions:
                assert name not in self.ended, "a transaction ends twice"
                self.ended[name] = after.state is State.PREPARE_COMMIT
        elif before is not None and before.state in DECIDED:
            is_commit = before.state is State.PREPARE_COMMIT
            assert (after.state is State.COMPLETE_COMMIT) is is_commit

    # -- chance

    def random_step(self) -> None:
        rng = self.rng
        self.now_ms += rng.choice((0, 1, 1_000))
        draw = rng.random()
        if draw < 0.25:
            self.commit()
        elif draw < 0.35:
            self.finish()
        elif draw < 0.38:
            self.fail_over(is_kept=rng.random() < 0.5)
        elif draw < 0.40:
            self.now_ms += TIMEOUT_MS * 2
            self.abort_late()
        elif draw < 0.405:
            self.now_ms += 1
            self.expire()
        elif draw < 0.44 and len(self.clients) < 12:
            self.clients.append(Client(rng.choice((FIRST_PROTOCOL, SECOND_PROTOCOL))))
        else:
            living = [client for client in self.clients[-4:] if not client.is_over]
            if living:
                self.random_request(rng.choice(living))

    def random_request(self, client: Client) -> None:
        rng = self.rng
        if client.producer == NO_PRODUCER or rng.random() < 0.03:
            self.ask(client, "init")
        elif client.is_ending is not None:
            self.ask(client, "end")
        elif client.part is None and client.version == SECOND_PROTOCOL and rng.random() < 0.2:
            client.is_ending = False  # it aborts before it has sent anything
            self.ask(client, "end")
        elif client.part is None:
            self.parts += 1
            client.part = TopicPartition("t", self.parts)
            self.ask(client, "add")
        elif not client.is_added:
            self.ask(client, "add")
        elif rng.random() < 0.1:
            self.ask(client, "more")
        else:
            client.is_ending = rng.random() < 0.5
            self.ask(client, "end")

    def quiet(self) -> None:
        """Nobody asks any more: every transaction ends."""
        self.fail_over(is_kept=True)
        self.now_ms += 2 * TIMEOUT_MS
        self.abort_late()
        self.commit()
        self.finish()
        self.commit()
        assert self.present is None or not self.present.is_open, "a transaction hangs"
        assert self.present is None or replace(self.present).is_sound
