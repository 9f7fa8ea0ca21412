"""Three scripted brokers that copy one topic, as far as a client can tell.

Node `n` is host "abc"[n - 1]. A batch that a leader appends is in the logs of all nodes at once,
but for those that `lagging` names; so who leads next has lost what it was not told. Each node
checks sequences by its own log (A14), and answers a fetch as a leader does (A10).
"""

from typing import Any, NamedTuple

import trio

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionOffset,
)
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.messages.producer_id import InitProducerIdResponse
from minibroker.protocol.records.batch import BatchHeader, read_header, stamp
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition

HOSTS = {1: "a", 2: "b", 3: "c"}


class Stored(NamedTuple):
    """A batch in a log."""

    header: BatchHeader
    data: bytes
    at: float


class Partition:
    """Who leads, and each node's log. `known` is what brokers tell, which may lag behind."""

    def __init__(self, leader: int) -> None:
        self.leader = self.known_leader = leader
        self.epoch = self.known_epoch = 0
        self.logs: dict[int, list[Stored]] = {node: [] for node in HOSTS}

    def end(self, node_id: int) -> int:
        """A log's end."""
        log = self.logs[node_id]
        return log[-1].header.next_offset if log else 0

    def tell(self) -> None:
        """From now on brokers know who leads."""
        self.known_leader, self.known_epoch = self.leader, self.epoch

    def elect(self, leader: int) -> None:
        """A new leader, whom nobody knows yet."""
        self.leader, self.epoch = leader, self.epoch + 1
        for node_id in self.logs:  # the others follow it
            if node_id != leader:
                self.logs[node_id] = list(self.logs[leader])

    def values(self) -> list[bytes | None]:
        """What the leader's log holds, in order."""
        return [
            record.value
            for stored in self.logs[self.leader]
            for record in decode_records(stored.data, stored.header)
        ]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """A9: the leader's largest epoch not above that one, and its end."""
        starts = [(0, 0)]
        for stored in self.logs[self.leader]:
            if stored.header.leader_epoch > starts[-1][0]:
                starts.append((stored.header.leader_epoch, stored.header.base_offset))
        if self.epoch > starts[-1][0]:
            starts.append((self.epoch, self.end(self.leader)))
        found = max(each for each, _ in starts if each <= epoch)
        later = [start for each, start in starts if each > epoch]
        return found, later[0] if later else self.end(self.leader)


