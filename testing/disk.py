"""A simulated disk: `broker.log.files.Files` in memory, with the faults that a disk may have.

The faults are these, so that a checker does not blame the broker for a loss that it never promised
to prevent:

* `kill()`: the process died. Every write and every name it made is there; handles and locks end.
* `power_off()`: the machine died. A synced byte is there. Of what was appended since the last
  sync a part from the front is there, its last sector maybe torn (zeros or old noise); an unsynced
  truncation may be undone. Names (create, rename, remove) are journalled in order, as ext4 and xfs
  do it: those before the last `sync_dir` or synced `write_atomic` are there, of the later ones some
  from the front. `Tail.KEPT` and `Tail.LOST` leave nothing of that to chance.
* `fail(operation, ...)`: the next calls answer EIO (or another errno).
* `space_bytes`: appends beyond it write what fits and answer ENOSPC.
* `descriptors_max`: open files and locks use one descriptor each, and whatever opens a file for a
  moment (a small file, a directory, a sync by a worker) needs one. Without one it answers EMFILE.
* `evict()`: nothing of the files is in the page cache. A read of such pages then takes `read_s`
  seconds. That of a worker's function is returned by `run_in_worker`, whose caller lets others run
  meanwhile; in the loop `stall` is called, and `stalled_s` counts.
* `flip(path, position)`: one bit changes, in the page cache and on the disk.
* `stop_at(count)`: instead of the operation after `count` others, `Stopped` is raised, and a write
  is half done. Then `kill` or `power_off`: so a search can crash at every step.

Chance comes from the given `random.Random`. `sync` takes `sync_s` seconds of trio's (virtual) time.
`clock_ms` is the wall clock of the times at which files are written.
"""

import errno
import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import PurePath
from typing import NamedTuple, TypeVar

import trio

from minibroker.broker.log.files import File, Lock
from minibroker.protocol.types import Buffer

SECTOR_BYTES = 512
PAGE_BYTES = 4096
Result = TypeVar("Result")


class Stopped(BaseException):
    """The process died here. Only the test that called `stop_at` may catch it."""


class Tail(Enum):
    """What a power cut leaves of the unsynced bytes and names."""

    BY_CHANCE = "by chance"
    KEPT = "kept"
    LOST = "lost"


