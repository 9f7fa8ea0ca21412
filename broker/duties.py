"""What the configuration says of a broker's recurring duties: when they are due, and how fast."""

from collections.abc import Mapping
from typing import Final

from minibroker.broker.config import Config
from minibroker.broker.log.housekeeping import Duty, Interval
from minibroker.broker.replication.log_cleaner import CleanerLimits

RETENTION_DELAY_S: Final = 30.0  # after the start, so that it does not compete with it
DELETED_FILES_INTERVAL_S: Final = 10.0
UNCREATED_LOGS_INTERVAL_S: Final = 5.0


def intervals(config: Config) -> Mapping[Duty, Interval]:
    """Return the intervals of all duties."""

    def every(interval_ms: int) -> Interval:
        return Interval(interval_ms / 1000, interval_ms / 1000)

    retention_s = config.log_retention_check_interval_ms / 1000
    return {
        Duty.HIGH_WATERMARKS: every(config.replica_high_watermark_checkpoint_interval_ms),
        Duty.RECOVERY_POINTS: every(config.log_flush_offset_checkpoint_interval_ms),
        Duty.LOG_STARTS: every(config.log_flush_start_offset_checkpoint_interval_ms),
        Duty.RETENTION: Interval(min(RETENTION_DELAY_S, retention_s), retention_s),
        Duty.DELETED_FILES: Interval(DELETED_FILES_INTERVAL_S, DELETED_FILES_INTERVAL_S),
        Duty.PRODUCERS: every(config.producer_id_expiration_check_interval_ms),
        Duty.UNCREATED_LOGS: Interval(UNCREATED_LOGS_INTERVAL_S, UNCREATED_LOGS_INTERVAL_S),
    }


def cleaner_limits(config: Config) -> CleanerLimits:
    """Return how often logs are searched for compaction, and how fast they are compacted."""
    return CleanerLimits(
        config.log_cleaner_backoff_ms / 1000,
        config.log_cleaner_io_max_bytes_per_second,
        config.log_cleaner_dedupe_buffer_size,
    )
