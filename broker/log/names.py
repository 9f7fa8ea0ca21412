"""Names in a data directory: which are logs, and what is on its way out.

Only what has exactly our form is ours. A directory may lie where somebody keeps other things, too,
and those are neither read nor removed, however much they look like a topic's.
"""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import PurePath

from minibroker.broker.log.files import Files
from minibroker.protocol.types import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255
_LOG = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DELETED = re.compile(r"[a-zA-Z0-9._-]+\.[0-9a-f]{32}[0-9]*-delete")


def parse_log_name(name: str) -> TopicPartition | None:
    """The partition of a directory's name; None if it is none."""
    found = _LOG.fullmatch(name)
    return None if found is None else TopicPartition(found[1], int(found[2]))


def is_deleted_name(name: str) -> bool:
    """Whether a directory was named by `name_aside` to be removed."""
    return _DELETED.fullmatch(name) is not None


def is_among_deleted(topic_partition: TopicPartition, deleted: Sequence[str]) -> bool:
    """Whether one of these directories, named by `name_aside`, was the log of a partition."""
    name = str(topic_partition)
    for path in deleted:
        start, _, _ = path.rpartition(".")
        if start == name or (len(path) == NAME_BYTES_MAX and name.startswith(start)):
            return True
    return False


def name_aside(
    files: Files, root: PurePath, topic_partition: TopicPartition, topic_id: bytes, suffix: str
) -> PurePath:
    """A free name for a log's directory that is to make room for another of its name."""
    for number in count():
        ending = f".{topic_id.hex()}{number or ''}{suffix}"
        path = root / (str(topic_partition)[: NAME_BYTES_MAX - len(ending)] + ending)
        if not files.exists(path):
            return path
    raise AssertionError("the numbers ended")
