"""A metadata store of format 1, which single brokers had before there was replication.

An entry had no lease then. What stands under one now is left out: it was that broker's own, and
must not seem to be held by somebody who never ends. The controller's epoch stays and gets a key of
its own, so that it goes on growing; who holds what was deleted is the broker that was there.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from crc32c import crc32c

from minibroker.broker.metadata.sqlite_file import damaged

VERSION: Final = 1
ROWS: Final = "SELECT key, value, revision, crc FROM entries ORDER BY key"
CONTROLLER: Final = "controller"
BROKERS: Final = "brokers/"
TOMBSTONES: Final = "tombstones/"


def entries_of(connection: sqlite3.Connection, path: PurePath) -> Iterator[tuple[str, bytes, int]]:
    """Key, value and revision of what stays. Raises `StoreError` if one fails its checksum."""
    rows = connection.execute(ROWS).fetchall()
    holders = [int(key.removeprefix(BROKERS)) for key, *_ in rows if key.startswith(BROKERS)]
    for key, value, revision, crc in rows:
        if crc32c(b"%s\0%d\0%s" % (key.encode(), revision, value)) != crc:
            raise damaged(path, f"the entry {key!r} fails its checksum")
        if key == CONTROLLER:
            yield "controller-epoch", json.dumps(json.loads(value)["epoch"]).encode(), revision
        elif key.startswith(TOMBSTONES):
            yield key, json.dumps({**json.loads(value), "holders": holders}).encode(), revision
        elif not key.startswith(BROKERS):
            yield key, value, revision
