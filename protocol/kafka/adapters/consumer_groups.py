"""The consumer protocol's apis as messages."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Array,
    Converted,
    cut_text,
    host_text,
)
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
    TopicIdPartitions,
)

MEMBER_ID_MADE_UNTIL: Final[Version] = 0
CONSUMER_MEMBER: Final = 1  # a member's type: it has the consumer protocol

_HEARTBEAT = apis.CONSUMER_GROUP_HEARTBEAT.response
_DESCRIBED = apis.CONSUMER_GROUP_DESCRIBE.response.of("groups")
_MEMBER = _DESCRIBED.of("members")


def _heartbeat_request(asked: Any, version: Version) -> ConsumerGroupHeartbeatRequest:
    owned = None
    if asked.topic_partitions is not None:
        owned = tuple(
            TopicIdPartitions(one.topic_id, tuple(one.partitions)) for one in asked.topic_partitions
        )
    names = asked.subscribed_topic_names
    return ConsumerGroupHeartbeatRequest(
        asked.group_id,
        asked.member_id,
        asked.member_epoch,
        asked.instance_id,
        asked.rack_id,
        asked.rebalance_timeout_ms,
        None if names is None else tuple(names),
        asked.subscribed_topic_regex,
        asked.server_assignor,
        owned,
        is_member_id_made=version <= MEMBER_ID_MADE_UNTIL,
    )


def _heartbeat_response(answer: ConsumerGroupHeartbeatResponse, version: Version) -> Any:
    assignment = None
    if answer.assignment is not None:
        assigned = _HEARTBEAT.of("assignment")
        make = assigned.of("topic_partitions").make
        assignment = assigned.make(
            Converted(lambda one: make(one.topic_id, one.partitions), answer.assignment)
        )
    return _HEARTBEAT.make(
        0,
        answer.error,
        cut_text(answer.error_message),
        answer.member_id or None,
        answer.member_epoch,
        answer.heartbeat_interval_ms,
        assignment,
    )


def _describe_request(asked: Any, version: Version) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(tuple(asked.group_ids), asked.include_authorized_operations)


def _describe_response(answer: ConsumerGroupDescribeResponse, version: Version) -> Any:
    return apis.CONSUMER_GROUP_DESCRIBE.response.make(0, Converted(_described, answer.groups))


def _described(group: DescribedConsumerGroup) -> Any:
    return _DESCRIBED.make(
        group.error,
        cut_text(group.error_message),
        group.group_id,
        group.state,
        group.epoch,
        group.assignment_epoch,
        group.assignor,
        Converted(_member, group.members),
        group.authorized_operations,
    )


def _member(one: DescribedConsumer) -> Any:
    return _MEMBER.make(
        one.member_id,
        one.instance_id,
        one.rack_id,
        one.member_epoch,
        one.client_id,
        host_text(one.client_host),
        one.topics,
        one.pattern,
        _assignment("assignment", one.assignment),
        _assignment("target_assignment", one.target),
        CONSUMER_MEMBER,
    )


def _assignment(name: str, partitions: Sequence[DescribedPartitions]) -> Any:
    shape = _MEMBER.of(name)
    make = shape.of("topic_partitions").make
    return shape.make(
        Converted(lambda one: make(one.topic_id, one.topic, one.partitions), partitions)
    )


ADAPTERS: Final[Iterable[Adapter]] = (
    Adapter(
        apis.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        _heartbeat_request,
        _heartbeat_response,
        Array("topic_partitions", "owned", "partitions", kept="partitions"),
    ),
    Adapter(
        apis.CONSUMER_GROUP_DESCRIBE,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        _describe_request,
        _describe_response,
    ),
)
