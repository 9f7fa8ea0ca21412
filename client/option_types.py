"""The options as editors and type checkers know them: made from the table of options.py.

`ProducerKeywords` and the like are the keywords that a client takes. `ProducerConfig` and the
like are for a mapping of dotted names: annotate one with it and a wrong name is an error there,

    config: ProducerConfig = {"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 5}

while any other mapping, as one that is read from a file, is checked when the client is made. Do not
edit: change options.py and say `python -m tests.unit.client.option_tables`.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class ProducerKeywords(TypedDict, total=False):
    """Keywords of `Producer`, beside `bootstrap_servers`."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    enable_idempotence: bool
    linger_ms: int
    batch_size: int
    buffer_memory: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    max_in_flight_requests_per_connection: int
    max_request_size: int
    retries: int
    delivery_timeout_ms: int
    max_block_ms: int
    transactional_id: str
    transaction_timeout_ms: int
    statistics_interval_ms: int


ProducerConfig = TypedDict(
    "ProducerConfig",
    {
        "bootstrap.servers": str | Sequence[str],
        "client.id": str,
        "request.timeout.ms": int | str,
        "retry.backoff.ms": int | str,
        "retry.backoff.max.ms": int | str,
        "reconnect.backoff.ms": int | str,
        "reconnect.backoff.max.ms": int | str,
        "socket.connection.setup.timeout.ms": int | str,
        "metadata.max.age.ms": int | str,
        "acks": Literal["all", "-1", "0", "1", -1, 0, 1],
        "enable.idempotence": bool | str,
        "linger.ms": int | str,
        "batch.size": int | str,
        "buffer.memory": int | str,
        "compression.type": Literal["none", "gzip", "snappy", "lz4", "zstd"],
        "max.in.flight.requests.per.connection": int | str,
        "max.request.size": int | str,
        "retries": int | str,
        "delivery.timeout.ms": int | str,
        "max.block.ms": int | str,
        "transactional.id": str,
        "transaction.timeout.ms": int | str,
        "statistics.interval.ms": int | str,
    },
    total=False,
)


class ConsumerKeywords(TypedDict, total=False):
    """Keywords of `Consumer`, beside `bootstrap_servers`."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    auto_offset_reset: Literal["latest", "earliest", "none"]
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_poll_records: int
    check_crcs: bool
    skip_undecodable_batches: bool
    default_api_timeout_ms: int
    group_id: str
    group_instance_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Sequence[str]
    statistics_interval_ms: int


ConsumerConfig = TypedDict(
    "ConsumerConfig",
    {
        "bootstrap.servers": str | Sequence[str],
        "client.id": str,
        "request.timeout.ms": int | str,
        "retry.backoff.ms": int | str,
        "retry.backoff.max.ms": int | str,
        "reconnect.backoff.ms": int | str,
        "reconnect.backoff.max.ms": int | str,
        "socket.connection.setup.timeout.ms": int | str,
        "metadata.max.age.ms": int | str,
        "auto.offset.reset": Literal["latest", "earliest", "none"],
        "fetch.min.bytes": int | str,
        "fetch.max.wait.ms": int | str,
        "fetch.max.bytes": int | str,
        "max.partition.fetch.bytes": int | str,
        "isolation.level": Literal["read_uncommitted", "read_committed"],
        "max.poll.records": int | str,
        "check.crcs": bool | str,
        "skip.undecodable.batches": bool | str,
        "default.api.timeout.ms": int | str,
        "group.id": str,
        "group.instance.id": str,
        "enable.auto.commit": bool | str,
        "auto.commit.interval.ms": int | str,
        "session.timeout.ms": int | str,
        "heartbeat.interval.ms": int | str,
        "max.poll.interval.ms": int | str,
        "partition.assignment.strategy": str | Sequence[str],
        "statistics.interval.ms": int | str,
    },
    total=False,
)


class AdminKeywords(TypedDict, total=False):
    """Keywords of `Admin`, beside `bootstrap_servers`."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    default_api_timeout_ms: int


AdminConfig = TypedDict(
    "AdminConfig",
    {
        "bootstrap.servers": str | Sequence[str],
        "client.id": str,
        "request.timeout.ms": int | str,
        "retry.backoff.ms": int | str,
        "retry.backoff.max.ms": int | str,
        "reconnect.backoff.ms": int | str,
        "reconnect.backoff.max.ms": int | str,
        "socket.connection.setup.timeout.ms": int | str,
        "metadata.max.age.ms": int | str,
        "default.api.timeout.ms": int | str,
    },
    total=False,
)
