"""The file `partition.metadata` of a log: which topic of that name it belongs to.

In Kafka's form: a version line, then the topic id in URL-safe base64 without padding. A topic that
was deleted and made again has another id, so its old logs are never taken for its new ones.
"""

import base64
import logging
from contextlib import suppress
from pathlib import PurePath

from minibroker.broker.log.files import Files

LOGGER = logging.getLogger(__name__)
PARTITION_METADATA = "partition.metadata"


def read_topic_id(files: Files, directory: PurePath) -> bytes:
    """The topic id of the log in a directory, b"" if it cannot be told."""
    path = directory / PARTITION_METADATA
    data = files.read_bytes(path) if files.exists(path) else b""
    for line in data.splitlines():
        name, _, value = line.partition(b": ")
        if name == b"topic_id":
            with suppress(ValueError):
                return base64.urlsafe_b64decode(value + b"==")
    LOGGER.warning("%s names no topic id", path)
    return b""


def write_topic_id(files: Files, directory: PurePath, topic_id: bytes) -> None:
    """Say whose log it is. It is durable once the log was flushed: an fsync for each log that is
    made would hold the loop up when a topic has many."""
    text = b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id).rstrip(b"=") + b"\n"
    files.write_atomic(directory / PARTITION_METADATA, text, sync=False)
