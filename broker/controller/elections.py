"""Elections: the leader and ISR of each partition, from the live brokers (A19, CTL-01 to -14, K2).

`review` is the only function that derives both from the live brokers. It compares the present state
with the wanted one and changes the difference. So the same function handles the death of a broker,
its return, a request to stop and a new controller, and a second call changes nothing.

The rules for one partition, in order:

1. Members of the ISR that are live and *safe* are the heirs; members that are about to stop count
   only if there are no others. If there are heirs, they are the ISR. The leader stays if it is an
   heir and did not restart; otherwise the first heir in order of preference leads. If the leader is
   *fenced* (the controller does not hear it), an heir that is heard replaces it. An election leaves
   fenced heirs out of the ISR if another heir is heard. If none is heard, the leader stays if it is
   an heir. Without an election a fenced follower stays in the ISR: its leader removes it.
2. If there are no heirs, but every member of the ISR is live and may have lost the end of its log:
   of the live replicas the one with the longest log leads (largest last epoch, then log end).
   `recover` elects it when the brokers have reported their log ends. If only one replica can lead,
   it does so at once. If the ISR is smaller than `min.insync.replicas`, every replica must be live:
   records that were acknowledged before the ISR shrank are also on replicas that have left it, and
   these may be the only ones that still have them (K2). One of the replicas that must be live must
   be able to lead: if their logs are damaged, the other replicas' logs prove nothing.
   After a restore (`restore_plan.py`) this rule holds for every partition, and alone: the true ISR
   is not known, so all replicas that were to be compared must be live and undamaged.
3. If there are no heirs and the topic allows unclean election: any live replica leads, but none
   that a reassignment is adding and that has never been in sync. `plan_unclean` elects by the same
   rule without the topic's permission, if an operator requests it: then the named replica leads, or
   the one with the longest log.
4. Otherwise no broker leads. The ISR stays, and the partition waits for its members.

A member is unsafe if its broker came back and may have lost unflushed data: the machine stopped,
the data directory is another or an older one than that of its admission, or the log is damaged. The
store keeps the unsafe members (`unsafe`) while the partition has no leader; when a leader is
elected, they leave the ISR. A replica with a damaged log leads only by rule 1, after it has fetched
again.

The controller admits a broker in the transaction that settles its return, or in the last one of
several. Until then the broker is not live. So a new controller that finds a registration without an
admission does all of this again.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.liveness import Liveness, liveness_of
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
from minibroker.protocol.messages.leaders import PartitionElected
from minibroker.protocol.types import TopicPartition

# Leader epochs that the first election after a restore skips: epochs that were handed out since the
# backup and in which nothing was written are in no log.
EPOCHS_SKIPPED: Final = 1_000


class LogTail(NamedTuple):
    """The end of a replica's log; the larger of two tails has all records of the smaller one."""

    last_epoch: int = NO_EPOCH
    log_end: int = NO_OFFSET


class UncleanElection(NamedTuple):
    """An unclean election of these partitions that was requested: of the replica `wanted`, or, with
    -1, of the one with the longest log. `tails` has the log ends of the brokers that answered, and
    `asked` is the state in which they were asked: a log may change with its leader or its broker's
    registration."""

    names: Iterable[TopicPartition]
    tails: Mapping[int, Mapping[TopicPartition, LogTail]]
    asked: State
    wanted: int = NO_NODE

    def is_known(self, node: int, name: TopicPartition, state: State) -> bool:
        """Whether a broker's log is known to end where it did when the broker was asked."""
        is_same = self.asked.brokers.get(node) == state.brokers[node]
        return is_same and self.tails.get(node, {}).get(name, LogTail()).log_end >= 0


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
    """Plan the leader and the in-sync set of every partition for the registered brokers, of which
    some are fenced, and the admission of the new brokers."""
    live = liveness_of(state, registered, fenced)
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
    """Plan to replace a broker that is about to stop as a leader (CTL-11, CTL-12)."""
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
    """Return those of the partitions that wait for rule 2."""
    return {
        name
        for name in names
        if (record := state.partition(name)) is not None
        if record.leader == NO_NODE and record.unsafe
    }


