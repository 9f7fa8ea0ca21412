"""The table of handlers by api, and the one function that looks a request up in it.

A handler is a plain function `handle(services, request, now)`. It returns the answer; a `Parked`
answer that is not ready yet; a generator that makes a long answer in turns; or None if the protocol
has no answer (PRODUCE with acks=0). `now` is trio's clock in seconds. Only JOIN_GROUP remembers its
sender. Its handler gets the sender as well, so it is not in the table.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from minibroker.broker.groups.member import Client
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import (
    broker,
    configs,
    control,
    delete_records,
    fetch,
    group_offsets,
    groups,
    leaders,
    metadata,
    offsets,
    produce,
    producer_id,
    topics,
    versions,
)
from minibroker.broker.server.services import Services
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope

HandlerResult: TypeAlias = object | Parked[Any] | Turns[Any] | None
Handler: TypeAlias = Callable[[Services, Any, float], HandlerResult]
# Serves one request of a peer (host:port); the last argument is `now`.
Dispatch: TypeAlias = Callable[[Services, RequestEnvelope, str, float], HandlerResult]

HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.METADATA: metadata.handle,
    ApiKey.LEADER_AND_ISR: control.leader_and_isr,
    ApiKey.STOP_REPLICA: control.stop_replica,
    ApiKey.UPDATE_METADATA: control.update_metadata,
    ApiKey.CONTROLLED_SHUTDOWN: control.controlled_shutdown,
    ApiKey.OFFSET_COMMIT: group_offsets.commit,
    ApiKey.OFFSET_FETCH: group_offsets.fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave,
    ApiKey.SYNC_GROUP: groups.sync,
    ApiKey.DESCRIBE_GROUPS: groups.describe,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.API_VERSIONS: versions.handle,
    ApiKey.CREATE_TOPICS: topics.create,
    ApiKey.DELETE_TOPICS: topics.delete,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.INIT_PRODUCER_ID: producer_id.handle,
    ApiKey.OFFSETS_FOR_LEADER_EPOCH: offsets.offsets_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.describe,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete,
    ApiKey.ELECT_LEADERS: leaders.elect,
    ApiKey.ALTER_CONFIGS: configs.alter,
    ApiKey.OFFSET_DELETE: group_offsets.delete,
    ApiKey.ALTER_PARTITION: control.alter_partition,
    ApiKey.UNREGISTER_BROKER: broker.unregister,
    ApiKey.DESCRIBE_REPLICAS: control.describe_replicas,
    ApiKey.DESCRIBE_BROKER: broker.describe,
    ApiKey.PROBE: control.probe,
    ApiKey.HAND_OVER: leaders.hand_over,
}
assert {*HANDLERS, ApiKey.JOIN_GROUP} == {*ApiKey}, "every api that is announced is served"


def dispatch(services: Services, envelope: RequestEnvelope, peer: str, now: float) -> HandlerResult:
    """Serve one request of a peer. The decoder has checked that api and version are known."""
    if envelope.api_key == ApiKey.JOIN_GROUP:
        client = Client(envelope.client_id or "", peer.rsplit(":", 1)[0])
        return groups.join(services, envelope.message, client, now)
    return HANDLERS[envelope.api_key](services, envelope.message, now)
