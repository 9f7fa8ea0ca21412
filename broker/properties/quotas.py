"""Properties of replication quotas: which replicas are throttled, and how fast they are copied."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from minibroker.broker.config_property import LONG_MAX, Kind, setting

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
MOVES_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICATION_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
# What ALTER_CONFIGS may change of a broker while it runs.
DYNAMIC_PROPERTIES: Final = (*REPLICATION_RATES, MOVES_RATE)
ALL_REPLICAS: Final = "*"
TEXTS_KEPT: Final = 1_000  # lists of replicas whose parts are remembered


@dataclass(frozen=True)
class Quotas:
    """Replication quotas: how fast throttled replicas that are not in sync are copied."""

    leader_replication_throttled_rate: int = setting(
        LEADER_RATE,
        Kind.INT,
        LONG_MAX,
        "Bytes per second that this broker sends to throttled followers that are not in sync; "
        "ALTER_CONFIGS changes it while the broker runs.",
    )
    follower_replication_throttled_rate: int = setting(
        FOLLOWER_RATE,
        Kind.INT,
        LONG_MAX,
        "Bytes per second that this broker copies of throttled replicas that are not in sync; "
        "ALTER_CONFIGS changes it while the broker runs.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        MOVES_RATE,
        Kind.INT,
        LONG_MAX,
        "How many bytes this broker copies in a second, at most, in moves between its log "
        "directories; ALTER_CONFIGS changes it while the broker runs.",
        unit="bytes",
    )
    leader_replication_throttled_replicas: str = setting(
        LEADER_REPLICAS,
        Kind.REPLICAS,
        "",
        "The replicas whose sending, as leaders, counts in the leader's quota.",
        topic_name=LEADER_REPLICAS,
        is_list=True,
    )
    follower_replication_throttled_replicas: str = setting(
        FOLLOWER_REPLICAS,
        Kind.REPLICAS,
        "",
        "The replicas whose copying, as followers, counts in the follower's quota.",
        topic_name=FOLLOWER_REPLICAS,
        is_list=True,
    )


def is_listed(replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a list of throttled replicas, as parsed, names this one."""
    if not replicas or replicas == ALL_REPLICAS:
        return bool(replicas)
    return f"{partition}:{broker_id}" in _parts(replicas)


def listed_replicas(replicas: str) -> Iterator[tuple[int, int]]:
    """Yield the partition and the broker of each entry of a list, as parsed; `*` has none."""
    for entry in replicas.split(",") if replicas not in ("", ALL_REPLICAS) else ():
        partition, broker_id = entry.split(":")
        yield int(partition), int(broker_id)


@lru_cache(TEXTS_KEPT)
def _parts(replicas: str) -> frozenset[str]:
    return frozenset(replicas.split(","))


def rate_limit(own: Mapping[str, str], name: str, default: int) -> float:
    """Return the limit of a quota (bytes/s): the broker's own one as it was altered, or `default`;
    infinity if there is none. What is no number is skipped: another kind of broker stored it."""
    text = own.get(name, "")
    rate = int(text) if text.isascii() and text.isdecimal() else default
    return float("inf") if rate >= LONG_MAX else float(rate)
