"""The requests of `minibroker doctor` to brokers, at every address that they advertise.

Addresses are queried in parallel, each with its own timeout.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from minibroker.broker.findings.brokers import BrokerSeen, ListenerTried
from minibroker.cli.doctor.throttles import QuotasSeen, inspect_quotas
from minibroker.cli.terminal import opened_admin

if TYPE_CHECKING:
    from minibroker.broker.findings.groups import OffsetRange
    from minibroker.broker.findings.transactions import OpenTransaction
    from minibroker.cli.group.unreadable import Place
    from minibroker.client.admin import ClusterDescription
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.metadata import TopicMetadata
    from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

PARALLEL_MAX: Final = 16
NEW_TOPICS: Final = "new topics"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The answers of the live brokers, and the topics with their effective settings.

    `refused` says why a new topic cannot be created, by kind of topic; None if the controller
    cannot be reached. Then `adding`, the brokers that each reassignment under way adds, and
    `quotas` are empty.
    """

    seen: "Sequence[BrokerSeen]"
    tried: "Sequence[ListenerTried]"
    topics: "Sequence[TopicMetadata]"
    configs: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, str] | None
    adding: "Mapping[TopicPartition, tuple[int, ...]]" = field(default_factory=dict)
    quotas: QuotasSeen = field(default_factory=QuotasSeen)


def ask_bootstrap(bootstrap: "Sequence[Endpoint]", timeout_s: float) -> list[BrokerSeen]:
    """Query the given addresses, whichever brokers are there."""
    return _in_parallel([partial(_ask_broker, -1, endpoint, timeout_s) for endpoint in bootstrap])


def inspect_cluster(bootstrap: str, timeout_s: float) -> ClusterSeen:
    """Query all brokers about everything. Raises `Admin`'s errors if no broker describes the
    cluster."""
    with opened_admin(bootstrap, timeout_s) as admin:
        cluster: ClusterDescription = admin.describe_cluster()
        names = admin.list_topics()
        topics = admin.describe_topics(*names)
        configs = {
            name: {entry.name: entry.value for entry in entries}
            for name, entries in admin.describe_configs(*names).items()
        }
    endpoints = {broker.node_id: _endpoint(broker.host, broker.port) for broker in cluster.brokers}
    seen = _in_parallel(
        [
            partial(_ask_broker, node_id, endpoint, timeout_s)
            for node_id, endpoint in sorted(endpoints.items())
        ]
    )
    fenced = {broker.node_id for broker in cluster.brokers if broker.is_fenced}
    seen = [replace(each, is_fenced=each.node_id in fenced) for each in seen]
    others = [
        (each.node_id, listener)
        for each in seen
        if each.answer is not None and each.answer.node_id == each.node_id
        for listener in each.answer.listeners
        if listener.endpoint != each.address
    ]
    tried = _in_parallel([partial(_try_listener, *other, timeout_s) for other in others])
    refused = None
    adding: dict[TopicPartition, tuple[int, ...]] = {}
    quotas = QuotasSeen()
    if any(
        each.answer and each.node_id == each.answer.node_id == cluster.controller_id
        for each in seen
    ):
        with opened_admin(bootstrap, timeout_s) as admin:
            refused = refused_topics(admin, names)
            ongoing = admin.list_partition_reassignments()
            adding = {name: one.adding_replicas for name, one in ongoing.items()}
            live = [each.node_id for each in seen if each.answer is not None]
            quotas = inspect_quotas(admin, topics, configs, live)
    return ClusterSeen(seen, tried, topics, configs, refused, adding, quotas)


@dataclass(frozen=True, slots=True)
class GroupsSeen:
    """The committed offsets of all groups, and the ranges of their partitions: those that are
    missing or have no leader are left out. `silent` are the brokers that do not say which groups
    they keep, with the reason; `unreadable` why nothing can be read at some of the offsets."""

    committed: "Mapping[str, Mapping[TopicPartition, int]]"
    ranges: "Mapping[TopicPartition, OffsetRange]"
    silent: Mapping[int, str]
    unreadable: "Mapping[Place, str]"


