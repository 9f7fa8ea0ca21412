"""What a fuzz knows of a cluster, and the values that it puts into requests because of it.

A request of random values fails at the first check. `Known` remembers what answers said (members of
groups, producer ids, fetch sessions, ends of logs, ids of topics), so that most values of a request
mean something and a wrong one goes deep. Both wires take their values here, by a field's name: the
wires name alike what means the same, or both names are in the table.

Nothing here may legitimately harm others, since a broker obeys who is let in (docs/guarantees.md):
topics, groups and brokers have names of the fuzz's own, and the orders of a controller have epochs
that are stale (`ORDERS`).
"""

import random
from typing import Final, NamedTuple

from minibroker.protocol.constants import OFFSETS_TOPIC, ApiKey, ErrorCode
from tests.fuzz.batches import NOW_MS, batch
from tests.fuzz.frames import MANY, THOUSANDS, Twist

TOPICS: Final = tuple(f"fuzz-{number}" for number in range(6))
PARTITIONS: Final = 2  # of each topic
GROUPS: Final = tuple(f"fuzz-group-{number}" for number in range(4))
SOME_TOPICS: Final = ("fuzz-made", "fuzz-deleted", "fuzz-none")  # they come and go
ALL_TOPICS: Final = (*TOPICS, *TOPICS, *SOME_TOPICS)
PROTOCOLS: Final = ("range", "range", "range", "sticky")
NO_BROKER: Final = 77
STALE: Final = -5
REMEMBERED: Final = 20  # producers, sessions
THOUSANDS_PART: Final = 0.1
STRANGE_TEXTS: Final = (
    "",
    ".",
    "..",
    "../x",
    "a b",
    "t\n",
    "\0",
    "ä" * 40,
    "x" * 249,
    "x" * 250,
    "x" * 32_767,
    "9" * 40,
    OFFSETS_TOPIC,
    "{}%s%n",
)
SETTINGS: Final = {
    "retention.ms": ("-1", "0", "1000", "604800000", "-2", str(2**63 - 1), str(2**63)),
    "retention.bytes": ("-1", "0", "100000", str(2**63)),
    "segment.bytes": ("1048576", "0", "-1", str(2**31 - 1), str(2**31)),
    "max.message.bytes": ("0", "100", "1048588", "-1"),
    "min.insync.replicas": ("1", "0", "2", "99"),
    "cleanup.policy": ("delete", "compact", ""),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "x"),
    "flush": ("always", "interval", ""),
    "no.such.setting": ("1", ""),
}
# The orders of a controller and the requests between brokers: these fields make them stale. One
# wrong value at a time leaves the other one stale.
ORDERS: Final = {
    "controller_epoch": -1,
    "broker_epoch": STALE,
    "controller_id": NO_BROKER,
    "broker_id": NO_BROKER,
}
_NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    "acks": (-1, -1, 0, 1),
    "broker_ids": (1, 1, 2, 3, NO_BROKER),
    "bytes_max": (0, 1, 1000, 2**20),
    "bytes_min": (0, 1, 1000),
    "committed_leader_epoch": (-1, 0),
    "config_operation": (0, 0, 1, 2, 3),
    "count": (1, 2, 3),
    "current_leader_epoch": (-1, -1, 0),
    "epoch": (-1, 0, 1),
    "hold_ms": (0, 100),
    "isolation_level": (0, 1),
    "key_type": (0, 0, 0, 1),
    "max_version_level": (0, 1, 2),
    "upgrade_type": (1, 1, 2, 3),
    "last_fetched_epoch": (-1, 0),
    "leader_epoch": (-1, -1, 0),
    "log_start": (-1, 0),
    "log_start_offset": (-1, 0),
    "max_bytes": (0, 1, 1000, 2**20),
    "max_wait_ms": (0, 0, 50),
    "min_bytes": (0, 1, 1000),
    "num_partitions": (-1, 1, 2),
    "operation": (0, 0, 1, 2, 3),
    "partition_count": (-1, 1, 2),
    "partition_max_bytes": (0, 1, 1000, 2**20),
    "rebalance_timeout_ms": (0, 300, 1000, 1000),
    "replica_id": (-1, -1, -1, -2, NO_BROKER),
    "replication_factor": (-1, 1),
    "resource_type": (2, 2, 4),
    "retention_time_ms": (-1,),
    "session_epoch": (-1, 0, 1, 2),
    "session_timeout_ms": (100, 6000, 6000, 6000),
    "timeout_ms": (0, 100, 1000),
    "transaction_timeout_ms": (1000,),
    "wait_ms_max": (0, 0, 50),
}


class Membership(NamedTuple):
    """A member of a group, as far as answers said so."""

    member_id: str = ""
    generation: int = -1


