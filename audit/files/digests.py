"""Digests of ranges of offsets: whether ledgers and logs say the same of them, in a few numbers.

A ledger and the logs that it tells of have a row for each record. To bring both into Spark, and
each row beside its counterpart, costs far more than to read them. So the executors reduce what they
read: of each range of `RANGE` offsets, and each set of rows of it, they return how many places
(offset and contents) there are, and two digests of them. If these are equal for the ledgers and for
every replica, all rows of the range are, as far as 96 bits tell. Only the rows of other ranges are
then compared one by one (`checks.acknowledged`).

`places_xor` is the exclusive or of the hashes of all places. Two equal ones cancel each other in
it, so `places_sum` is the sum of 32 bits of another hash. `offsets_xor` is of the offsets alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from minibroker.audit.arrow import compute as pc
from minibroker.audit.model import LEDGER_DIGESTS, RECORD_DIGESTS

RANGE_BITS: Final = 12
RANGE: Final = 1 << RANGE_BITS

_Hashes: TypeAlias = npt.NDArray[np.uint64]
_NULL: Final = 0x9E3779B97F4A7C15  # in the place of a hash
_ODD: Final = np.uint64(0xBF58476D1CE4E5B9)


def digest_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return RECORD_DIGESTS of rows of RECORDS."""
    keys = [rows[name] for name in ("broker", "topic", "partition")]
    return _digests(rows, keys, RECORD_DIGESTS)


def digest_ledger(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return LEDGER_DIGESTS of rows of LEDGER."""
    names = ("ledger", "event", "group", "topic", "topic_id", "partition")
    return _digests(rows, [rows[name] for name in names], LEDGER_DIGESTS)


def _digests(rows: pa.RecordBatch, keys: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a row for each combination of keys and range, as `schema` has it."""
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    ranges = pc.shift_right(rows["offset"], RANGE_BITS)
    order, starts = _grouped([*keys, ranges])
    firsts = order[starts]
    offsets = rows["offset"].fill_null(-1).to_numpy().view(np.uint64)
    is_placed = rows["offset"].is_valid().to_numpy(zero_copy_only=False)
    hashes = _mixed(offsets)
    places = _mixed(hashes ^ _contents(rows["key"], rows["value"]))

    def reduced(values: npt.NDArray[Any], reduce: np.ufunc) -> npt.NDArray[Any]:
        return reduce.reduceat(values[order], starts)

    def reduced_or_0(hashes: _Hashes, reduce: np.ufunc) -> npt.NDArray[np.int64]:
        return reduced(np.where(is_placed, hashes, np.uint64(0)), reduce).view(np.int64)

    counts = np.diff([*starts, len(order)])
    columns: dict[str, Any] = {
        **{name: key.take(pa.array(firsts)) for name, key in zip(schema.names, keys, strict=False)},
        "range": ranges.take(pa.array(firsts)),
        "count": counts,
        "places_xor": reduced_or_0(places, np.bitwise_xor),
        "places_sum": reduced_or_0(_mixed(places ^ _ODD) >> np.uint64(32), np.add),
        "offsets_xor": reduced_or_0(hashes, np.bitwise_xor),
        "first_offset": _edge(rows["offset"], reduced, np.minimum),
        "last_offset": _edge(rows["offset"], reduced, np.maximum),
    }
    if "line" in schema.names:
        columns["line"] = _edge(rows["line"], reduced, np.minimum)
        columns["began"] = _edge(rows["timestamp"], reduced, np.minimum)
        columns["ended"] = _edge(rows["timestamp"], reduced, np.maximum)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _grouped(keys: Iterable[pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return an order in which rows with equal keys are neighbours, and where each group begins."""
    codes = np.zeros(1, np.int64)
    for key in keys:
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]  # so that no product is too large
    order = np.argsort(codes, kind="stable")
    is_first = np.diff(codes[order], prepend=-1) != 0
    return order, np.flatnonzero(is_first)


def _edge(
    values: pa.Array,
    reduced: Callable[[npt.NDArray[Any], np.ufunc], npt.NDArray[Any]],
    least_or_greatest: np.ufunc,
) -> pa.Array:
    """Return the least or greatest value of each group; null if it has none."""
    limits = np.iinfo(np.int64)
    none = limits.max if least_or_greatest is np.minimum else limits.min
    found = reduced(values.fill_null(none).to_numpy(), least_or_greatest)
    return pa.array(found, pa.int64(), mask=found == none)


def _contents(keys: pa.Array, values: pa.Array) -> _Hashes:
    """Return a hash of each key and value; null and empty ones differ."""
    return _mixed(_hashes(keys) * _ODD) ^ _hashes(values)


def _hashes(column: pa.Array) -> _Hashes:
    if column.null_count == len(column):
        return np.full(len(column), _NULL, np.uint64)
    found = (_NULL if each is None else xxh3_64_intdigest(each) for each in column.to_pylist())
    return np.fromiter(found, np.uint64, len(column))


def _mixed(values: _Hashes) -> _Hashes:
    """Return other bits for each, each of which depends on all (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _ODD
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
