"""The lab's controller: the real decisions, with a variable in the place of the store.

It decides as the broker's controller does (`elections.review`, `recover`, `plan_alterations`), and
what it decided is there at once. What it does not have is a life of its own: it looks at who is
registered when the scenario says so, and its orders reach every broker that runs before the next
step. It is wherever a broker lives; while none does, sessions end and nobody notices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from minibroker.broker.config import load
from minibroker.broker.controller.elections import LogTail, recover, review, waiting_for_tails
from minibroker.broker.controller.isr import plan_alterations
from minibroker.broker.controller.state import PartitionRecord, Registered, State, TopicRecord
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LiveBroker,
    PartitionState,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.replicas import DescribeReplicasRequest
from minibroker.protocol.types import TopicPartition
from minibroker.testing.lab.machine import CLUSTER_ID, PARTITION, Machine, Process
from minibroker.testing.lab.scenario import Run

TOPIC_ID: Final = b"lab".ljust(16, b".")
EPOCH: Final = 0  # of the controller: it is never replaced here


class Office:
    """See the head of this module."""

    def __init__(self, run: Run, machines: Mapping[int, Machine]) -> None:
        self._config = load(flags=run.broker_settings).config
        self._is_unclean_return_seen = run.is_unclean_return_seen
        self._machines = machines
        self._registered: dict[int, Registered] = {}
        self._revision = 0
        self._state = State(CLUSTER_ID)

    @property
    def record(self) -> PartitionRecord:
        """How the partition stands."""
        record = self._state.partition(PARTITION)
        assert record is not None
        return record

    @property
    def _processes(self) -> dict[int, Process]:
        """The registered brokers that run."""
        return {
            number: machine.process
            for number, machine in self._machines.items()
            if machine.process is not None and number in self._registered
        }

    def register(self, broker: Registered) -> None:
        """A broker came, or came back."""
        self._revision += 1
        safe = broker.tail_safe or not self._is_unclean_return_seen
        self._registered[broker.node_id] = replace(broker, epoch=self._revision, tail_safe=safe)
        process = self._machines[broker.node_id].process
        assert process is not None
        process.broker_epoch = self._revision

    def expire(self, number: int) -> None:
        """A broker's session ends."""
        self._registered.pop(number, None)

    def create(self, now: float) -> Iterator[str]:
        """Make the partition, with everybody in sync and the first one leading (CTL-01)."""
        self._review()
        brokers = tuple(self._machines)
        created = PartitionRecord(0, brokers[0], 0, 0, brokers, brokers)
        topic = TopicRecord(TOPIC_ID, PARTITION.topic, {}, (created,))
        self._state = replace(self._state, topics={topic.name: topic})
        self.push(now)
        yield f"controller: {_outcome(self.record)}"

    def decide(self, now: float) -> Iterator[str]:
        """Settle the partition for who is registered, and tell everybody, if anybody is there."""
        if not self._processes:
            return
        self._review()
        if waiting_for_tails(self._state, self._config, [PARTITION]):
            tails = self._tails(now)
            self._state = recover(self._state, self._config, [PARTITION], tails).state
        self.push(now)
        yield f"controller: {_outcome(self.record)}"

    def _review(self) -> None:
        plan = without_pause(review(self._state, self._registered, self._config))
        self._state = plan.state

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """A leader wants another ISR."""
        plan = without_pause(plan_alterations(self._state, [request]))
        self._state = plan.state
        return plan.answer[0]

    def push(self, now: float) -> None:
        """Tell every broker that runs all that it has to know."""
        live = tuple(
            LiveBroker(broker.node_id, *broker.endpoint, broker.epoch)
            for broker in self._registered.values()
        )
        record = self.record
        state = PartitionState(
            PARTITION.topic,
            TOPIC_ID,
            PARTITION.partition,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.isr,
            record.replicas,
        )
        topics = (TopicState(PARTITION.topic, TOPIC_ID, (), 1),)
        for number, process in self._processes.items():
            known = (number, EPOCH, process.broker_epoch)
            process.replicas.update_metadata(
                UpdateMetadataRequest(*known, CLUSTER_ID, live, topics, (state,), is_full=True), now
            )
            process.replicas.take_roles(
                LeaderAndIsrRequest(*known, (state,), live, is_full=True), now
            )

    def _tails(self, now: float) -> dict[int, dict[TopicPartition, LogTail]]:
        """How far the log of each replica goes."""
        tails = {}
        for number, process in self._processes.items():
            found = process.replicas.describe(DescribeReplicasRequest(), now).replicas
            tails[number] = {
                TopicPartition(one.topic, one.partition): LogTail(one.last_epoch, one.log_end)
                for one in found
            }
        return tails


def _outcome(record: PartitionRecord) -> str:
    isr = ",".join(map(str, record.isr))
    if record.leader == NO_NODE:
        unsafe = ",".join(map(str, record.unsafe))
        doubt = f"; the log of {unsafe} may lack its end" if unsafe else ""
        return f"nobody leads, epoch {record.leader_epoch}, ISR {isr}{doubt}"
    return f"{record.leader} leads, epoch {record.leader_epoch}, ISR {isr}"
