"""A broker on a slower disk: `python slow_disk.py SPEED ARGUMENT...` runs `minibroker ARGUMENT...`
in a process whose reads of what is not in the page cache get SPEED MB in a second.

The disks of many machines that run tests answer from the memory of their hosts. A process cannot
slow them down, but it can wait at its own reads, in the thread that reads. It does so once for each
128 KB, which then are in the page cache: so much Linux reads ahead where it is not told otherwise.
"""

import os
import runpy
import sys
import time
from typing import Any

_CHUNK_BYTES = 128 * 1024
_CHUNK_S = _CHUNK_BYTES / (float(sys.argv[1]) * (1 << 20))
_open, _pread, _sendfile = os.open, os.pread, os.sendfile


def _is_cached(descriptor: int, position: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def _wait(descriptor: int, position: int, size: int) -> None:
    """Read what is not in the page cache, at the speed of the slow disk. Looks at the last byte of
    each chunk, which no look at a header has brought there."""
    file_size = os.fstat(descriptor).st_size
    end = min(position + size, file_size)
    for start in range(position - position % _CHUNK_BYTES, end, _CHUNK_BYTES):
        if not _is_cached(descriptor, min(start + _CHUNK_BYTES, file_size) - 1):
            time.sleep(_CHUNK_S)
            _pread(descriptor, _CHUNK_BYTES, start)


def _slow_open(*args: Any, **options: Any) -> int:
    descriptor = _open(*args, **options)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # the system reads nothing ahead
    return descriptor


def _slow_pread(descriptor: int, size: int, position: int) -> bytes:
    _wait(descriptor, position, size)
    return _pread(descriptor, size, position)


def _slow_sendfile(out: int, descriptor: int, position: int, size: int) -> int:
    _wait(descriptor, position, size)
    return _sendfile(out, descriptor, position, size)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    for slow in (_slow_open, _slow_pread, _slow_sendfile):
        setattr(os, slow.__name__.removeprefix("_slow_"), slow)
    del sys.argv[1]
    runpy.run_module("minibroker.cli", run_name="__main__", alter_sys=True)