def waiting_for_tails(
    state: State, config: Config, names: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the partitions to which rule 2 applies now, each with the brokers whose log ends must
    be compared. `names` are those `without_heirs`, or more."""
    return {
        name: candidates
        for name in sorted(without_heirs(state, names))
        if (record := state.partition(name)) is not None
        if (candidates := _candidates(name, record, state.brokers))
        if _include_longest_log(
            record, _holders(state.topics[name.topic], record, config), candidates, state.brokers
        )
    }


def recover(
    state: State,
    config: Config,
    names: Iterable[TopicPartition],
    tails: Mapping[int, Mapping[TopicPartition, LogTail]],
) -> Plan[None]:
    """Plan by rule 2 the leaders of the partitions all of whose candidates have reported their log
    ends."""
    draft = Draft(state)
    for name, candidates in waiting_for_tails(state, config, names).items():
        if any(node not in tails or name not in tails[node] for node in candidates):
            continue
        topic = draft.state.topics[name.topic]
        record = topic.partitions[name.partition]
        # Of equal tails the first one in order of preference.
        best = max(candidates, key=lambda node: tails[node][name])
        newest_epoch = max(tails[node][name].last_epoch for node in candidates)
        draft.set_partition(topic, _elected(record, best, (best,), newest_epoch))
        known = ", ".join(
            f"{node}: epoch {tails[node][name].last_epoch}, end {tails[node][name].log_end}"
            for node in candidates
        )
        why = f"every in-sync replica ({_listed(record.isr)}) may have lost the end of its log"
        if record.is_restored:
            why = "its metadata come from a backup"
        text = (
            f"Partition {name}: {why}. Broker {best} leads, which has the most ({known}); what none"
            " of them has is lost"
        )
        draft.reports.append(Report(logging.WARNING, text))
    return draft.plan(None)


def unclean_candidates(
    state: State, names: Iterable[TopicPartition], wanted: int
) -> tuple[int, ...]:
    """Return the brokers whose log ends `plan_unclean` compares, in ascending order."""
    found = {
        node
        for name in names
        if (record := state.partition(name)) is not None and record.leader == NO_NODE
        for node in _copies(name, record, state.brokers)
        if node == wanted or (wanted == NO_NODE and node not in state.fenced)
    }
    return tuple(sorted(found))


def plan_unclean(
    state: State, election: UncleanElection
) -> Turns[Plan[tuple[PartitionElected, ...]]]:
    """Plan an unclean election; the answer has a result for each partition.

    Only a partition without a leader needs one.
    """
    draft = Draft(state)
    results: list[PartitionElected] = []
    for some in at_once(dict.fromkeys(election.names)):
        for name in some:
            leader, refused = _unclean_leader(state, name, election)
            results.append(refused or PartitionElected(*name))
            if refused is None:
                topic = state.topics[name.topic]
                record = topic.partitions[name.partition]
                known = [tails[name] for tails in election.tails.values() if name in tails]
                newest_epoch = max(tail.last_epoch for tail in known)
                draft.set_partition(topic, _elected_uncleanly(record, leader, newest_epoch))
                epoch, end = election.tails[leader][name]
                text = (
                    f"Partition {name}: unclean election of broker {leader} (epoch {epoch}, end"
                    f" {end}), as was requested; in sync were {_listed(record.isr)}. What it does"
                    " not have is lost, and is cut from the others when they return"
                )
                draft.reports.append(Report(logging.WARNING, text))
        yield
    return draft.plan(tuple(results))


def _unclean_leader(
    state: State, name: TopicPartition, election: UncleanElection
) -> tuple[int, PartitionElected | None]:
    """Return the replica to elect, or the result that says why there is none."""
    record, asked, wanted = state.partition(name), election.asked.partition(name), election.wanted
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    what = ""
    if record is None:
        code, what = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}"
    elif record.leader != NO_NODE:
        code, what = ErrorCode.ELECTION_NOT_NEEDED, f"broker {record.leader} leads"
    elif asked is None or asked.leader_epoch != record.leader_epoch:
        what = "it had another leader while its logs were compared: look at them again"
    elif wanted not in {NO_NODE, *record.replicas}:
        what = f"broker {wanted} has no replica of it; its replicas: {_listed(record.replicas)}"
    if record is None or what:
        return NO_NODE, PartitionElected(*name, code, what)
    copies = _copies(name, record, state.brokers)
    known = [node for node in copies if election.is_known(node, name, state)]
    if wanted != NO_NODE:
        known = [node for node in known if node == wanted]
    if not known:
        whose = f"its replica on broker {wanted}" if wanted != NO_NODE else "none of its replicas"
        can = "cannot lead" if wanted != NO_NODE else "can lead"
        what = (
            f"{whose} {can}: a live broker with an undamaged log that answers the controller is"
            f" needed; alive are {_listed(state.brokers)}"
        )
        return NO_NODE, PartitionElected(*name, code, what)
    # Of equal tails the first one in order of preference.
    return max(known, key=lambda node: election.tails[node][name]), None


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
    """Return the replicas that may lead by rule 1: the safe members that are heard, preferably
    those `staying`. If none is heard, a safe leader stays, or else any `staying` member leads."""
    for members in (staying, safe):
        if heard := tuple(node for node in members if node not in fenced):
            return heard
    return safe if record.leader in safe else staying


def isr_of_leader(
    _record: PartitionRecord, members: tuple[int, ...], _fenced: frozenset[int]
) -> tuple[int, ...]:
    """Return the ISR if the leader stays. Fenced followers stay: their leader removes them."""
    return members


def _decide_without_heirs(
    topic: TopicRecord,
    record: PartitionRecord,
    unsafe: tuple[int, ...],
    live: Liveness,
    config: Config,
) -> _Decision:
    """Apply rules 2 to 4."""
    name = TopicPartition(topic.name, record.number)
    candidates = _candidates(name, record, live.brokers)
    isr = _listed(record.isr)
    holders = _holders(topic, record, config)
    if record.is_restored:
        return _without_leader(name, record, unsafe, holders, live)
    if unsafe and _include_longest_log(record, holders, candidates, live.brokers):
        if len(candidates) == 1:
            text = (
                f"Partition {name}: broker {candidates[0]} leads, the only one that can; it may"
                f" have lost the end of its log, and so has every other in-sync replica ({isr})"
            )
            return _Decision(
                _elected(record, candidates[0], candidates), Report(logging.WARNING, text)
            )
    elif (copies := _copies(name, record, live.brokers)) and config.for_topic(
        topic.configs
    ).unclean_leader_election_enable:
        heard = tuple(node for node in copies if node not in live.fenced) or copies
        leader = next((node for node in heard if node in record.isr), heard[0])
        text = (
            f"Partition {name}: unclean election of broker {leader}, because no in-sync replica"
            f" ({isr}) lives with its whole log. What only those have is cut when they return"
        )
        return _Decision(_elected_uncleanly(record, leader), Report(logging.WARNING, text))
    return _without_leader(name, record, unsafe, holders, live)


def _without_leader(
    name: TopicPartition,
    record: PartitionRecord,
    unsafe: tuple[int, ...],
    holders: tuple[int, ...],
    live: Liveness,
) -> _Decision:
    """Apply rule 4, or wait for the comparison of rule 2."""
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
    """Report why a partition has no leader, and what to do; it waits for the brokers `missing`."""
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
    if record.is_restored:
        why += "; its metadata come from a backup, and only the logs say which replica has the most"
    elif unsafe and missing:
        why += f"; those on {_listed(unsafe)} may have lost the end of their logs"
    return Report(logging.ERROR, f"Partition {name} is offline: {why}")


def _candidates(
    name: TopicPartition, record: PartitionRecord, brokers: Mapping[int, BrokerRegistration]
) -> tuple[int, ...]:
    """Return the replicas that could lead if the ISR did not matter."""
    return tuple(
        node for node in record.replicas if node in brokers and name not in brokers[node].damaged
    )


def _copies(
    name: TopicPartition, record: PartitionRecord, brokers: Mapping[int, BrokerRegistration]
) -> tuple[int, ...]:
    """Return the candidates that have ever been in sync, or may have: a reassignment adds none."""
    members = {*record.original, *record.isr}
    return tuple(node for node in _candidates(name, record, brokers) if node in members)


def _holders(topic: TopicRecord, record: PartitionRecord, config: Config) -> tuple[int, ...]:
    """Return the replicas whose logs rule 2 must compare: together they were sent all acknowledged
    records."""
    if record.is_restored:
        return record.isr
    enough = min(config.for_topic(topic.configs).min_insync_replicas, len(record.original))
    return record.isr if len(record.isr) >= enough else record.replicas


def _include_longest_log(
    record: PartitionRecord,
    holders: tuple[int, ...],
    candidates: tuple[int, ...],
    brokers: Mapping[int, BrokerRegistration],
) -> bool:
    """Whether the longest log of the candidates is the longest of all."""
    compared = candidates if record.is_restored else brokers
    return all(node in compared for node in holders) and any(node in holders for node in candidates)


def _elected(
    record: PartitionRecord, leader: int, isr: tuple[int, ...], newest_epoch: int = NO_EPOCH
) -> PartitionRecord:
    """Return the partition with this leader, in an epoch above `newest_epoch`, the newest in the
    logs that were compared: metadata that were put back may have an older one."""
    skipped = EPOCHS_SKIPPED if record.is_restored else 0
    return replace(
        record,
        leader=leader,
        isr=isr,
        unsafe=(),
        leader_epoch=max(record.leader_epoch, newest_epoch) + skipped + 1,
        partition_epoch=record.partition_epoch + 1,
        is_restored=False,
    )


def _elected_uncleanly(
    record: PartitionRecord, leader: int, newest_epoch: int = NO_EPOCH
) -> PartitionRecord:
    elected = _elected(record, leader, (leader,), newest_epoch)
    return replace(elected, unclean_epoch=elected.leader_epoch)


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"
