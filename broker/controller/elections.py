"""Who leads each partition, and who is in its ISR, given who lives (A19, CTL-01 to CTL-14, K2).

`review` is the one place where both follow from the live brokers. It compares what is with what
shall be and changes the difference, so it serves the death of a broker, a return, a request to
leave and a new controller alike, and doing it twice changes nothing the second time.

For one partition, in this order:

1. Members of the ISR that live and are *safe* are its heirs; those that are about to stop only if
   there is no other. With heirs the ISR is the heirs, and the leader stays if it is one of them
   and did not restart; else the first of them in order of preference leads. A *fenced* leader, one
   that the controller does not hear, is replaced by an heir that is heard. An election leaves
   fenced heirs out of the ISR if another one is heard. Where none is heard, the leader stays if it
   is an heir. Without an election a fenced follower stays in the ISR: its leader judges it.
2. Without heirs, but with every member of the ISR alive and some end of a log perhaps lost: of the
   replicas that live the one with the most leads (largest last epoch, then log end), which
   `recover` decides once they were asked. If only one can lead it does so at once. Of an ISR below
   `min.insync.replicas` every replica must be alive: what was acknowledged before it shrank is on
   replicas that have left it, too, and these may be the only ones that still have it (K2). One of
   those that must be alive must be able to lead: next to a damaged log, others prove nothing.
3. Without heirs, where the topic allows unclean election: any replica that lives.
4. Otherwise nobody leads, and the ISR stays, so that its members are waited for.

A member is unsafe when its broker came back and may have lost what was not synced: the machine
stopped, the directory is another or an older one than it was admitted with, or the log is damaged.
That is remembered in the store (`unsafe`) as long as nobody leads, and with a leader it has left
the ISR. A replica whose log is damaged leads under no rule but 1, after it has fetched again.

A broker is admitted in the transaction that settles its return, or in the last of several, and
before that it is not live for anybody. So a new controller that finds a registration without
admission does it all.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.liveness import Liveness, compare
from minibroker.broker.controller.plans import Draft, Plan, Report
from minibroker.broker.controller.state import (
    BrokerRegistration,
    PartitionRecord,
    State,
    TopicRecord,
)
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET, ErrorCode
from minibroker.protocol.messages.control import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from minibroker.protocol.types import TopicPartition


class LogTail(NamedTuple):
    """How far a replica's log goes; the larger one has all that the smaller one has."""

    last_epoch: int = NO_EPOCH
    log_end: int = NO_OFFSET


class _Decision(NamedTuple):
    """A partition's new record (the same object if nothing changes), and a line for the log."""

    record: PartitionRecord
    report: Report | None = None


def review(
    state: State,
    registered: Mapping[int, BrokerRegistration],
    config: Config,
    fenced: frozenset[int] = frozenset(),
) -> Turns[Plan[None]]:
    """Plan leader and in-sync set of every partition for these registered brokers, of which some
    are fenced, and admit the new ones."""
    live = compare(state, registered, fenced)
    draft = Draft(state)
    draft.set_brokers(registered, live.admissions, live.fenced)
    elected = leaderless = 0
    records = ((topic, record) for topic in state.topics.values() for record in topic.partitions)
    for some in at_once(records):
        for topic, record in some:
            decision = _decide(topic, record, live, config)
            if decision.report is not None:
                draft.reports.append(decision.report)
            if decision.record is not record:
                draft.set_partition(topic, decision.record)
                elected += decision.record.leader_epoch != record.leader_epoch
                leaderless += decision.record.leader == NO_NODE != record.leader
        yield
    draft.write(entries.admission_put(live.admissions[node]) for node in sorted(live.arrived))
    if live.arrived or live.lost or elected:
        text = (
            f"Brokers {_listed(sorted(live.brokers))} live (came: {_listed(sorted(live.arrived))};"
            f" went: {_listed(sorted(live.lost))}): {elected} elections, {leaderless} of them"
            " without a leader"
        )
        draft.reports[:0] = [Report(logging.INFO, text), *_changes_of_directories(live)]
    draft.reports[:0] = _changes_of_fences(state, live)
    return draft.plan(None)


def _changes_of_fences(state: State, live: Liveness) -> Iterator[Report]:
    for node in sorted(live.fenced - state.fenced):
        text = (
            f"Broker {node} is fenced: it is registered, but has not answered, or not acknowledged"
            f" what it is told, for {live.brokers[node].fence_timeout_ms / 1000:.1f} s"
        )
        yield Report(logging.WARNING, text)
    for node in sorted(state.fenced.intersection(live.brokers) - live.fenced):
        yield Report(logging.INFO, f"Broker {node} is not fenced any more: it is heard again")


