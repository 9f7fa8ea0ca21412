"""The controller's surroundings: the calls of its own broker, registration facts, and jobs.

Everything here is a plain value or a plain call; only `Job.wait` waits.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.state import OWN_LEVELS, BrokerRegistration, FeatureLevels
from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.defects import Defects
from minibroker.broker.metadata.store import ABSENT, MetadataStore
from minibroker.broker.turns import Turns
from minibroker.client.net.network import Network
from minibroker.protocol.constants import NO_EPOCH
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ProbeRequest,
    ProbeResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.leaders import HandOverRequest, HandOverResponse
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OwnBrokerHandlers:
    """The methods by which a controller's own broker obeys it; `now` is in s of trio's clock.

    `notify(job)` wakes the request that waits for the job in the purgatory. `defects` counts the
    requests whose plans failed.
    """

    obey_roles: Callable[[LeaderAndIsrRequest, float], LeaderAndIsrResponse]
    stop: Callable[[StopReplicaRequest, float], StopReplicaResponse]
    update_metadata: Callable[[UpdateMetadataRequest, float], UpdateMetadataResponse]
    describe: Callable[[DescribeReplicasRequest, float], Turns[DescribeReplicasResponse]]
    notify: Callable[[Hashable], None]
    hand_over: Callable[[HandOverRequest, float], HandOverResponse]
    defects: Defects = field(default_factory=Defects)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What a controller works with; its caller makes all of it.

    `probe` probes the controller's own broker. `is_session_current` says whether that broker's
    lease in the metadata store has surely not ended. `now` is in seconds of trio's clock.
    """

    config: Config
    store: MetadataStore
    store_retry: StoreRetry
    network: Network
    order_handlers: OwnBrokerHandlers
    rng: Random
    probe: Callable[[ProbeRequest, float], ProbeResponse]
    is_session_current: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class RegistrationFacts:
    """What a broker says about itself each time that it registers.

    `endpoint` is where other brokers reach it, `listeners` are where clients reach it.
    `directory_id` names its data directory and `run` counts the starts with it. `tail_safe`: the
    last run ended cleanly, or the machine has not stopped since. `was_synced`: the last run
    acknowledged nothing that was not on disk (`flush=always`). `damaged` returns the logs that are
    damaged now, and `offline` those in a log directory that has failed or is missing. `levels` are
    the feature levels that the broker supports, and `level_revision` is that of the finalized one
    when the broker compared them.
    """

    endpoint: Endpoint
    directory_id: str
    run: int
    tail_safe: bool = True
    was_synced: bool = False
    damaged: Callable[[], Iterable[TopicPartition]] = tuple
    listeners: tuple[NamedEndpoint, ...] = ()
    levels: FeatureLevels = OWN_LEVELS
    level_revision: int = ABSENT
    offline: Callable[[], Iterable[TopicPartition]] = tuple

    def as_of_now(self, node_id: int, process: str, config: Config) -> BrokerRegistration:
        """Return the entry to write; the store gives it its epoch."""
        return BrokerRegistration(
            node_id,
            NO_EPOCH,
            self.endpoint,
            self.directory_id,
            self.run,
            process,
            self.tail_safe,
            self.was_synced,
            frozenset(self.damaged()),
            self.listeners,
            config.fence_timeout_ms,
            config.broker_rack,
            self.levels,
            frozenset(self.offline()),
        )


class Job(Generic[Result]):
    """A request on its way through the controller; it is its own key in the purgatory.

    `result` is None until the job is done.
    """

    __slots__ = ("_done", "request", "result")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.result: Result | None = None
        self._done = trio.Event()

    def finish(self, result: Result) -> None:
        """Set the result; the controller calls it once."""
        assert self.result is None
        self.result = result
        self._done.set()

    async def wait(self) -> Result:
        """Wait for the result, and return it."""
        await self._done.wait()
        assert self.result is not None
        return self.result
