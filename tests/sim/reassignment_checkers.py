"""What must hold of reassignments at any moment, by what the store says."""

from collections.abc import Mapping

from tests.sim.checkers import Agreed, Key, Sight, Violation


class SoundReassignments:
    """An in-sync replica leaves the assignment only when its successors are in sync: all of the
    assignment, or, if nothing was added, as many as acks=all needs."""

    def __init__(self, min_insync_replicas: int) -> None:
        self._min_insync_replicas = min_insync_replicas
        self._last: Mapping[Key, Agreed] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for key, agreed in sight.agreed.items():
            last = self._last.get(key)
            if last is not None and agreed.partition_epoch == last.partition_epoch + 1:
                self._compare(last, agreed)
        self._last = sight.agreed

    def _compare(self, last: Agreed, agreed: Agreed) -> None:
        if {*last.isr} <= {*agreed.replicas}:
            return
        is_added = not {*agreed.replicas} <= {*(last.original or last.replicas)}
        needed = len(agreed.replicas)
        if not is_added:
            needed = min(needed, self._min_insync_replicas)
        if len(agreed.isr) < needed:
            raise Violation(f"removed before its successors are in sync: {agreed} after {last}")
