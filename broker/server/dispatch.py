"""The table of handlers by api, and the one function that looks a request up in it.

A handler is a plain function `handle(services, request, now)`. `now` is trio's clock in seconds. It
returns one of:

* the response;
* a `Parked` response that is not ready yet. A response over many items may be a generator there;
* a generator, for a request over many items: it pauses, or yields a function for a worker thread,
  and returns one of the above. The session runs it to its end before it handles the next request of
  the connection. Requests of others are handled while it pauses, so it checks again after a pause
  what they may have changed;
* None if the protocol has no response (PRODUCE with acks=0).

The table also says for each handler whether an unexpected exception in it may have left state half
changed (`Effect`, `defects.py`). PRODUCE, FETCH and the requests of a group's member need
their sender, so they are not in the table.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.broker.groups.member import Client
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import (
    acls,
    broker,
    cluster,
    configs,
    consumer_groups,
    control,
    delete_records,
    features,
    fetch,
    group_offsets,
    groups,
    leaders,
    log_dirs,
    markers,
    metadata,
    offsets,
    produce,
    producer_id,
    reassignments,
    topics,
    transactions,
    txn_offsets,
    versions,
)
from minibroker.broker.server.request_times import FETCH_CONSUMER, RequestKind
from minibroker.broker.server.services import Services
from minibroker.broker.turns import Steps, Turns
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope

HandlerResult: TypeAlias = object | Parked[Any] | Turns[Any] | Steps[Any] | None
Handle: TypeAlias = Callable[[Services, Any, float], HandlerResult]
# Serves one request of a peer (host:port); the last argument is `now`.
Dispatch: TypeAlias = Callable[[Services, RequestEnvelope, str, float], HandlerResult]


class Effect(Enum):
    """What a handler, and the attempts of what it parks, do to the broker's state."""

    READS = "reads"  # an unexpected exception ends its connection
    CHANGES = "changes"  # an unexpected exception ends the broker


class Handler(NamedTuple):
    """The handler of an api."""

    handle: Handle
    effect: Effect


def _reads(handle: Handle) -> Handler:
    return Handler(handle, Effect.READS)


def _changes(handle: Handle) -> Handler:
    return Handler(handle, Effect.CHANGES)


HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.LIST_OFFSETS: _reads(offsets.list_offsets),
    ApiKey.METADATA: _reads(metadata.handle),
    ApiKey.LEADER_AND_ISR: _changes(control.leader_and_isr),
    ApiKey.STOP_REPLICA: _changes(control.stop_replica),
    ApiKey.UPDATE_METADATA: _changes(control.update_metadata),
    ApiKey.CONTROLLED_SHUTDOWN: _changes(control.controlled_shutdown),
    ApiKey.OFFSET_COMMIT: _changes(group_offsets.commit),
    ApiKey.FIND_COORDINATOR: _reads(groups.find_coordinator),
    ApiKey.HEARTBEAT: _changes(groups.heartbeat),
    ApiKey.LEAVE_GROUP: _changes(groups.leave),
    ApiKey.DESCRIBE_GROUPS: _changes(groups.describe),  # it replays what is committed, first
    ApiKey.LIST_GROUPS: _changes(groups.list_groups),  # as above
    ApiKey.API_VERSIONS: _reads(versions.handle),
    ApiKey.CREATE_TOPICS: _changes(topics.create),
    ApiKey.DELETE_TOPICS: _changes(topics.delete),
    ApiKey.DELETE_RECORDS: _changes(delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: _changes(producer_id.handle),
    ApiKey.OFFSETS_FOR_LEADER_EPOCH: _reads(offsets.offsets_for_leader_epoch),
    ApiKey.ADD_PARTITIONS_TO_TXN: _changes(transactions.add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: _changes(transactions.add_offsets),
    ApiKey.END_TXN: _changes(transactions.end),
    ApiKey.WRITE_TXN_MARKERS: _changes(markers.write),
    ApiKey.TXN_OFFSET_COMMIT: _changes(txn_offsets.commit),
    ApiKey.DESCRIBE_ACLS: _reads(acls.describe),
    ApiKey.DESCRIBE_CONFIGS: _reads(configs.describe),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _changes(log_dirs.alter),
    ApiKey.DESCRIBE_LOG_DIRS: _reads(log_dirs.describe),
    ApiKey.CREATE_PARTITIONS: _changes(topics.create_partitions),
    ApiKey.DELETE_GROUPS: _changes(groups.delete),
    ApiKey.ELECT_LEADERS: _changes(leaders.elect),
    ApiKey.ALTER_CONFIGS: _changes(configs.alter),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _changes(reassignments.alter),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _changes(reassignments.list_ongoing),
    ApiKey.OFFSET_DELETE: _changes(group_offsets.delete),
    ApiKey.ALTER_PARTITION: _changes(control.alter_partition),
    ApiKey.UPDATE_FEATURES: _changes(features.update),
    ApiKey.DESCRIBE_CLUSTER: _reads(cluster.describe),
    ApiKey.LIST_CONFIG_RESOURCES: _reads(configs.list_resources),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _reads(cluster.describe_topic_partitions),
    ApiKey.DESCRIBE_PRODUCERS: _reads(markers.describe_producers),
    ApiKey.DESCRIBE_TRANSACTIONS: _changes(transactions.describe),
    ApiKey.LIST_TRANSACTIONS: _changes(transactions.list_transactions),
    ApiKey.UNREGISTER_BROKER: _changes(broker.unregister),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _changes(consumer_groups.describe),  # as above
    ApiKey.DESCRIBE_REPLICAS: _reads(control.describe_replicas),
    ApiKey.DESCRIBE_BROKER: _reads(broker.describe),
    ApiKey.PROBE: _changes(control.probe),
    ApiKey.HAND_OVER: _changes(leaders.hand_over),
}
BY_SENDER: Final = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.OFFSET_FETCH,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
}
assert {*HANDLERS, *BY_SENDER} == {*ApiKey}, "each announced api is served"


def effect_of(kind: RequestKind) -> Effect:
    """Return what serving a request of this kind does to the broker's state.

    A consumer's FETCH changes at most its own fetch session, which is closed after an exception. A
    follower's FETCH moves the high watermark.
    """
    if kind.name == FETCH_CONSUMER:
        return Effect.READS
    handler = HANDLERS.get(kind.api_key)
    return Effect.CHANGES if handler is None else handler.effect


def dispatch(services: Services, envelope: RequestEnvelope, peer: str, now: float) -> HandlerResult:
    """Serve one request of a peer. The decoder has checked that api and version are known."""
    if envelope.api_key == ApiKey.PRODUCE:
        handle_some = (
            produce.handle_in_turns if produce.is_large(envelope.message) else produce.handle
        )
        return handle_some(services, envelope.message, now, envelope.client_id, peer)
    if envelope.api_key == ApiKey.FETCH:
        handle = fetch.handle_in_turns if fetch.is_large(envelope.message) else fetch.handle
        return handle(services, envelope.message, now, peer)
    handler = HANDLERS.get(envelope.api_key)
    if handler is not None:
        return handler.handle(services, envelope.message, now)
    return _serve_member(services, envelope, peer, now)


def _serve_member(
    services: Services, envelope: RequestEnvelope, peer: str, now: float
) -> HandlerResult:
    request = envelope.message
    if envelope.api_key == ApiKey.OFFSET_FETCH:

        def is_member(group_id: str) -> bool:
            return services.member_connections.has_member(peer, group_id, now)

        return group_offsets.fetch(services, request, now, is_member=is_member)
    services.member_connections.record(peer, request.group_id, now)
    if envelope.api_key == ApiKey.SYNC_GROUP:
        return groups.sync(services, request, now)
    client = Client(envelope.client_id or "", peer.rsplit(":", 1)[0])
    if envelope.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        return consumer_groups.heartbeat(services, request, client, now)
    return groups.join(services, request, client, now)
