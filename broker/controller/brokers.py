"""Which brokers count as known: UNREGISTER_BROKER, as a plan.

A broker is known from its first admission on, and stays so when it goes: new topics get replicas on
it where the live brokers are too few. One that will not come back is forgotten by an operator. That
is refused while it lives, or while a partition has a replica there. Deleted topics no longer wait
for it. Should it come back it is admitted like a new broker, and sets aside what it holds.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from minibroker.broker.controller import entries
from minibroker.broker.controller.plans import Change, Plan
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
    """Forget a broker, unless it lives or holds a replica."""
    node_id = request.broker_id
    code, reason = _refusal(state, node_id)
    if code != ErrorCode.NONE:
        return Plan(UnregisterBrokerResponse(code, reason), state)
    admissions = {node: one for node, one in state.admissions.items() if node != node_id}
    tombstones = {tombstone.id: tombstone for tombstone in _without(state, node_id)}
    writes = (entries.admission_removal(node_id), *_tombstone_writes(state, tombstones))
    after = replace(state, admissions=admissions, tombstones=tombstones)
    return Plan(UnregisterBrokerResponse(), after, writes, change=Change(has_other_brokers=True))


def _refusal(state: State, node_id: int) -> tuple[ErrorCode, str]:
    if node_id in state.brokers:
        return ErrorCode.INVALID_REQUEST, f"broker {node_id} is alive; stop it first"
    if node_id not in state.admissions:
        known = ", ".join(map(str, sorted(state.admissions)))
        what = f"there is no broker {node_id}; known are {known}"
        return ErrorCode.BROKER_ID_NOT_REGISTERED, what
    held = Counter(name.topic for name, record in state.partitions() if node_id in record.replicas)
    if not held:
        return ErrorCode.NONE, ""
    named = [f"{topic} ({count})" for topic, count in sorted(held.items())]
    more = f" and {len(named) - TOPICS_NAMED} more" if len(named) > TOPICS_NAMED else ""
    replicas = "1 replica" if held.total() == 1 else f"{held.total()} replicas"
    what = (
        f"broker {node_id} holds {replicas}, of the topics {', '.join(named[:TOPICS_NAMED])}{more};"
        " start it again, or delete these topics"
    )
    return ErrorCode.INVALID_REQUEST, what


def _without(state: State, node_id: int) -> Iterator[Tombstone]:
    """The tombstones that other brokers are waited for."""
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
