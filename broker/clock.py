"""The machine's clocks: wall time, the id of the current boot, and the time since boot.

Monotonic time comes from trio, which a simulation replaces. `broker.app.serve` gets wall time and
boot id as arguments; the SQLite store's leases count in time since boot.
"""

import subprocess
import sys
import time
from pathlib import Path

LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_ms() -> int:
    """Return milliseconds since the Unix epoch. It may jump: no duration is measured by it."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Return the id of the machine's current boot, and with it of its page cache."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return LINUX_BOOT_ID.read_text().strip()


def boottime_s() -> float:
    """Return seconds since the machine's start, sleep included; the same in all processes."""
    # macOS has no CLOCK_BOOTTIME, but its CLOCK_MONOTONIC counts sleep.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
