"""The settings that one log obeys: the topic's own where it has them, else the broker's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Sizes in bytes, times in milliseconds; a retention of -1 keeps everything."""

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    index_interval_bytes: int
    index_bytes_max: int
    batch_bytes_max: int
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    producer_expiration_ms: int
    timestamp_type: str  # CreateTime or LogAppendTime
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