class Known:
    """See the head of this module. `group` is the one that the present request is about;
    no array has more than `elements_max` elements."""

    def __init__(self, rng: random.Random, elements_max: int = THOUSANDS) -> None:
        self.rng = rng
        self._elements_max = elements_max
        self.group = GROUPS[0]
        self._topics: tuple[str, ...] = ALL_TOPICS
        self.topic_ids: dict[str, bytes] = {}
        self.ends: dict[str, int] = {}
        self.sessions: list[int] = []
        self.members: dict[str, Membership] = {}
        self.producers: list[tuple[int, int]] = []
        self._sequences: dict[tuple[int, int], int] = {}

    def begin(self, api_key: int) -> None:
        """Choose what the next request, of this api, is about."""
        self.group = self.rng.choice(GROUPS)
        self._topics = SOME_TOPICS if api_key == ApiKey.DELETE_TOPICS else ALL_TOPICS

    def learn_producer(self, producer_id: int, epoch: int) -> None:
        """A producer id was given."""
        self.producers = [*self.producers[-REMEMBERED:], (producer_id, epoch)]

    def learn_member(self, group: str, error: int, member_id: str, generation: int) -> None:
        """A JOIN was answered: with a membership, an id to join with, or that there is none."""
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.members.pop(group, None)
        elif member_id:
            self.members[group] = Membership(member_id, generation)

    def learn_session(self, session_id: int) -> None:
        """A fetch session was opened."""
        self.sessions = [*self.sessions[-REMEMBERED:], session_id]

    def limited(self, twist: Twist) -> Twist:
        """The twist with as many elements as are allowed: rarely thousands, which take long."""
        is_rare = twist.times == THOUSANDS and self.rng.random() > THOUSANDS_PART
        times = min(MANY if is_rare else twist.times, self._elements_max)
        return twist._replace(times=times)

    # -- values

    def number(self, name: str) -> int:
        """A number that the field of this name may have."""
        rng = self.rng
        if name in ORDERS:
            return ORDERS[name]
        member = self.members.get(self.group, Membership())
        match name:
            case "generation" | "generation_id" | "generation_id_or_member_epoch":
                return member.generation if rng.random() < 0.95 else rng.choice((-1, 0, 1))
            case "session_id":
                return rng.choice((0, *self.sessions[-3:]))
            case "fetch_offset" | "offset" | "committed_offset":
                return rng.choice((0, 1, rng.randrange(max(self.ends.values(), default=0) + 2)))
            case "timestamp":
                return rng.choice((-1, -2, 0, NOW_MS, NOW_MS + 1000, NOW_MS + 2**41, 2**62, 2**62))
        return rng.choice(_NUMBERS.get(name, (0, 0, 1)))

    def text(self, path: str) -> str:
        """A text that the field at this path may have."""
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice(STRANGE_TEXTS)
        parent, _, name = path.rpartition(".")
        parent = parent.rpartition(".")[2]
        if parent in ("configs", "changes") or name in ("configuration_keys", "properties"):
            if name == "value":
                return rng.choice(SETTINGS[rng.choice(tuple(SETTINGS))])
            return rng.choice(tuple(SETTINGS))
        member = self.members.get(self.group, Membership())
        match name:
            case "group_id" | "groups" | "groups_names" | "key":
                return self.group if rng.random() < 0.95 else rng.choice(GROUPS)
            case "member_id":
                return member.member_id if rng.random() < 0.95 else rng.choice(("", "nobody"))
            case "instance_id" | "group_instance_id":
                return rng.choice(("static-1", "static-2"))
            case "protocol_type":
                return "consumer"
            case "states":
                return rng.choice(("Stable", "Empty", "Dead"))
            case "resource_name":
                return rng.choice((*TOPICS, "1", ""))
        if parent == "protocols":
            return rng.choice(PROTOCOLS)
        return rng.choice(self._topics)

    def is_null(self, name: str) -> bool:
        """Whether a field that may be null is null. Members that are static stay long: few are."""
        likely = name in ("instance_id", "group_instance_id", "transactional_id")
        return self.rng.random() < (0.9 if likely else 0.25)

    def count(self) -> int:
        """How many elements an array has."""
        return self.rng.choice((0, 1, 1, 1, 2, 3))

    def blob(self, name: str) -> bytes:
        """Bytes that the field may have."""
        rng = self.rng
        if name in ("topic_id", "id"):
            return rng.choice((b"", rng.choice((bytes(16), *self.topic_ids.values()))))
        return rng.randbytes(rng.choice((0, 1, 16, 16, 300)))

    def records(self) -> bytes:
        """A batch, sound or not."""
        return batch(self.rng, self.stamp())

    def stamp(self) -> tuple[int, int, int]:
        """A producer's id, epoch and next sequence, mostly none."""
        rng = self.rng
        if not self.producers or rng.random() < 0.5:
            return -1, -1, -1
        producer = rng.choice(self.producers)
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + 1
        return *producer, rng.choice((sequence, sequence, 0))