def _changes_of_directories(live: Liveness) -> Iterator[Report]:
    for node in sorted(live.arrived):
        if what := live.change_of_directory(node):
            text = (
                f"Broker {node} came back with {what}: where another in-sync replica lives it does"
                " not count as in sync until it has copied again"
            )
            yield Report(logging.WARNING, text)


def plan_shutdown(
    state: State, config: Config, request: ControlledShutdownRequest
) -> Turns[Plan[ControlledShutdownResponse]]:
    """Have others lead what a broker leads that is about to stop (CTL-11, CTL-12)."""
    broker = state.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Plan(ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH), state)
    admission = replace(state.admissions[broker.node_id], is_leaving=True)
    marked = replace(state, admissions={**state.admissions, broker.node_id: admission})
    plan = yield from review(marked, state.brokers, config, state.fenced)
    remaining = []
    for some in at_once(plan.state.partitions()):
        remaining += [
            name
            for name, record in some
            if record.leader == broker.node_id and len(record.replicas) > 1
        ]
        yield
    answer = ControlledShutdownResponse(0, tuple(remaining))
    writes, change = plan.writes, plan.change
    if not state.is_leaving(broker.node_id):
        writes = (entries.admission_put(admission), *writes)
        change = change._replace(has_other_brokers=True)
    return Plan(answer, plan.state, writes, plan.reports, change)


