"""A group of the consumer protocol with members that behave as clients do, and a log in which each
batch is committed at once or later."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_heartbeats import ConsumerLimits, check
from minibroker.broker.groups.consumer_records import ConsumerKey, ConsumerValue, TopicIdPartition
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.metadata.model import PartitionImage, TopicImage
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)

CLIENT = Client("app", "10.0.0.1")
GROUP = "grp"


def topic(name: str, partitions: int, number: int = 0) -> TopicImage:
    """Return a topic; `number` makes its id differ from that of another of its name."""
    images = tuple(PartitionImage(each, 1, 0, (1,), (1,), 0) for each in range(partitions))
    return TopicImage(f"{name}{number}".encode().ljust(16, b"_")[:16], name, {}, images)


def topics_of(**partitions: int) -> dict[str, TopicImage]:
    """Return topics with these numbers of partitions."""
    return {name: topic(name, count) for name, count in partitions.items()}


@dataclass
class Log:
    """The group's records: those that are appended, and the table that replay makes of those that
    are committed."""

    group: ConsumerGroup
    table: dict[ConsumerKey, ConsumerValue] = field(default_factory=dict)
    uncommitted: list[tuple[int, tuple[tuple[ConsumerKey, ConsumerValue | None], ...]]] = field(
        default_factory=list
    )
    refuses: ErrorCode = ErrorCode.NONE
    is_slow: bool = False

    def follow_up(self, now: float) -> None:
        """Append what the group wants stored."""
        for batch in self.group.pop_writes():
            if self.refuses:
                self.group.not_written(batch.token, self.refuses, now)
            else:
                self.uncommitted.append((batch.token, batch.records))
        if not self.is_slow:
            self.commit(now)

    def commit(self, now: float, count: int | None = None) -> None:
        """Commit the oldest batches."""
        for token, records in self.uncommitted[:count]:
            for key, value in records:
                self.table.pop(key, None)
                if value is not None:
                    self.table[key] = value
            self.group.written(token, now)
        del self.uncommitted[:count]


class World:
    """The group, its log, and the topics of the cluster."""

    def __init__(self, limits: ConsumerLimits | None = None, **partitions: int) -> None:
        self.limits = limits or ConsumerLimits()
        self.topics = topics_of(**partitions)
        self.now = 0.0
        self.log = Log(ConsumerGroup(GROUP, self.limits, {}, self.now))

    @property
    def group(self) -> ConsumerGroup:
        return self.log.group

    def fail_over(self) -> None:
        """Have another coordinator: it knows what is committed."""
        self.log = Log(ConsumerGroup(GROUP, self.limits, self.log.table, self.now), self.log.table)

    def send(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Ticket[ConsumerGroupHeartbeatResponse]:
        """Send a heartbeat, as its handler does; return the answer, or the ticket while it waits
        for it."""
        try:
            check(request, self.limits)
            if request.member_epoch < 0:
                ticket = self.group.leave(request, self.now)
            else:
                self.group.receive(request, CLIENT, request.member_id, self.now)
                self.log.follow_up(self.now)
                if self.group.needs_review(self.topics):
                    without_pause(self.group.review(self.topics))
                    self.log.follow_up(self.now)
                ticket = self.group.answer(request, request.member_id, self.now)
        except Refused as refused:
            return ConsumerGroupHeartbeatResponse(refused.code, refused.message)
        self.log.follow_up(self.now)
        return ticket if ticket.answer is None else ticket.answer

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due is done."""
        self.now += seconds
        self.group.tick(self.now)
        self.log.follow_up(self.now)


class Consumer:
    """A member as a client is one: it has its epoch and the partitions that it owns."""

    def __init__(
        self,
        world: World,
        member_id: str,
        *topics: str,
        instance_id: str | None = None,
        pattern: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.topics = topics
        self.pattern = pattern
        self.instance_id = instance_id
        self.assignor = assignor
        self.epoch = 0
        self.owned: frozenset[TopicIdPartition] = frozenset()
        self.told: frozenset[TopicIdPartition] = frozenset()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the partitions that it owns."""
        return sorted(each.partition for each in self.owned)

    def request(self, epoch: int | None = None) -> ConsumerGroupHeartbeatRequest:
        """Return its next heartbeat, which says all of it."""
        return ConsumerGroupHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch if epoch is None else epoch,
            self.instance_id,
            None,
            60_000,
            self.topics if self.pattern is None else None,
            self.pattern,
            self.assignor,
            owned_of(self.owned),
        )

    def beat(self) -> ErrorCode:
        """Send a heartbeat, and obey its answer; drop all and begin again where it is fenced."""
        answer = self.world.send(self.request())
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.obey(answer)
        return ErrorCode(answer.error)

    def obey(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        """Take over an answer."""
        if answer.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.told = 0, frozenset(), frozenset()
        elif not answer.error:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.told = frozenset(
                    TopicIdPartition(each.topic_id, number)
                    for each in answer.assignment
                    for number in each.partitions
                )
            self.owned = self.told

    def leave(self, epoch: int = -1) -> ErrorCode:
        """Leave the group."""
        answer = self.world.send(self.request(epoch))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.epoch, self.owned = 0, frozenset()
        return ErrorCode(answer.error)


def owned_of(partitions: Iterable[TopicIdPartition]) -> tuple[TopicIdPartitions, ...]:
    """Return partitions as a request has them."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return tuple(TopicIdPartitions(topic_id, tuple(each)) for topic_id, each in topics.items())


def settle(*consumers: Consumer) -> None:
    """Let heartbeats go round until nothing changes."""
    for _ in range(4):
        for each in consumers:
            each.beat()