class Node:
    """The bytes of one file, and those of them that are on the disk.

    Invariant: `data[:same]` == `durable[:same]`.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.same = 0
        self.modified_ms = 0
        self.uncached: set[int] = set()  # pages

    def pages(self, position: int, size: int) -> set[int]:
        """Return the pages of these bytes that are not in the page cache."""
        if not self.uncached:
            return self.uncached
        end = min(position + size, len(self.data))
        return self.uncached.intersection(range(position // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def make_durable(self, size: int) -> None:
        """Put `data[:size]` on the disk."""
        size = min(size, len(self.data))
        start = min(self.same, size)
        self.durable[start:] = self.data[start:size]
        self.same = size

    def lose_power(self, rng: random.Random, tail: Tail) -> None:
        """Take the state that a machine finds after its power came back."""
        if tail is Tail.BY_CHANCE:
            self._lose_by_chance(rng)
        elif tail is Tail.LOST:
            self.data = bytearray(self.durable)
        self.durable = bytearray(self.data)
        self.same = len(self.data)

    def _lose_by_chance(self, rng: random.Random) -> None:
        cut_survived = self.same == len(self.durable) or rng.random() < 0.5
        if cut_survived:
            tail = self.data[self.same :]
            kept = tail[: rng.choice((0, rng.randint(0, len(tail)), len(tail)))]
            if kept and rng.random() < 0.5:
                torn = min(len(kept), rng.randint(1, SECTOR_BYTES))
                noise = bytes(torn) if rng.random() < 0.5 else rng.randbytes(torn)
                kept[-torn:] = noise
            self.data = self.data[: self.same] + kept
        else:
            self.data = bytearray(self.durable)


class NameChange(NamedTuple):
    """One journalled change of names: `node` None removes, a `source` renames."""

    target: PurePath
    node: Node | None = None
    source: PurePath | None = None
    is_dir: bool = False


class Tree:
    """The paths, each with its file, or None for a directory."""

    def __init__(self) -> None:
        self._nodes: dict[PurePath, Node | None] = {}
        self._children: dict[PurePath, dict[PurePath, None]] = {}

    def __contains__(self, path: PurePath) -> bool:
        return path in self._nodes

    def __iter__(self) -> Iterator[PurePath]:
        return iter(self._nodes)

    def __getitem__(self, path: PurePath) -> Node | None:
        return self._nodes[path]

    def get(self, path: PurePath) -> Node | None:
        """Return the file of a path; None for a directory, or if nothing is there."""
        return self._nodes.get(path)

    def files(self) -> Iterator[Node]:
        """All files."""
        return (node for node in self._nodes.values() if node is not None)

    def children(self, path: PurePath) -> Collection[PurePath]:
        """Return the names in a directory."""
        return self._children.get(path, ())

    def copy(self) -> "Tree":
        """Return another tree with the same files."""
        tree = Tree()
        for path, node in self._nodes.items():
            tree._put(path, node)
        return tree

    def apply(self, change: NameChange) -> None:
        """Apply a change of names."""
        if change.source is not None:
            for path in self._below(change.source):
                self._put(change.target / path.relative_to(change.source), self._remove(path))
        elif change.node is not None or change.is_dir:
            self._put(change.target, change.node)
        else:
            for path in self._below(change.target):
                self._remove(path)

    def _below(self, path: PurePath) -> list[PurePath]:
        """Return a path and all paths below it."""
        if path not in self._nodes:
            return []
        return [path, *(one for child in self.children(path) for one in self._below(child))]

    def _put(self, path: PurePath, node: Node | None) -> None:
        self._nodes[path] = node
        if path.parent != path:
            self._children.setdefault(path.parent, {})[path] = None

    def _remove(self, path: PurePath) -> Node | None:
        siblings = self._children[path.parent]
        del siblings[path]
        if not siblings:
            del self._children[path.parent]
        return self._nodes.pop(path)


class SimulatedFile:
    """One open file; see `broker.log.files.File`."""

    def __init__(self, disk: "SimulatedFiles", path: PurePath, node: Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._life = disk.life
        self._is_closed = False
        disk.descriptors += 1

    def _use(self, operation: str) -> Node:
        assert self._life == self._disk.life, f"{self._path} was used after a crash"
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        self._disk.check(operation, self._path)
        return self._node

    @property
    def size(self) -> int:
        return len(self._node.data)

    def append(self, buffers: Sequence[Buffer]) -> None:
        try:
            node = self._use("append")
        except Stopped:
            whole = b"".join(bytes(buffer) for buffer in buffers)
            self._node.data += whole[: self._disk.rng.randint(0, len(whole))]
            raise
        node.modified_ms = self._disk.clock_ms()
        for buffer in buffers:
            room = self._disk.room()
            node.data += memoryview(buffer)[:room]
            if room < len(buffer):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def read(self, position: int, size: int) -> bytes:
        node = self._use("read")
        self._disk.wait_for(node, node.pages(position, size))
        return bytes(node.data[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        if self._use("read").pages(position, size):
            return None
        return self.read(position, size)

    def truncate(self, size: int) -> None:
        node = self._use("truncate")
        assert 0 <= size <= len(node.data), "a log file is never made longer than what was written"
        del node.data[size:]
        node.same = min(node.same, size)
        node.uncached = node.pages(0, size)
        node.modified_ms = self._disk.clock_ms()

    def is_cached(self, position: int, size: int) -> bool:
        return not self._node.pages(position, size)

    def fileno(self) -> int:
        return -1

    async def sync(self) -> None:
        if self._is_closed:
            return
        self._disk.require_descriptor(self._path)
        node = self._use("sync")
        size = len(node.data)
        await trio.sleep(self._disk.sync_s)
        if self._life == self._disk.life:
            node.make_durable(size)
            self._disk.sync_count += 1

    def sync_now(self) -> None:
        if self._is_closed:
            return
        node = self._use("sync")
        node.make_durable(len(node.data))
        self._disk.sync_count += 1

    def close(self) -> None:
        if not self._is_closed and self._life == self._disk.life:
            self._disk.descriptors -= 1
        self._is_closed = True


class SimulatedLock:
    """A held lock; see `broker.log.files.Lock`."""

    def __init__(self, disk: "SimulatedFiles", path: PurePath) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        if self._disk.locks.get(self._path) is self:
            del self._disk.locks[self._path]
            self._disk.descriptors -= 1


class SimulatedFiles:
    """The disk in memory; see `broker.log.files.Files` and the head of this file."""

    def __init__(self, rng: random.Random, *, sync_s: float = 0.001) -> None:
        self.sync_s = sync_s
        self.space_bytes: int | None = None
        self.descriptors_max: int | None = None
        self.descriptors = 0  # in use
        self.read_s = 0.0
        self.stalled_s = 0.0
        self.stall: Callable[[float], None] = lambda seconds: None
        self._worker_s: float | None = None  # of the reads of the worker that runs
        self.clock_ms: Callable[[], int] = lambda: 0
        self.sync_count = 0
        self.life = 0
        self.locks: dict[PurePath, SimulatedLock] = {}
        self.rng = rng
        # Operations until `Stopped`, and how many there were; reads do not count.
        self._left: int | None = None
        self.operation_count = 0
        self._names = Tree()
        self._durable_names = Tree()
        self._journal: list[NameChange] = []
        self._failures: dict[str, tuple[int, int, str]] = {}

    # -- faults

    def kill(self) -> None:
        """The process died: its writes stay, its handles and locks end."""
        self.life += 1
        self.locks.clear()
        self.descriptors = 0
        self._failures.clear()
        self._left = None

    def power_off(self, tail: Tail = Tail.BY_CHANCE) -> None:
        """The machine died: unsynced bytes and names may be lost or torn."""
        self.kill()
        kept = {Tail.KEPT: len(self._journal), Tail.LOST: 0}.get(tail)
        if kept is None:
            kept = self.rng.randint(0, len(self._journal))
        for change in self._journal[:kept]:
            self._durable_names.apply(change)
        self._journal.clear()
        self._names = self._durable_names.copy()
        for node in self._names.files():
            node.lose_power(self.rng, tail)

    def stop_at(self, count: int) -> None:
        """Let `count` more changes happen, and raise `Stopped` instead of the next."""
        self._left = count

    def fail(
        self, operation: str, *, times: int = 1, number: int = errno.EIO, name: str = ""
    ) -> None:
        """Let the next `times` calls of an operation on paths containing `name` raise."""
        self._failures[operation] = (times, number, name)

    def evict(self, name: str = "") -> None:
        """Take the files with paths containing `name` out of the page cache."""
        for path in self._names:
            if name in str(path) and (node := self._names.get(path)) is not None:
                node.uncached = set(range(-(-len(node.data) // PAGE_BYTES)))

    def run_in_worker(self, function: Callable[[], Result]) -> tuple[Result, float]:
        """Return the result of a worker's function, and the seconds that its reads take."""
        self._worker_s = 0.0
        try:
            result = function()
            return result, self._worker_s
        finally:
            self._worker_s = None

    def wait_for(self, node: Node, pages: set[int]) -> None:
        """Read these pages from the disk."""
        if not pages:
            return
        node.uncached = node.uncached - pages
        if self._worker_s is not None:
            self._worker_s += self.read_s
        else:
            self.stalled_s += self.read_s
            self.stall(self.read_s)

    def flip(self, path: PurePath, position: int, bit: int = 0) -> None:
        """Change one bit."""
        node = self._node(path)
        node.data[position] ^= 1 << bit
        if position < len(node.durable):
            node.durable[position] ^= 1 << bit

    def check(self, operation: str, path: PurePath) -> None:
        """Raise the error that `fail` or `stop_at` set."""
        if operation != "read":
            self.operation_count += 1
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise Stopped(f"{operation} {path}")
        times, number, name = self._failures.get(operation, (0, 0, ""))
        if times and name in str(path):
            self._failures[operation] = (times - 1, number, name)
            raise OSError(number, os.strerror(number), str(path))

    @property
    def used_bytes(self) -> int:
        """The sum of the sizes of all files."""
        return sum(len(node.data) for node in self._names.files())

    def room(self) -> int:
        """How many bytes can still be written."""
        if self.space_bytes is None:
            return 1 << 62
        return max(0, self.space_bytes - self.used_bytes)

    def require_descriptor(self, path: PurePath) -> None:
        """Raise EMFILE if all descriptors are in use."""
        if self.descriptors_max is not None and self.descriptors >= self.descriptors_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    # -- names

    def _node(self, path: PurePath) -> Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        node = self._names[path]
        if node is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def _change(self, change: NameChange) -> None:
        self._names.apply(change)
        self._journal.append(change)

    def _commit_names(self) -> None:
        for change in self._journal:
            self._durable_names.apply(change)
        self._journal.clear()

    def open(self, path: PurePath, *, create: bool = False) -> File:
        self.check("open", path)
        self.require_descriptor(path)
        if create and path not in self._names:
            self._require_dir(path.parent)
            self._change(NameChange(path, Node()))
        return SimulatedFile(self, path, self._node(path))

    def _require_dir(self, path: PurePath) -> None:
        if path not in self._names and path.parent != path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self._names.get(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def list(self, path: PurePath) -> list[str]:
        self.require_descriptor(path)
        self._require_dir(path)
        return sorted(child.name for child in self._names.children(path))

    def exists(self, path: PurePath) -> bool:
        return path in self._names

    def modified_ms(self, path: PurePath) -> int:
        return self._node(path).modified_ms

    def is_dir(self, path: PurePath) -> bool:
        return path in self._names and self._names[path] is None

    def make_dir(self, path: PurePath) -> None:
        self.check("make_dir", path)
        for part in (*reversed(path.parents), path):
            if self._names.get(part) is not None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(part))
            if part not in self._names:
                self._change(NameChange(part, is_dir=True))

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.check("rename", source)
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        if self.is_dir(target) and self._names.children(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
        self._change(NameChange(target, source=source))

    def remove(self, path: PurePath) -> None:
        self.check("remove", path)
        if path in self._names:
            self._node(path)
            self._change(NameChange(path))

    def remove_tree(self, path: PurePath) -> None:
        self.check("remove", path)
        self.require_descriptor(path)
        if path in self._names:
            self._change(NameChange(path))

    def read_bytes(self, path: PurePath) -> bytes:
        self.check("read", path)
        self.require_descriptor(path)
        node = self._node(path)
        self.wait_for(node, node.pages(0, len(node.data)))
        return bytes(node.data)

    def write_atomic(self, path: PurePath, data: bytes, *, sync: bool = True) -> None:
        self.check("write_atomic", path)
        self.require_descriptor(path)
        self._require_dir(path.parent)
        node = Node()
        node.data += data[: self.room()]
        if len(node.data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            node.make_durable(len(data))
        self._change(NameChange(path, node))
        if sync:
            self._commit_names()

    def one_writer(self) -> AbstractContextManager[object]:
        return nullcontext()

    def new_lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def sync_dir(self, path: PurePath) -> None:
        self.check("sync", path)
        self.require_descriptor(path)
        self._require_dir(path)
        self._commit_names()

    def lock(self, path: PurePath) -> Lock:
        self.check("lock", path)
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        if path not in self._names:
            self.open(path, create=True).close()
        self.require_descriptor(path)
        self.descriptors += 1
        self.locks[path] = SimulatedLock(self, path)
        return self.locks[path]
