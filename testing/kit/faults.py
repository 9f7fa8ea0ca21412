"""A fault that a test has made, and how it is undone."""

from collections.abc import Callable
from typing import Self


class Fault:
    """Something that is broken until `undo`, or until the end of a `with` block.

        with cluster.pause(2):
            ...

    `brokers` are the numbers of those that it was done to; `takes_down` says that they neither lead
    nor answer while it lasts.
    """

    def __init__(
        self,
        text: str,
        brokers: tuple[int, ...],
        undo: Callable[[], object],
        *,
        takes_down: bool = False,
    ) -> None:
        self.text = text
        self.brokers = brokers
        self.takes_down = takes_down
        self.is_undone = False
        self._undo = undo

    def __repr__(self) -> str:
        return f"<{self.text}{', undone' if self.is_undone else ''}>"

    def undo(self) -> None:
        """Undo the fault. May be repeated."""
        if not self.is_undone:
            self._undo()
            self.is_undone = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
