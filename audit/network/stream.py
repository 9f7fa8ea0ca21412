"""Reading topics over the network as a stream.

Spark keeps the progress: before a micro-batch runs, it writes the batch's end into the checkpoint,
and after a crash it runs the same batch again, between the same offsets. So `commit` has nothing to
do, and an exactly-once sink gets each record once.

That holds for the first batch only if its start is the same after the crash: Spark does not store
it but asks for it again. So `initialOffset` resolves neither EARLIEST nor LATEST: it returns them
for each partition as the options have them. It does resolve a starting time, since the first record
of a time stays the same. A first batch that begins at LATEST is empty; it only fixes where the
second one begins.

A partition that a batch's start does not name was created later and is read from its beginning. The
client finds it when it next refreshes its metadata, after `metadata.max.age.ms` at most.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from minibroker.audit.network.options import (
    EARLIEST,
    LATEST,
    Offsets,
    ReadOptions,
    from_json,
    limited,
    to_json,
)
from minibroker.audit.network.source import (
    GONE,
    Range,
    chosen_partitions,
    existing,
    plan_ranges,
    read_range,
    report_loss,
    starting_offsets,
)
from minibroker.client.blocking import Consumer
from minibroker.protocol.errors import BrokerError

Json = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`. In the driver a consumer asks for offsets, until `stop`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._open = ExitStack()
        self._consumer: Consumer | None = None
        self._target: Offsets | None = None  # for Trigger.AvailableNow
        self._latest: Offsets = {}  # the last known ends

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return where a new query begins, unresolved."""
        names = chosen_partitions(self._asking(), self._options)
        return to_json(starting_offsets(self._asking(), self._options, names))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that `maxOffsetsPerTrigger` sets."""
        limit = self._options.limit
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the present ends as the last offsets to read."""
        self._target = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the next micro-batch; equal to its start if nothing is to be read."""
        end = self._ends() if self._target is None else self._target
        self._latest = end
        begin = self._resolve(from_json(start), end)
        for name, offset in begin.items():
            if end[name] < offset:
                report_loss(
                    self._options, f"{name} was read up to offset {offset}, but ends at {end[name]}"
                )
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return the last known ends, for the query's progress."""
        return to_json(self._latest) or None

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        until = from_json(end)
        return plan_ranges(self._resolve(from_json(start), until), until, self._options.split)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        assert isinstance(partition, Range)
        return read_range(self._options, partition)

    def stop(self) -> None:
        """Close the consumer; the query has ended."""
        self._consumer = None
        self._open.close()

    def _asking(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._open.enter_context(Consumer(self._options.client))
        return self._consumer

    def _ends(self) -> Offsets:
        """Return the ends of all partitions of the topics that exist."""
        try:
            return self._ask_ends()
        except BrokerError as error:
            if error.code != GONE:
                raise
            return self._ask_ends()  # deleted meanwhile; now the client knows that

    def _ask_ends(self) -> Offsets:
        names = existing(self._asking(), self._options, self._options.topics)
        if (assigned := self._options.assigned) is not None:
            names = [name for name in names if name in assigned]
        return self._asking().end_offsets(*names) if names else {}

    def _resolve(self, begin: Offsets, end: Offsets) -> Offsets:
        """Return where a batch that ends at `end` begins: see the module's docstring."""
        start = {name: begin.get(name, EARLIEST) for name in end}
        start |= {name: end[name] for name in end if start[name] == LATEST}
        if asked := {name for name in end if start[name] == EARLIEST}:
            topics = sorted({name.topic for name in asked})
            there = asked.intersection(existing(self._asking(), self._options, topics))
            start |= {name: end[name] for name in asked}  # empty if the partition is gone
            if there:
                start |= self._asking().beginning_offsets(*there)
        return start
