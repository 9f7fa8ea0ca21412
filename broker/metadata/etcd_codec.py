"""The JSON of etcd's gateway: bodies of requests, and the parsing of answers.

Bytes are base64 and 64-bit numbers are text; an answer leaves out zero, empty and false values.
etcd's first revision is 1, and our revision is etcd's less one, so that 0 is before the first
write, as in every store. For a key, 0 means "absent", in etcd and here.

etcd accepts 128 operations in a transaction by default, but an operation may be a transaction
itself. So many writes are put into nested groups, and are still one transaction with one revision.
etcd's `--max-request-bytes` limits their size.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from minibroker.broker.metadata.store import ABSENT, NO_LEASE, Compare, Delete, Entry, Put

Json = dict[str, Any]

GROUP: Final = 32  # operations; three depths keep within 128 together, as etcd counts them
REFUSED: Final = b" refused"


class Mark(NamedTuple):
    """The key that each transaction of one writer compares and changes (see `etcd_store`)."""

    key: str
    revision: int  # the last known one; `ABSENT` if there is no such key


def range_body(prefix: str) -> Json:
    """Ask for all entries whose keys begin with `prefix`, which is not empty."""
    return {"key": _b64(prefix), "range_end": _end_of(prefix)}


def watch_body(prefix: str, after: int) -> Json:
    """Ask for all events under `prefix` after revision `after`, past and future."""
    created = {**range_body(prefix), "start_revision": str(after + 2)}  # inclusive, and etcd's
    return {"create_request": created}


def comparison_body(compare: Sequence[Compare], anchor: str) -> Json:
    """Ask whether all comparisons hold.

    For a transaction without operations, the etcd member would use its own state, which may be
    old. The read makes it consult the others. `anchor` is any key.
    """
    read = [{"request_range": {"key": _b64(anchor), "count_only": True}}]
    return {"compare": [_comparison(*one) for one in compare], "success": read, "failure": read}


def transaction_body(
    compare: Sequence[Compare],
    writes: Sequence[Put | Delete],
    mark: Mark,
    attempt: bytes,
    is_in_doubt: bool,
) -> Json:
    """Make the writes, and set the mark to `attempt`, if the mark is unchanged and all comparisons
    hold.

    If not, read the mark. If an earlier request of the same attempt is in doubt, first change the
    mark if it is unchanged, so that etcd cannot execute that request later.
    """
    unchanged = _comparison(mark.key, mark.revision)
    operations = [_operation(write) for write in writes]
    while len(operations) > GROUP:
        groups = [operations[n : n + GROUP] for n in range(0, len(operations), GROUP)]
        operations = [{"request_txn": {"success": group}} for group in groups]
    refusal: Json = {"compare": [unchanged], "success": [_put(mark.key, attempt + REFUSED)]}
    return {
        "compare": [unchanged, *(_comparison(*one) for one in compare)],
        "success": [_put(mark.key, attempt), *operations],
        "failure": [
            *([{"request_txn": refusal}] if is_in_doubt else []),
            {"request_range": mark_body(mark.key)},
        ],
    }


def mark_body(key: str) -> Json:
    """Ask for one key, a mark's."""
    return {"key": _b64(key)}


def read_mark(answer: Json) -> Entry:
    """Return the mark from the answer to `mark_body`, or to a transaction that was not made."""
    if "responses" in answer:
        answer = answer["responses"][-1]["response_range"]
    found = answer.get("kvs")
    return _entry(found[0]) if found else Entry(b"", ABSENT)


def read_entries(answer: Json, root: str) -> dict[str, Entry]:
    """Return the entries of an answer to `range_body`, by key without `root`."""
    return {
        b64decode(found["key"]).decode().removeprefix(root): _entry(found)
        for found in answer.get("kvs", ())
    }


def revision_of(answer: Json) -> int:
    """Return the store's revision."""
    return int(answer["header"]["revision"]) - 1


def term_of(answer: Json) -> int:
    """Return the term of etcd's leader, as the answering member knew it."""
    return int(answer["header"]["raft_term"])


def _entry(found: Json) -> Entry:
    return Entry(b64decode(found.get("value", "")), int(found["mod_revision"]) - 1)


def _comparison(key: str, revision: int) -> Json:
    theirs = str(revision if revision == ABSENT else revision + 1)
    return {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": theirs}


def _operation(write: Put | Delete) -> Json:
    if isinstance(write, Put):
        return _put(write.key, write.value, write.lease)
    return {"request_delete_range": {"key": _b64(write.key)}}


def _put(key: str, value: bytes, lease: int = NO_LEASE) -> Json:
    put = {"key": _b64(key), "value": b64encode(value).decode()}
    return {"request_put": {**put, "lease": str(lease)} if lease != NO_LEASE else put}


def _b64(key: str) -> str:
    return b64encode(key.encode()).decode()


def _end_of(prefix: str) -> str:
    first = prefix.encode()  # of UTF-8, so no byte is 255
    return b64encode(first[:-1] + bytes([first[-1] + 1])).decode()