class Replicated:
    """The brokers of topic "t"."""

    def __init__(self, network: Any, brokers: dict[int, Any], leaders: list[int]) -> None:
        self.network = network
        self.brokers = brokers
        self.alive = list(brokers)
        self.topic_id = bytes(16)
        self.partitions = [Partition(leader) for leader in leaders]
        self.lagging: set[int] = set()
        self.silent: set[int] = set()  # these append, but their answers get lost
        self.refusals: list[ErrorCode] = []  # of the next PRODUCE requests
        self.has_hints = True
        self.producers = 0  # ids given so far
        self.changed = trio.Event()
        for node_id, broker in brokers.items():
            for key, answer in (
                (ApiKey.METADATA, self.metadata),
                (ApiKey.INIT_PRODUCER_ID, self.init_producer_id),
                (ApiKey.LIST_OFFSETS, self.list_offsets),
                (ApiKey.PRODUCE, self.produce),
                (ApiKey.FETCH, self.fetch),
            ):
                broker.answers[key] = lambda request, answer=answer, node=node_id: answer(
                    node, request
                )

    # -- what happens

    def kill(self, node_id: int) -> None:
        """The process is gone, and all notice at once that connections end."""
        self.network.cut("client", HOSTS[node_id])

    def stop(self, node_id: int) -> None:
        """The process is stopped (SIGSTOP): nothing ends, nobody answers."""
        self.network.hold("client", HOSTS[node_id])
        self.network.hold(HOSTS[node_id], "client")

    def fail_over(self, lost: int, leader: int) -> None:
        """The cluster notices, elects, and tells."""
        self.alive.remove(lost)
        for partition in self.partitions:
            if partition.leader == lost:
                partition.elect(leader)
                partition.tell()
        self.notify()

    def notify(self) -> None:
        """Waiting fetches look again."""
        self.changed.set()
        self.changed = trio.Event()

    # -- what brokers answer

    def metadata(self, _node: int, request: MetadataRequest) -> MetadataResponse:
        partitions = tuple(
            PartitionMetadata(number, 0, each.known_leader, each.known_epoch)
            for number, each in enumerate(self.partitions)
        )
        return MetadataResponse(
            tuple(BrokerMetadata(node, HOSTS[node], 9092) for node in self.alive),
            "c",
            self.alive[0],
            tuple(TopicMetadata(n, 0, self.topic_id, False, partitions) for n in request.topics),
        )

    def init_producer_id(self, _node: int, _request: object) -> InitProducerIdResponse:
        self.producers += 1
        return InitProducerIdResponse(0, self.producers, 0)

    def list_offsets(self, _node: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        answers = []
        for asked in request.partitions:
            partition = self.partitions[asked.partition]
            offset = 0 if asked.timestamp == -2 else partition.end(partition.leader)
            answers.append(PartitionOffset(asked.topic, asked.partition, offset=offset))
        return ListOffsetsResponse(tuple(answers))

    def produce(self, node_id: int, request: ProduceRequest) -> ProduceResponse | None:
        code = self.refusals.pop(0) if self.refusals else ErrorCode.NONE
        answers = tuple(self._append(node_id, asked, code) for asked in request.partitions)
        return None if node_id in self.silent else ProduceResponse(answers)

    def _append(self, node_id: int, asked: PartitionProduce, code: ErrorCode) -> PartitionProduced:
        partition = self.partitions[asked.partition]
        name = TopicPartition(asked.topic, asked.partition)
        if asked.topic_id not in (b"", self.topic_id):
            return PartitionProduced(*name, ErrorCode.INCONSISTENT_TOPIC_ID)
        if partition.leader != node_id:
            hint = (partition.leader, partition.epoch) if self.has_hints else (NO_NODE, NO_EPOCH)
            not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return PartitionProduced(*name, not_leader, leader_id=hint[0], leader_epoch=hint[1])
        if code not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            return PartitionProduced(*name, code)
        header = read_header(asked.records)
        log = partition.logs[node_id]
        mine = [each.header for each in log if each.header.producer_id == header.producer_id]
        for known in mine[-5:]:
            if known[10:] == header[10:]:  # producer epoch, sequence, count
                return PartitionProduced(*name, code, known.base_offset, log_start=0)
        if not mine and header.base_sequence:
            return PartitionProduced(*name, ErrorCode.UNKNOWN_PRODUCER_ID, log_start=0)
        is_next = header.base_sequence == 0
        if mine and mine[-1].producer_epoch == header.producer_epoch:
            is_next = header.base_sequence == mine[-1].base_sequence + mine[-1].record_count
        if not is_next:
            return PartitionProduced(*name, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log_start=0)
        data = bytearray(asked.records)
        stamp(data, partition.end(node_id), partition.epoch)
        stored = Stored(read_header(data), bytes(data), trio.current_time())
        for follower, copy in partition.logs.items():
            if follower == node_id or follower not in self.lagging:
                copy.append(stored)
        self.notify()
        return PartitionProduced(*name, code, stored.header.base_offset, log_start=0)

    async def fetch(self, node_id: int, request: FetchRequest) -> FetchResponse:
        with trio.move_on_after(request.wait_ms_max / 1000):
            while not (found := self._read(node_id, request)):
                await self.changed.wait()
        return FetchResponse(0, 0, tuple(found))

    def _read(self, node_id: int, request: FetchRequest) -> list[PartitionFetched]:
        answers = (self._read_one(node_id, asked) for asked in request.partitions)
        return [answer for answer in answers if answer is not None]

    def _read_one(self, node_id: int, asked: PartitionFetch) -> PartitionFetched | None:
        partition = self.partitions[asked.partition]
        name = TopicPartition(asked.topic, asked.partition)
        hint = (partition.leader, partition.epoch) if self.has_hints else (NO_NODE, NO_EPOCH)
        if asked.topic_id not in (b"", self.topic_id):
            return PartitionFetched(*name, ErrorCode.INCONSISTENT_TOPIC_ID)
        if max(asked.leader_epoch, asked.last_fetched_epoch) > partition.epoch:
            return PartitionFetched(*name, ErrorCode.UNKNOWN_LEADER_EPOCH)
        if asked.leader_epoch < partition.epoch or partition.leader != node_id:
            is_fenced = asked.leader_epoch < partition.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return PartitionFetched(*name, code, leader_id=hint[0], leader_epoch=hint[1])
        end = partition.end(node_id)
        if asked.last_fetched_epoch != NO_EPOCH:
            epoch, epoch_end = partition.epoch_end(asked.last_fetched_epoch)
            if epoch < asked.last_fetched_epoch or epoch_end < asked.fetch_offset:
                return PartitionFetched(*name, 0, end, 0, b"", epoch, epoch_end)
        if asked.fetch_offset > end:
            return PartitionFetched(*name, ErrorCode.OFFSET_OUT_OF_RANGE)
        records = b"".join(
            stored.data
            for stored in partition.logs[node_id]
            if stored.header.next_offset > asked.fetch_offset
        )
        return PartitionFetched(*name, 0, end, 0, records) if records else None
