"""The place of one cluster: a directory and ports that no other test session uses.

    /tmp/minibroker-1000/slot-3/lock      held while the cluster exists; empty
    /tmp/minibroker-1000/slot-3/cluster/  the brokers' directories and logs
    /tmp/minibroker-1000/kept/...         clusters whose test failed, the newest ten

A slot has a range of ports, so one lock is enough for both, and parallel sessions never use the
same. The lock ends with the process that holds it, however that ends. Files in a slot without a
holder were left by a killed process, and the next session removes them. Sessions with another
directory for temporary files have other locks. They find the first port of a range in use: the
holder listens there, and no broker does.

Each cluster begins to look at the slot behind that of the one before, and each process at another
one. So the ports of a cluster that has ended rest until all others were used: a client of it that a
test has left open does not meet the next cluster there.

A test session may have another range of ports (`ports_of`). Its slots lie on the same grid, so
the locks of sessions with other ranges hold for them, too.

The ports are below those that systems use for outgoing connections: a client that tries to reach a
dead broker at one of those again and again could be connected to itself.
"""

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Final, Self

from minibroker.testing.kit import unshared
from minibroker.testing.kit.settings import HOST

PORTS: Final = range(12_000, 32_000)
PORTS_EACH: Final = 48  # three for each of 15 brokers
KEPT_MAX: Final = 10
_LOCK: Final = "lock"
_CLUSTER: Final = "cluster"
_KEPT: Final = "kept"
PORTS_MIN: Final = 2 * PORTS_EACH - 1  # so many have a slot among them, wherever they begin
PORT_NUMBERS: Final = range(1024, 65_536)

_turns: Final = count(os.getpid())


class AllPortsTaken(RuntimeError):
    """All ranges of ports are in use."""


def ports_of(text: str) -> range:
    """Return the range of ports in a text such as "20000-20400"; of an empty text the default.

    Raises `ValueError`.
    """
    if not text:
        return PORTS
    first, _, last = text.partition("-")
    if not (first.strip().isdecimal() and last.strip().isdecimal()):
        raise ValueError(f"{text!r}: expected FIRST-LAST, such as 20000-20400")
    ports = range(int(first), int(last) + 1)
    if ports.start not in PORT_NUMBERS or ports.stop - 1 not in PORT_NUMBERS:
        raise ValueError(f"{text!r}: ports are from {PORT_NUMBERS.start} to 65535")
    if len(ports) < PORTS_MIN:
        raise ValueError(
            f"{text!r}: expected at least {PORTS_MIN} ports, and {PORTS_EACH} more for each further"
            " cluster at a time"
        )
    return ports


def _slots_in(ports: range) -> range:
    """The numbers of the slots that lie within these ports."""
    first = -((PORTS.start - ports.start) // PORTS_EACH)
    return range(first, (ports.stop - PORTS.start) // PORTS_EACH)


class RunDirectory:
    """A slot that this process holds; `reserve` makes it."""

    def __init__(self, slot: Path, number: int, lock: int) -> None:
        self.root = slot / _CLUSTER
        self.base_port = PORTS.start + number * PORTS_EACH
        self._slot = slot
        self._lock = lock
        self._reserved: socket.socket | None = None

    @classmethod
    def reserve(cls, base: Path | None = None, ports: range = PORTS) -> Self:
        """Return the next slot in a range of ports that no process holds and whose ports are free.

        Raises `AllPortsTaken`.
        `base` has all slots; by default it is a directory of this user's among the temporary files.
        """
        base = base or Path(tempfile.gettempdir()) / f"minibroker-{os.getuid()}"
        _remove_leftovers(base)
        numbers = _slots_in(ports)
        begin = next(_turns)
        for number in (numbers[turn % len(numbers)] for turn in range(begin, begin + len(numbers))):
            slot = base / f"slot-{number}"
            lock = _lock(slot)
            if lock is None:
                continue
            taken = cls(slot, number, lock)
            if taken._reserve_ports():
                return taken
            taken.release()
        raise AllPortsTaken(
            f"all ports from {ports.start} to {ports.stop - 1} are taken; each cluster needs"
            f" {PORTS_EACH}: end other test sessions, or set another range (--minibroker-ports)"
        )

    def _reserve_ports(self) -> bool:
        """Make the directory and reserve the ports; return False if another process uses them."""
        ports = range(self.base_port + 1, self.base_port + PORTS_EACH)
        try:
            self.root.mkdir()
            self._reserved = socket.create_server((HOST, self.base_port))
        except OSError:
            return False
        unshared.hold(self._reserved.fileno())
        return _are_free(ports)

    @property
    def kept_as(self) -> Path:
        """Where `release` would keep the cluster."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self._slot.name}"
        return self._slot.parent / _KEPT / name

    def release(self, keep_as: Path | None = None) -> None:
        """Release the slot, and remove the cluster or move it to `keep_as`. All brokers have
        ended."""
        if keep_as is not None and self.root.exists():
            keep_as.parent.mkdir(exist_ok=True)
            self.root.rename(keep_as)
            os.utime(keep_as)
            for old in sorted(keep_as.parent.iterdir(), key=_changed_at)[:-KEPT_MAX]:
                shutil.rmtree(old, ignore_errors=True)
        if self._reserved is not None:
            unshared.close(self._reserved.detach())
        _remove(self._slot, self._lock)


def _changed_at(path: Path) -> float:
    with suppress(FileNotFoundError):  # another session removes it, too
        return path.stat().st_mtime
    return 0.0


def _remove_leftovers(base: Path) -> None:
    """Remove what killed sessions left."""
    for slot in base.glob("slot-*"):
        lock = _lock(slot)
        if lock is not None:
            _remove(slot, lock)


def _lock(slot: Path) -> int | None:
    """Lock a slot and remove the files in it; None if another process holds it."""
    while True:
        try:
            slot.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(slot / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # it was just removed
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(slot / _LOCK, descriptor):
            shutil.rmtree(slot / _CLUSTER, ignore_errors=True)
            return unshared.hold(descriptor)
        os.close(descriptor)  # of a slot that was removed between opening and locking


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _remove(slot: Path, lock: int) -> None:
    """Remove a slot. The lock's file goes last, while it is still locked."""
    shutil.rmtree(slot / _CLUSTER, ignore_errors=True)
    with suppress(OSError):  # files that another user made would stay, and the directories
        (slot / _LOCK).unlink()
        slot.rmdir()
        slot.parent.rmdir()
    unshared.close(lock)


def _are_free(ports: range) -> bool:
    def opened() -> Iterator[socket.socket]:
        for port in ports:
            yield socket.create_server((HOST, port))

    with ExitStack() as held:
        try:
            for server in opened():
                held.enter_context(server)
        except OSError:
            return False
    return True
