"""Reads orders and sends a bill for each, in transactions. Its bug, if it has one:

* "reads on": after an abort it does not read the same orders again.
* "commits apart": it commits the offsets by its consumer, after the transaction.
* "takes doubt for an abort": after a commit without an answer it sends the same bills again.
"""

from collections.abc import Callable

from minibroker.client import ConsumerRecord
from minibroker.client.errors import TransactionAbortable, TransactionInDoubt
from minibroker.testing import History, KafkaCluster
from minibroker.testing.kit.recorded import RecordedConsumer, RecordedProducer

PATIENCE_S = 60


def nothing() -> None:
    """Nothing happens there."""


class Biller:
    """The program. `after_commit` and `in_doubt` are called after a commit, and when there was no
    answer to one."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: tuple[str, str],
        history: History,
        bug: str = "",
        *,
        after_commit: Callable[[], None] = nothing,
        in_doubt: Callable[[], None] = nothing,
    ) -> None:
        """`topics` are those of the orders and of the bills."""
        self._cluster = cluster
        self._source, self._target = topics
        self._history = history
        self._bug = bug
        self._after_commit = after_commit
        self._in_doubt = in_doubt
        self._again: list[ConsumerRecord] = []

    def run(self, last: bytes) -> None:
        """Send bills up to this order, from the group's offset on."""
        is_done = False
        while not is_done:
            try:
                self._run(last)
                is_done = True
            except TransactionInDoubt:
                self._in_doubt()

    def _run(self, last: bytes) -> None:
        with (
            self._cluster.producer(
                history=self._history, transactional_id=self._source, max_block_ms=1_000
            ) as producer,
            self._cluster.consumer(
                history=self._history,
                group_id=self._source,
                isolation_level="read_committed",
                max_poll_records=2,
            ) as consumer,
        ):
            assert isinstance(consumer, RecordedConsumer)
            consumer.subscribe(self._source)
            while not self._bill(producer, consumer, last):
                pass

    def _bill(self, producer: RecordedProducer, consumer: RecordedConsumer, last: bytes) -> bool:
        records, self._again = [*self._again, *consumer.poll(PATIENCE_S)], []
        try:
            with producer.transaction():
                for record in records:
                    producer.send(self._target, b"bill of " + (record.value or b""), partition=0)
                    self._history.processed(record.value, transaction=producer.transaction_name)
                producer.flush()
                if self._bug != "commits apart":
                    offsets = consumer.committable_offsets()
                    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        except TransactionInDoubt:
            if self._bug == "takes doubt for an abort":
                self._again = records
                raise
            self._in_doubt()
            producer.commit_transaction()
        except TransactionAbortable:
            if self._bug != "reads on":
                for name, at in consumer.committed().items():
                    consumer.seek(name, at.offset if at else 0)
            return False
        self._after_commit()
        if self._bug == "commits apart":
            consumer.commit()
        return records[-1].value == last
