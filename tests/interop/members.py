"""A member of a group of any library: a thread that polls until it is told to leave."""

import threading
from collections.abc import Callable
from typing import Any, Final

LEAVE_S_MAX: Final = 30.0


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

    def leave(self) -> None:
        """Close the consumer in order."""
        self.leaving.set()
        self._thread.join(LEAVE_S_MAX)
        assert not self._thread.is_alive(), "it does not leave"
        if self.error is not None:
            raise self.error
