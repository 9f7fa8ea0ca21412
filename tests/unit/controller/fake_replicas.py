"""Replicas that are nothing but what they were told, for brokers without logs."""

from typing import TYPE_CHECKING, Any

from minibroker.broker.metadata.cache import merged
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionObeyed,
    StoppedPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.leaders import (
    HandOverRequest,
    HandOverResponse,
    PartitionHandedOver,
)
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaDescription,
)
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from tests.unit.controller.fleet import FakeBroker


class FakeReplicas:
    """What a broker was told. `requests` are all that it obeyed, in order."""

    def __init__(self, broker: "FakeBroker") -> None:
        self._broker = broker
        self._controller_epoch = -1
        self.image = ClusterImage()
        self.is_ready = True
        self.roles: dict[TopicPartition, Any] = {}
        self.logs: dict[TopicPartition, bytes] = broker.directory
        self.errors: dict[TopicPartition, int] = {}
        self.requests: list[Any] = []
        self.behind: set[int] = set()  # brokers that do not catch up with what is led here

    def _refusal(self, request: Any) -> int:
        if request.controller_epoch < self._controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch < self._broker.node.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self._controller_epoch = request.controller_epoch
        self.requests.append(request)
        self._broker.step()
        return ErrorCode.NONE

    def obey_roles(self, request: LeaderAndIsrRequest, now: float) -> LeaderAndIsrResponse:
        error = self._refusal(request)
        if error:
            return LeaderAndIsrResponse(error)
        return LeaderAndIsrResponse(0, tuple(map(self._apply_role, request.partitions)))

    def _apply_role(self, state: Any) -> PartitionObeyed:
        name = TopicPartition(state.topic, state.partition)
        known = self.roles.get(name)
        error = self.errors.get(name, 0)
        if known is not None and known.topic_id != state.topic_id:
            error = ErrorCode.INCONSISTENT_TOPIC_ID
        elif known is not None and version(state) < version(known):
            error = ErrorCode.FENCED_LEADER_EPOCH
        if not error:
            self.roles[name] = state
            self.logs[name] = state.topic_id
        return PartitionObeyed(*name, error, state.leader_epoch, state.partition_epoch)

    def update_metadata(self, request: UpdateMetadataRequest, now: float) -> UpdateMetadataResponse:
        error = self._refusal(request)
        if not error:
            self.image = merged(self.image, request).image
        return UpdateMetadataResponse(error)

    def stop(self, request: StopReplicaRequest, now: float) -> StopReplicaResponse:
        error = self._refusal(request)
        if error:
            return StopReplicaResponse(error)
        return StopReplicaResponse(0, tuple(map(self._stop, request.partitions)))

    def _stop(self, stopped: StoppedPartition) -> PartitionObeyed:
        name = TopicPartition(stopped.topic, stopped.partition)
        assert stopped.delete
        known = self.roles.get(name)
        is_removal = known is not None and stopped.partition_epoch >= 0
        if is_removal and version(stopped) < version(known):
            return PartitionObeyed(*name, ErrorCode.FENCED_LEADER_EPOCH)
        if self.logs.get(name) == stopped.topic_id:
            self.roles.pop(name, None)
            del self.logs[name]
        return PartitionObeyed(*name)

    def describe(
        self, request: DescribeReplicasRequest, now: float
    ) -> Turns[DescribeReplicasResponse]:
        yield
        return DescribeReplicasResponse(
            self._broker.node_id,
            self._broker.claimed_epoch or self._broker.node.broker_epoch,
            tuple(
                ReplicaDescription(*name, topic_id, last_epoch=epoch, log_end=end)
                for name, topic_id in self.logs.items()
                for epoch, end in [self._broker.tails.get(name, (0, 0))]
            ),
        )

    def hand_over(self, request: HandOverRequest, now: float) -> HandOverResponse:
        """Every target has all at once, but those in `behind`."""
        error = self._refusal(request)
        if error:
            return HandOverResponse(error)
        answers = [
            PartitionHandedOver(one.topic, one.partition, is_ready=one.target not in self.behind)
            for one in request.partitions
        ]
        return HandOverResponse(0, tuple(answers))


def version(state: Any) -> tuple[int, int]:
    """What orders of one partition are ordered by."""
    return state.leader_epoch, state.partition_epoch
