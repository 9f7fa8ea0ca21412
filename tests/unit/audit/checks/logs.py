"""Logs as the audit knows them: by what their batches say."""

from minibroker.audit.checks.extent import EpochEnd, LogFacts


def log(*ends: tuple[int, int], first: int = 0) -> LogFacts:
    """A sound log: (epoch, end) of each of its epochs."""
    starts = [first, *(end for _, end in ends)]
    return LogFacts(
        first,
        starts[-1],
        tuple(
            EpochEnd(epoch, end, end - start)
            for start, (epoch, end) in zip(starts, ends, strict=False)
        ),
    )
