"""A member of a group of any library: a thread that polls until it is told to leave."""

import threading
from collections.abc import Callable
from typing import Any, Final

from minibroker.client.blocking import Admin

LEAVE_S_MAX: Final = 30.0


def commit_beginnings(bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """Commit offset 0 of each partition, before the group has members.

    Without a commit, librdkafka asks where the partition begins (LIST_OFFSETS). If a rebalance
    comes before the response, it reads the partition from the beginning, then or in a later
    generation, whatever is committed by then: `test_librdkafka.py`.
    """
    with Admin(bootstrap) as admin:
        admin.commit_offsets(group, {(topic, number): 0 for number in range(partitions)})


class Member:
    """A consumer in a thread of its own, until `leave`."""

    def __init__(self, run: Callable[..., None], *where: Any) -> None:
        self.values: list[bytes | None] = []
        self.leaving = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run, *where))
        self._thread.start()

    def _run(self, run: Callable[..., None], *where: Any) -> None:
        try:
            run(self, *where)
        except BaseException as error:
            self.error = error

    def join(self, timeout_s: float) -> None:
        """Wait until its thread ends, at most for so long."""
        self._thread.join(timeout_s)

    def leave(self) -> None:
        """Close the consumer in order."""
        self.leaving.set()
        self.join(LEAVE_S_MAX)
        assert not self._thread.is_alive(), "it does not leave"
        if self.error is not None:
            raise self.error
