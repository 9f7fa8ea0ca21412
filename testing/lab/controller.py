"""The lab's controller: the real decisions, with a variable instead of the store.

It decides as the broker's controller does (`elections.review`, `recover`, `plan_alterations`), and
its decisions take effect at once. It does nothing by itself: it reads the registrations when the
scenario says so, and its orders reach every running broker before the next step. It is at any
running broker; while none runs, sessions end without a decision. A scenario can also send orders by
hand, as a controller that was replaced would.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from minibroker.broker.config import load
from minibroker.broker.controller.elections import LogTail, recover, review, waiting_for_tails
from minibroker.broker.controller.isr import plan_alterations
from minibroker.broker.controller.state import (
    BrokerRegistration,
    PartitionRecord,
    State,
    TopicRecord,
)
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LiveBroker,
    PartitionObeyed,
    PartitionState,
    StoppedPartition,
    StopReplicaRequest,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.replicas import DescribeReplicasRequest
from minibroker.protocol.types import TopicPartition
from minibroker.testing.lab.machine import CLUSTER_ID, PARTITION, Machine, Process
from minibroker.testing.lab.scenario import Run

TOPIC_ID: Final = b"lab".ljust(16, b".")


class SteppedController:
    """See the head of this module."""

    def __init__(self, run: Run, machines: Mapping[int, Machine]) -> None:
        self._config = load(flags=run.broker_settings).config
        self._is_unclean_return_seen = run.is_unclean_return_seen
        self._machines = machines
        self._registered: dict[int, BrokerRegistration] = {}
        self._revision = 0
        self._epoch = 0  # the controller's
        self._state = State(CLUSTER_ID)

    @property
    def record(self) -> PartitionRecord:
        """The state of the partition."""
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

    @property
    def _live(self) -> tuple[LiveBroker, ...]:
        return tuple(
            LiveBroker(broker.node_id, *broker.endpoint, broker.epoch)
            for broker in self._registered.values()
        )

    def register(self, broker: BrokerRegistration) -> None:
        """Register a broker that starts, or comes back."""
        self._revision += 1
        safe = broker.tail_safe or not self._is_unclean_return_seen
        self._registered[broker.node_id] = replace(broker, epoch=self._revision, tail_safe=safe)
        process = self._machines[broker.node_id].process
        assert process is not None
        process.broker_epoch = self._revision

    def expire(self, number: int) -> None:
        """End a broker's session."""
        self._registered.pop(number, None)

    def create(self, now: float) -> Iterator[str]:
        """Create the partition, with all replicas in sync and the first one as leader (CTL-01)."""
        self._review()
        brokers = tuple(self._machines)
        created = PartitionRecord(0, brokers[0], 0, 0, brokers, brokers)
        topic = TopicRecord(TOPIC_ID, PARTITION.topic, {}, (created,))
        self._state = replace(self._state, topics={topic.name: topic})
        self.push(now)
        yield f"controller: {_outcome(self.record)}"

    def decide(self, now: float) -> Iterator[str]:
        """Decide about the partition for the registered brokers, and send orders, if any broker
        runs."""
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
        """Decide about a leader's proposal for the ISR."""
        plan = without_pause(plan_alterations(self._state, [request]))
        self._state = plan.state
        return plan.answer[0]

    def push(self, now: float) -> None:
        """Send every running broker its orders."""
        live, state = self._live, _state_of(self.record)
        topics = (TopicState(PARTITION.topic, TOPIC_ID, (), 1),)
        for number, process in self._processes.items():
            known = (number, self._epoch, process.broker_epoch)
            process.replicas.update_metadata(
                UpdateMetadataRequest(
                    *known, CLUSTER_ID, live, topics, (state,), begins_image=True
                ),
                now,
            )
            process.replicas.obey_roles(
                LeaderAndIsrRequest(*known, (state,), live, completes_roles=True), now
            )

    def replace_controller(self, now: float) -> Iterator[str]:
        """Make another broker the controller, which sends all orders again."""
        self._epoch += 1
        self.push(now)
        yield f"controller: replaced, controller epoch {self._epoch}"

    def order_leader(
        self, number: int, leader: int, epoch: int, controller: int, now: float
    ) -> str:
        """Send a broker a LEADER_AND_ISR by hand, with any leader and controller epoch."""
        record, process = self.record, self._processes[number]
        state = _state_of(record)
        if (leader, epoch) != (record.leader, record.leader_epoch):
            isr = (leader, *(one for one in record.isr if one != leader))
            state = replace(state, leader=leader, leader_epoch=epoch, partition_epoch=0, isr=isr)
        known = (number, controller, process.broker_epoch)
        answer = process.replicas.obey_roles(LeaderAndIsrRequest(*known, (state,), self._live), now)
        order = f"{leader} leads, epoch {epoch}"
        return _ordered(number, controller, order, answer.error, answer.partitions)

    def stop_replica(
        self, number: int, epoch: int, controller: int, now: float, *, delete: bool
    ) -> str:
        """Send a broker a STOP_REPLICA by hand."""
        process = self._processes[number]
        stopped = StoppedPartition(PARTITION.topic, TOPIC_ID, PARTITION.partition, epoch, delete)
        known = (number, controller, process.broker_epoch)
        answer = process.replicas.stop(StopReplicaRequest(*known, (stopped,)), now)
        order = f"{'delete' if delete else 'stop'} the replica, epoch {epoch}"
        return _ordered(number, controller, order, answer.error, answer.partitions)

    def _tails(self, now: float) -> dict[int, dict[TopicPartition, LogTail]]:
        """Return where the log of each replica ends."""
        tails = {}
        for number, process in self._processes.items():
            response = without_pause(process.replicas.describe(DescribeReplicasRequest(), now))
            tails[number] = {
                TopicPartition(one.topic, one.partition): LogTail(one.last_epoch, one.log_end)
                for one in response.replicas
            }
        return tails


def _ordered(
    number: int, controller: int, order: str, error: int, obeyed: Sequence[PartitionObeyed]
) -> str:
    """Describe an order, and the broker's answer."""
    refused = error or next((one.error for one in obeyed), 0)
    outcome = ErrorCode(refused).name if refused else "done"
    return f"controller epoch {controller} orders {number}: {order}; {outcome}"


def _state_of(record: PartitionRecord) -> PartitionState:
    return PartitionState(
        PARTITION.topic,
        TOPIC_ID,
        PARTITION.partition,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.isr,
        record.replicas,
    )


def _outcome(record: PartitionRecord) -> str:
    isr = ",".join(map(str, record.isr))
    if record.leader == NO_NODE:
        unsafe = ",".join(map(str, record.unsafe))
        doubt = f"; the log of {unsafe} may lack its end" if unsafe else ""
        return f"nobody leads, epoch {record.leader_epoch}, ISR {isr}{doubt}"
    return f"{record.leader} leads, epoch {record.leader_epoch}, ISR {isr}"
