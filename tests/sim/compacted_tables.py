"""What must always be true of a compacted topic, whatever each replica has compacted of it."""

from collections.abc import Callable
from typing import NamedTuple

from tests.sim.checkers import Key, Replica, Violation


class KeyedRecord(NamedTuple):
    """A record of a compacted topic; without a value it is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class Table:
    """What was committed of one compacted topic of one partition: every record that any replica
    called committed, and when that was first seen.

    A replica holds of these what it wants, but for this: each record that it holds is the committed
    one of that offset; it holds the newest record of each key; a newest record that is a tombstone
    may go `retention_s` after it was first seen, but not before older records of its key, unless
    the replica was behind for longer than that.
    """

    def __init__(self, decode: Callable[[bytes], list[KeyedRecord]], retention_s: float) -> None:
        self.records: dict[int, KeyedRecord] = {}
        self._decode = decode
        self._retention_s = retention_s
        self._seen_at: dict[int, float] = {}
        self._compared: dict[tuple[int, int, Key], tuple[int, ...]] = {}
        # By broker: since when its log has had which end.
        self._ends: dict[int, list[tuple[float, int]]] = {}

    def compare(self, replica: Replica, end: int, now: float) -> None:
        """Compare a replica's log below `end`. Raises `Violation`."""
        place = (replica.broker, replica.life, replica.key)
        state = (replica.generation, replica.size, replica.log_end, end)
        if self._compared.get(place) == state:
            return
        self._compared[place] = state
        self._ends.setdefault(replica.broker, []).append((now, replica.log_end))
        held = self._decode(replica.read(0, replica.log_end))
        for record in (one for one in held if one.offset < end):
            first = self.records.setdefault(record.offset, record)
            self._seen_at.setdefault(record.offset, now)
            if first != record:
                raise Violation(f"{replica}: {record} in the place of {first}")
        offsets = [record.offset for record in held]
        if offsets != sorted(set(offsets)):
            raise Violation(f"{replica}: offsets do not ascend")
        self._demand_newest(replica, held, end, now)

    def judge(self, acked: list[KeyedRecord]) -> None:
        """Compare with what producers were told. Raises `Violation`.

        A record that was superseded and compacted between two looks may never have been seen.
        """
        newest = {record.key: offset for offset, record in sorted(self.records.items())}
        for record in acked:
            there = self.records.get(record.offset)
            is_superseded = there is None and newest.get(record.key, -1) > record.offset
            if record.offset >= 0 and there != record and not is_superseded:
                raise Violation(f"{record} was acknowledged, {there} was committed")

    def _demand_newest(
        self, replica: Replica, held: list[KeyedRecord], end: int, now: float
    ) -> None:
        # Of a key with a later record, wherever that is, none is needed: a replica that is behind
        # copies what its leader has compacted.
        newest = {record.key: record for _, record in sorted(self.records.items())}
        last_held = {record.key: record for record in held}
        for key, record in newest.items():
            last = last_held.get(key)
            if record.offset >= end:
                continue
            if last is not None and last.offset >= record.offset:
                continue  # a later one may have superseded it
            if record.value is not None:
                raise Violation(f"{replica} lacks {record}, the newest of its key below {end}")
            if last is not None and not self._was_behind(replica, record):
                raise Violation(f"{replica}: {last} is there, and not {record}")
            if now < self._seen_at[record.offset] + self._retention_s:
                raise Violation(f"{replica} lacks {record} too early")

    def _was_behind(self, replica: Replica, tombstone: KeyedRecord) -> bool:
        """Whether a replica lacked a tombstone when the others could already drop it: then it never
        gets it, as in Kafka, and keeps the older record."""
        over_at = self._seen_at[tombstone.offset] + self._retention_s
        ends = self._ends[replica.broker]
        before = [end for at, end in ends if at < over_at][-1:]
        since = [end for at, end in ends if at >= over_at]
        return min([*before, *since]) <= tombstone.offset
