"""The readers of `consume`: some partitions of topics, or those assigned by a group."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minibroker.cli.terminal import Failure, note
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.cli.data.formats import Start
    from minibroker.client import ConsumerRecord
    from minibroker.client.blocking import Consumer


class PartitionReader:
    """Reads these partitions, independently of all other consumers.

    `until_ms`: it reads each partition up to its first record of this time (ms since 1970) or a
    later one.
    """

    def __init__(
        self,
        consumer: "Consumer",
        names: Sequence[TopicPartition],
        until_ms: int | None = None,
    ) -> None:
        self._consumer = consumer
        self._names = names
        self._until_ms = until_ms
        self._ends: dict[TopicPartition, int] = {}

    def begin(self, start: "Start") -> None:
        """Assign the partitions and seek to the start of reading."""
        consumer, names = self._consumer, self._names
        if not names:
            raise Failure("nothing can be read; the broker's log says why")
        consumer.assign(names)
        ends = self._ends = consumer.end_offsets(*names)
        if self._until_ms is not None:
            self._ends = {**ends}
            times = dict.fromkeys(names, self._until_ms)
            for name, found in consumer.offsets_for_times(times).items():
                if found is not None:
                    self._ends[name] = min(found.offset, ends[name])
        if start.kind == "time":
            consumer.seek_to_time(start.number)
            return
        beginnings = consumer.beginning_offsets(*names)
        for name in names:
            first, end = beginnings[name], ends[name]
            offset = {
                "beginning": first,
                "end": end,
                "tail": max(first, end - start.number),
                "offset": start.number,
            }[start.kind]
            consumer.seek(name, offset)

    def warn_of_offsets_beyond(self) -> None:
        """Print the partitions that end before the start of reading."""
        for name, end in self._ends.items():
            offset = self._consumer.position(name)
            if offset is not None and offset > end:
                note(f"{name}: offset {offset} is beyond the end, which is {end}")

    @property
    def is_done(self) -> bool:
        """Whether everything was read that was there at the beginning."""
        return all((self._consumer.position(name) or 0) >= end for name, end in self._ends.items())

    def wanted(self, records: "list[ConsumerRecord]") -> "list[ConsumerRecord]":
        """Return the records before the time at which reading ends."""
        if self._until_ms is None:
            return records
        return [one for one in records if one.offset < self._ends[TopicPartition(*one[:2])]]

    def return_unprinted(self, records: "Sequence[ConsumerRecord]") -> None:
        """Do nothing with records that were read and not printed: nothing is committed."""


class GroupReader:
    """Reads the partitions that the group assigns to this member, and prints changes to stderr.

    `names` are the partitions of the topics as of now.
    """

    def __init__(
        self,
        consumer: "Consumer",
        names: Sequence[TopicPartition],
        pattern: re.Pattern[str] | None,
    ) -> None:
        self._consumer = consumer
        self._pattern = pattern
        self._names = names
        self._ends: dict[TopicPartition, int] = {}

    def begin(self, start: "Start") -> None:
        """Join the group. The group has the offsets; the consumer's options include `start`."""
        if not self._names:
            raise Failure("nothing can be read; the broker's log says why")
        self._ends = self._consumer.end_offsets(*self._names)
        topics = sorted({name.topic for name in self._names})
        self._consumer.subscribe(
            self._pattern or topics,
            on_assigned=lambda names: _name_partitions("assigned", names),
            on_revoked=lambda names: _name_partitions("given back", names),
            on_lost=lambda names: _name_partitions("lost", names),
        )

    def warn_of_offsets_beyond(self) -> None:
        """Do nothing: `group describe` warns of the group's offsets."""

    def wanted(self, records: "list[ConsumerRecord]") -> "list[ConsumerRecord]":
        """Return all: a group knows no time at which reading ends."""
        return records

    def return_unprinted(self, records: "Sequence[ConsumerRecord]") -> None:
        """Seek back to records that were read and not printed, so that they are not committed."""
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for name, offset in firsts.items():
            self._consumer.seek(name, offset)

    @property
    def is_done(self) -> bool:
        """Whether this member, and the others by their commits, have read all that was there."""
        mine = self._consumer.assignment
        others = [name for name in self._ends if name not in mine]
        if any((self._consumer.position(name) or 0) < self._ends.get(name, 0) for name in mine):
            return False
        committed = self._consumer.committed(*others) if others else {}
        return all(
            self._ends[name] == 0 or (at is not None and at.offset >= self._ends[name])
            for name, at in committed.items()
        )


def _name_partitions(what: str, names: list[TopicPartition]) -> None:
    if names:
        note(f"partitions {what}: {', '.join(map(str, names))}")
