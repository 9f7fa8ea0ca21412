"""The plan of each request that the controller decides by itself, one at a time."""

from collections.abc import Collection
from random import Random
from typing import Any, TypeAlias

from minibroker.broker.config import Config
from minibroker.broker.controller import brokers, elections, features, reassignments, topics
from minibroker.broker.controller.elections import UncleanElection
from minibroker.broker.controller.plans import Plan
from minibroker.broker.controller.state import State
from minibroker.broker.turns import Turns
from minibroker.protocol.messages.brokers import UnregisterBrokerRequest
from minibroker.protocol.messages.configs import AlterConfigsRequest
from minibroker.protocol.messages.control import ControlledShutdownRequest
from minibroker.protocol.messages.features import UpdateFeaturesRequest
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from minibroker.protocol.types import TopicPartition

Planned: TypeAlias = (
    CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | AlterConfigsRequest
    | ControlledShutdownRequest
    | UnregisterBrokerRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | UncleanElection
    | UpdateFeaturesRequest
)


def plan_of(
    request: Planned,
    state: State,
    config: Config,
    rng: Random,
    reassigned: Collection[TopicPartition],
) -> Turns[Plan[Any]]:
    """Plan a request; `reassigned` are the partitions that have a reassignment under way."""
    planning: Turns[Plan[Any]]
    match request:
        case CreateTopicsRequest():
            planning = topics.plan_create(state, config, request, rng)
        case DeleteTopicsRequest():
            planning = topics.plan_delete(state, request)
        case CreatePartitionsRequest():
            planning = topics.plan_create_partitions(state, config, request, rng)
        case AlterConfigsRequest():
            planning = topics.plan_alter(state, config, request)
        case ControlledShutdownRequest():
            planning = elections.plan_shutdown(state, config, request)
        case UnregisterBrokerRequest():
            return brokers.plan_unregister(state, request)
        case AlterPartitionReassignmentsRequest():
            planning = reassignments.plan_alter(state, config, request, reassigned)
        case ListPartitionReassignmentsRequest():
            planning = reassignments.list_ongoing(state, request, reassigned)
        case UncleanElection():
            planning = elections.plan_unclean(state, request)
        case UpdateFeaturesRequest():
            planning = features.plan_update(state, request)
    return (yield from planning)
