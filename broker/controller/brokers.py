"""UNREGISTER_BROKER as a plan: the cluster forgets a broker.

The cluster knows a broker from its first admission on, also while it is down: a new topic gets
replicas on it if there are too few live brokers. An operator unregisters a broker that will not
come back. The controller refuses that while the broker is live, or while a partition has a replica
there, or is being reassigned to it. Afterwards no deleted topic or removed replica waits for the
broker. If it comes back, the controller admits it like a new broker, and it sets its old logs
aside.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from minibroker.broker.controller import entries
from minibroker.broker.controller.plans import Draft, Plan
from minibroker.broker.controller.state import State, Tombstone
from minibroker.broker.metadata.store import Delete, Put
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.brokers import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

TOPICS_NAMED: Final = 5  # in the text of a refusal


def plan_unregister(
    state: State, request: UnregisterBrokerRequest
) -> Plan[UnregisterBrokerResponse]:
    """Plan to forget a broker, unless it is live or holds a replica."""
    node_id = request.broker_id
    code, reason = _refusal(state, node_id)
    if code != ErrorCode.NONE:
        return Plan(UnregisterBrokerResponse(code, reason), state)
    admissions = {node: one for node, one in state.admissions.items() if node != node_id}
    tombstones = {tombstone.id: tombstone for tombstone in _without(state, node_id)}
    draft = Draft(replace(state, admissions=admissions, tombstones=tombstones))
    draft.write([entries.admission_removal(node_id), *_tombstone_writes(state, tombstones)])
    if node_id in state.broker_configs:
        draft.set_broker_configs(node_id, {})
    for name, record in state.partitions():
        if node_id in record.former:
            former = tuple(node for node in record.former if node != node_id)
            draft.set_partition(state.topics[name.topic], replace(record, former=former))
    plan = draft.plan(UnregisterBrokerResponse())
    return replace(plan, change=plan.change._replace(has_other_brokers=True))


def _refusal(state: State, node_id: int) -> tuple[ErrorCode, str]:
    if node_id in state.brokers:
        return ErrorCode.INVALID_REQUEST, f"broker {node_id} is alive; stop it first"
    if node_id not in state.admissions:
        known = ", ".join(map(str, sorted(state.admissions)))
        what = f"there is no broker {node_id}; known are {known}"
        return ErrorCode.BROKER_ID_NOT_REGISTERED, what
    held = Counter(
        name.topic
        for name, record in state.partitions()
        if node_id in record.replicas or node_id in record.target
    )
    if not held:
        return ErrorCode.NONE, ""
    named = [f"{topic} ({count})" for topic, count in sorted(held.items())]
    more = f" and {len(named) - TOPICS_NAMED} more" if len(named) > TOPICS_NAMED else ""
    replicas = "1 replica" if held.total() == 1 else f"{held.total()} replicas"
    what = (
        f"broker {node_id} holds {replicas}, of the topics {', '.join(named[:TOPICS_NAMED])}{more};"
        " start it again, reassign its partitions, or delete these topics"
    )
    return ErrorCode.INVALID_REQUEST, what


def _without(state: State, node_id: int) -> Iterator[Tombstone]:
    """Yield the tombstones that still wait for other brokers, without this one."""
    for tombstone in state.tombstones.values():
        holders = tuple(node for node in tombstone.holders if node != node_id)
        if holders:
            yield replace(tombstone, holders=holders)


def _tombstone_writes(state: State, tombstones: dict[bytes, Tombstone]) -> Iterator[Put | Delete]:
    for topic_id, before in state.tombstones.items():
        after = tombstones.get(topic_id)
        if after is None:
            yield entries.tombstone_removal(topic_id)
        elif after != before:
            yield entries.tombstone_put(after)
