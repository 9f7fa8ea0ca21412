"""Works on orders. Its bug, if it has it: it commits before it processes."""

from collections.abc import Callable

from minibroker.client.blocking import Consumer
from minibroker.testing import History

ENDS_AFTER_S = 2.0


class Worker:
    """One run over all orders that there are. `between` is called between the two steps."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        history: History,
        between: Callable[[bytes | None], None] = lambda _: None,
        *,
        commits_first: bool,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._history = history
        self._between = between
        self._commits_first = commits_first

    def run(self) -> None:
        """Until no order comes any more."""
        group = f"{self._topic}-workers"
        with Consumer(
            self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.subscribe(self._topic)
            while records := consumer.poll(ENDS_AFTER_S):
                for record in records:
                    place = record.topic, record.partition
                    self._history.polled(record.value, *place, record.offset)
                    if not self._commits_first:
                        self._history.processed(record.value)
                        self._between(record.value)
                    consumer.commit(record)
                    self._history.committed(group, *place, record.offset + 1)
                    if self._commits_first:
                        self._between(record.value)
                        self._history.processed(record.value)
