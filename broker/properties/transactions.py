"""Properties of transactions: the topic that stores them, and their times."""

from dataclasses import dataclass
from typing import Final

from minibroker.broker.config_property import INT_MAX, Kind, setting

MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Transactions:
    """Transactions: where they are kept, how long they may be open, and how long ids are kept."""

    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        Kind.INT,
        4,
        "Partitions of `__transaction_state`, which is made when a transactional producer first "
        "asks; each transactional id is kept by the leader of one of them. Not to be changed "
        "later.",
        low=1,
        high=INT_MAX,
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        Kind.INT,
        1,
        "Replicas of `__transaction_state`; there are no transactions before so many brokers live.",
        low=1,
        high=2**15 - 1,
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        100 * MIB,
        "The size at which a log of `__transaction_state` begins a new file; what is in older "
        "files is compacted.",
        unit="bytes",
        low=14,
        high=INT_MAX,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        Kind.INT,
        900_000,
        "The longest `transaction.timeout.ms` that a producer may ask for.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        Kind.INT,
        604_800_000,
        "How long a transactional id without an open transaction is kept after its last use.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10_000,
        "How often transactions are looked for that are open for longer than their timeout.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        3_600_000,
        "How often transactional ids are looked for that have expired.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    transaction_coordinator_max_bytes: int = setting(
        "transaction.coordinator.max.bytes",
        Kind.INT,
        256 * MIB,
        "Memory for transactional ids and their partitions on a broker, about; requests that need "
        "more are refused until it suffices.",
        unit="bytes",
        low=MIB,
    )