def without_heirs(state: State, names: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Which of these partitions wait for rule 2."""
    return {
        name
        for name in names
        if (record := state.partition(name)) is not None
        if record.leader == NO_NODE and record.unsafe
    }


def waiting_for_tails(
    state: State, config: Config, names: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Those of the partitions that rule 2 concerns now, and the brokers whose log ends are to be
    compared. `names` are those `without_heirs`, or more."""
    return {
        name: candidates
        for name in sorted(without_heirs(state, names))
        if (record := state.partition(name)) is not None
        if (candidates := _candidates(name, record, state.brokers))
        if _include_longest_log(
            _holders(state.topics[name.topic], record, config), candidates, state.brokers
        )
    }


def recover(
    state: State,
    config: Config,
    names: Iterable[TopicPartition],
    tails: Mapping[int, Mapping[TopicPartition, LogTail]],
) -> Plan[None]:
    """Rule 2, for those of the partitions all of whose candidates were heard."""
    draft = Draft(state)
    for name, candidates in waiting_for_tails(state, config, names).items():
        if any(node not in tails or name not in tails[node] for node in candidates):
            continue
        topic = draft.state.topics[name.topic]
        record = topic.partitions[name.partition]
        # The first of equals in order of preference.
        best = max(candidates, key=lambda node: tails[node][name])
        draft.set_partition(topic, _elected(record, best, (best,)))
        known = ", ".join(
            f"{node}: epoch {tails[node][name].last_epoch}, end {tails[node][name].log_end}"
            for node in candidates
        )
        text = (
            f"Partition {name}: every in-sync replica ({_listed(record.isr)}) may have lost the end"
            f" of its log. Broker {best} leads, which has the most ({known}); what none of them"
            " has is lost"
        )
        draft.reports.append(Report(logging.WARNING, text))
    return draft.plan(None)


def _decide(
    topic: TopicRecord, record: PartitionRecord, live: Liveness, config: Config
) -> _Decision:
    name = TopicPartition(topic.name, record.number)
    unsafe = tuple(
        node
        for node in record.isr
        if node in record.unsafe or live.may_lack(node, name, topic.configs)
    )
    safe = tuple(node for node in record.isr if node in live.brokers and node not in unsafe)
    staying = safe
    if len(record.replicas) > 1:
        staying = tuple(node for node in safe if node not in live.leaving) or safe
    if not safe:
        return _decide_without_heirs(topic, record, unsafe, live, config)
    heirs = heard_heirs(record, safe, staying, live.fenced)
    if record.leader not in heirs or live.has_restarted(record.leader):
        leader = next(node for node in record.replicas if node in heirs)
        return _Decision(_elected(record, leader, heirs))
    isr = isr_of_leader(record, staying if record.leader in staying else safe, live.fenced)
    if isr == record.isr:
        return _Decision(record)
    return _Decision(replace(record, isr=isr, partition_epoch=record.partition_epoch + 1))


def heard_heirs(
    record: PartitionRecord,
    safe: tuple[int, ...],
    staying: tuple[int, ...],
    fenced: frozenset[int],
) -> tuple[int, ...]:
    """Return who may lead by rule 1: of the safe members those that are heard, `staying` preferred.
    Where none is heard a safe leader stays; without one any of them leads, as if it were heard."""
    for members in (staying, safe):
        if heard := tuple(node for node in members if node not in fenced):
            return heard
    return safe if record.leader in safe else staying


def isr_of_leader(
    _record: PartitionRecord, members: tuple[int, ...], _fenced: frozenset[int]
) -> tuple[int, ...]:
    """The ISR where the leader stays: a fenced follower is for its leader to judge."""
    return members


def _decide_without_heirs(
    topic: TopicRecord,
    record: PartitionRecord,
    unsafe: tuple[int, ...],
    live: Liveness,
    config: Config,
) -> _Decision:
    """Rules 2 to 4."""
    name = TopicPartition(topic.name, record.number)
    candidates = _candidates(name, record, live.brokers)
    isr = _listed(record.isr)
    holders = _holders(topic, record, config)
    if unsafe and _include_longest_log(holders, candidates, live.brokers):
        if len(candidates) == 1:
            text = (
                f"Partition {name}: broker {candidates[0]} leads, the only one that can; it may"
                f" have lost the end of its log, and so has every other in-sync replica ({isr})"
            )
            return _Decision(
                _elected(record, candidates[0], candidates), Report(logging.WARNING, text)
            )
    elif candidates and config.for_topic(topic.configs).unclean_leader_election_enable:
        heard = tuple(node for node in candidates if node not in live.fenced) or candidates
        leader = next((node for node in heard if node in record.isr), heard[0])
        text = (
            f"Partition {name}: unclean election of broker {leader}, because no in-sync replica"
            f" ({isr}) lives with its whole log. What only those have is cut when they return"
        )
        return _Decision(_elected(record, leader, (leader,)), Report(logging.WARNING, text))
    unled = record
    if record.leader != NO_NODE:
        unled = replace(_elected(record, NO_NODE, record.isr), unsafe=unsafe)
    elif record.unsafe != unsafe:
        unled = replace(record, unsafe=unsafe)
    if unled is record and not live.arrived.intersection(record.isr):
        return _Decision(record)
    awaited = holders if unsafe else record.isr
    missing = tuple(node for node in awaited if node not in live.brokers)
    return _Decision(unled, _offline(name, unled, missing, live))


def _offline(
    name: TopicPartition, record: PartitionRecord, missing: tuple[int, ...], live: Liveness
) -> Report:
    """Why a partition has no leader, and what helps; `missing` are the brokers to wait for."""
    unsafe = record.unsafe
    damaged = [
        node for node in record.isr if node in live.brokers and name in live.brokers[node].damaged
    ]
    why = "the logs of all replicas are being compared"
    if missing:
        why = f"it waits for its replicas on brokers {_listed(missing)}"
    elif damaged:
        why = (
            f"its log is damaged on broker {_listed(damaged)}; to accept the loss, stop that broker"
            f" and run `minibroker partition recover {name.topic} {name.partition}`"
        )
    if unsafe and missing:
        why += f"; those on {_listed(unsafe)} may have lost the end of their logs"
    return Report(logging.ERROR, f"Partition {name} is offline: {why}")


def _candidates(
    name: TopicPartition, record: PartitionRecord, brokers: Mapping[int, BrokerRegistration]
) -> tuple[int, ...]:
    """Who could lead if the ISR did not matter."""
    return tuple(
        node for node in record.replicas if node in brokers and name not in brokers[node].damaged
    )


def _holders(topic: TopicRecord, record: PartitionRecord, config: Config) -> tuple[int, ...]:
    """Whose logs rule 2 must see: together they were sent all that was acknowledged."""
    enough = min(config.for_topic(topic.configs).min_insync_replicas, len(record.replicas))
    return record.isr if len(record.isr) >= enough else record.replicas


def _include_longest_log(
    holders: tuple[int, ...], candidates: tuple[int, ...], brokers: Mapping[int, BrokerRegistration]
) -> bool:
    """Whether the longest log of the candidates is the longest there is."""
    return all(node in brokers for node in holders) and any(node in holders for node in candidates)


def _elected(record: PartitionRecord, leader: int, isr: tuple[int, ...]) -> PartitionRecord:
    return replace(
        record,
        leader=leader,
        isr=isr,
        unsafe=(),
        leader_epoch=record.leader_epoch + 1,
        partition_epoch=record.partition_epoch + 1,
    )


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"
