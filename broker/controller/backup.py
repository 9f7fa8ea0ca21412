"""A backup of the metadata: one JSON document of the store's entries at one revision.

It has what only the store knows: the cluster's id, topics, partitions, settings, and the counters
of which no number may be used twice. It leaves out what belongs to running brokers (the
controller's claim, registrations), what each broker says of its own directory (admissions,
departures), and tombstones: no directory is deleted because of a backup. The ids of the brokers
that were known are named, because a restore compares their logs.

    {"format": "minibroker metadata", "version": 1, "cluster_id": ..., "revision": ...,
     "exported_at_ms": ..., "brokers": [1, 2, 3], "entries": {KEY: VALUE, ...}, "crc32": ...}

The values are JSON, as in the store. The checksum is that of the document without it, written
without spaces and with sorted keys; so a formatter may change the spaces, but no value.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from minibroker.broker.controller import entries
from minibroker.broker.controller.state import State
from minibroker.broker.metadata.store import Entry, Snapshot, StoreError
from minibroker.broker.turns import without_pause

FORMAT: Final = "minibroker metadata"
VERSION: Final = 1
LEFT_OUT: Final = (
    entries.CONTROLLER,
    entries.BROKERS,
    entries.ADMISSIONS,
    entries.DEPARTURES,
    entries.TOMBSTONES,
    entries.RESTORE,
)


class BackupError(Exception):
    """A backup that cannot be read, made or restored; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Backup:
    """See the head of this module. `exported_at_ms` is the wall clock at the export."""

    cluster_id: str
    revision: int
    exported_at_ms: int
    brokers: tuple[int, ...]
    values: Mapping[str, bytes]

    @property
    def entries(self) -> dict[str, Entry]:
        """The entries as a store would return them."""
        return {key: Entry(value, self.revision) for key, value in self.values.items()}

    def read(self) -> State:
        """Return the topics and settings. Raises `BackupError`."""
        try:
            return without_pause(entries.read_state(self.entries))
        except StoreError as error:
            cause = error.__cause__
            raise BackupError(f"it is no sound backup: {cause!r}; take another one") from error


def backup_of(snapshot: Snapshot, now_ms: int) -> Backup:
    """Return the backup of a whole store. Raises `BackupError` for a store without a cluster, and
    `StoreError` for a damaged one."""
    found = snapshot.entries
    cluster_id = entries.read_cluster_id(found)
    if cluster_id is None:
        raise BackupError("the metadata store knows of no cluster: name the one that brokers use")
    if entries.RESTORE in found:
        raise BackupError(f"the metadata store is half restored: {RESTORE_AGAIN}")
    state = without_pause(entries.read_state(found))
    known = {*state.admissions, *entries.read_brokers(found)}
    values = {key: entry.value for key, entry in found.items() if not is_left_out(key)}
    return Backup(cluster_id, snapshot.revision, now_ms, tuple(sorted(known)), values)


RESTORE_AGAIN: Final = "run `minibroker metadata restore` with the backup again"


def is_left_out(key: str) -> bool:
    """Whether a backup does not have this key."""
    return any(
        key.startswith(left_out) if left_out.endswith("/") else key == left_out
        for left_out in LEFT_OUT
    )


def dump(backup: Backup) -> bytes:
    """Return the document."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "cluster_id": backup.cluster_id,
        "revision": backup.revision,
        "exported_at_ms": backup.exported_at_ms,
        "brokers": list(backup.brokers),
        "entries": {key: json.loads(value) for key, value in sorted(backup.values.items())},
    }
    return json.dumps({**document, "crc32": _checksum(document)}, indent=1).encode() + b"\n"


def load(data: bytes) -> Backup:
    """Return the backup in a document. Raises `BackupError`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackupError(f"it is no backup of metadata, or is cut off: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BackupError("it is no backup of metadata: `minibroker metadata export` makes one")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise BackupError(f"its format version {version!r} does not exist; take another one")
    if version > VERSION:
        raise BackupError(
            f"its format version is {version}, and this minibroker knows {VERSION}: restore it with"
            " the version of minibroker that made it, or a later one"
        )
    said = document.pop("crc32", None)
    if said != _checksum(document):
        raise BackupError("its checksum is wrong: it was changed or damaged; take another one")
    try:
        backup = Backup(
            str(document["cluster_id"]),
            int(document["revision"]),
            int(document["exported_at_ms"]),
            tuple(map(int, document["brokers"])),
            {key: json.dumps(value).encode() for key, value in document["entries"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BackupError(f"it is no sound backup: {error!r}; take another one") from error
    if entries.read_cluster_id(backup.entries) != backup.cluster_id:
        raise BackupError("it is no sound backup: it names two clusters; take another one")
    return backup


def _checksum(document: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the document without its checksum."""
    return zlib.crc32(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