def inspect_groups(bootstrap: str, timeout_s: float) -> GroupsSeen:
    """Ask for the committed offsets of all groups. Raises `Admin`'s errors."""
    from minibroker.cli.group.lag import offset_ranges, places_behind
    from minibroker.cli.group.unreadable import unreadable_places

    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.list_groups()
        committed = {
            each.group_id: {
                name: found.offset for name, found in admin.committed_offsets(each.group_id).items()
            }
            for each in report.groups
        }
        names = {name for offsets in committed.values() for name in offsets}
        ranges = offset_ranges(admin, names)
    places = {place for each in committed.values() for place in places_behind(each, ranges)}
    unreadable = unreadable_places(bootstrap, places, timeout_s)
    return GroupsSeen(committed, ranges, report.silent, unreadable)


def inspect_transactions(
    bootstrap: str, timeout_s: float
) -> "tuple[list[OpenTransaction], Mapping[int, str]]":
    """Ask for the open transactions; and why which brokers do not say which ids they keep. Raises
    `Admin`'s errors."""
    from minibroker.broker.findings.transactions import DECIDED, OpenTransaction

    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.list_transactions("Ongoing", *DECIDED)
        ids = [one.transactional_id for one in report.transactions]
        described = admin.describe_transactions(*ids)
    found = [
        OpenTransaction(
            one.transactional_id, one.state, one.timeout_ms, one.started_ms, one.partitions
        )
        for one in described
        if one.started_ms >= 0
    ]
    return found, report.silent


def refused_topics(admin: "Admin", names: Sequence[str]) -> dict[str, str]:
    """Return why topics with the brokers' defaults cannot be created now; nothing is created."""
    from minibroker.client.errors import ClientError
    from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ErrorCode
    from minibroker.protocol.errors import BrokerError

    wanted = {NEW_TOPICS: next(name for name in _unused_names() if name not in names)}
    for internal, kept in ((OFFSETS_TOPIC, "groups"), (TRANSACTIONS_TOPIC, "transactions")):
        if internal not in names:
            wanted[f"{internal}, where {kept} are kept,"] = internal
    refused = {}
    for what, name in wanted.items():
        try:
            admin.create_topics(name, validate_only=True)
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                refused[what] = error.reason.removeprefix(f"topic {name!r}: ")
        except ClientError as error:
            refused[what] = str(error)
    return refused


def _unused_names() -> Iterator[str]:
    return (f"doctor-{number}" for number in count())


def _ask_broker(node_id: int, endpoint: "Endpoint", timeout_s: float) -> BrokerSeen:
    """Query the broker at `endpoint`; its clock is compared with the middle of the round trip."""
    from minibroker.cli.broker.probe import ProbeFailed, describe

    began = time.time()
    try:
        answer = describe(endpoint, timeout_s, include_machine=True)
    except ProbeFailed as failure:
        return BrokerSeen(node_id, endpoint, failure=str(failure))
    ended = time.time()
    middle_ms, error_ms = (began + ended) * 500, (ended - began) * 500
    return BrokerSeen(node_id, endpoint, answer, "", answer.wall_ms - middle_ms, error_ms)


def _try_listener(node_id: int, listener: "NamedEndpoint", timeout_s: float) -> ListenerTried:
    seen = _ask_broker(node_id, listener.endpoint, timeout_s)
    found = None if seen.answer is None else seen.answer.node_id
    return ListenerTried(node_id, listener, found, seen.failure)


def _endpoint(host: str, port: int) -> "Endpoint":
    from minibroker.protocol.types import Endpoint

    return Endpoint(host, port)


def _in_parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of the calls, in order."""
    with ThreadPoolExecutor(PARALLEL_MAX) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]
