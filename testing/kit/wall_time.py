"""Times of the day, as the logs of brokers have them: the one clock of a failed test's report."""

import time


def time_of_day(at_s: float) -> str:
    """Return a Unix time as local time, HH:MM:SS.mmm."""
    whole, part = divmod(round(at_s * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole))}.{part:03d}"
