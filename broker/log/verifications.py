"""The transactions that a leader is asking their coordinators about.

A transaction begins in a log only after its coordinator has said that it knows the transaction with
this partition; a batch of another would never get a marker, and hold the last stable offset back
for ever. While the answer is on its way a marker may be written: then the transaction that was
asked about has ended, and the answer is worth nothing. So a verification is a value that a marker
of its producer makes invalid. It is not part of the log's state, and not restored.
"""


class Verification:
    """One question about a producer's transaction. Equal only to itself."""

    __slots__ = ("producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class Verifications:
    """The valid verifications of one log; a producer may have one for each of its epochs."""

    def __init__(self) -> None:
        self._valid: dict[int, set[Verification]] = {}  # by producer id

    def begin(self, producer_id: int, producer_epoch: int) -> Verification:
        """Return a new verification."""
        verification = Verification(producer_id, producer_epoch)
        self._valid.setdefault(producer_id, set()).add(verification)
        return verification

    def is_valid(self, verification: Verification | None, producer_epoch: int) -> bool:
        """Whether a transaction of this epoch may begin by a verification."""
        return (
            verification is not None
            and verification in self._valid.get(verification.producer_id, ())
            and verification.producer_epoch == producer_epoch
        )

    def end(self, verification: Verification) -> None:
        """Forget a verification: all batches that waited for it were appended or refused."""
        valid = self._valid.get(verification.producer_id)
        if valid is not None:
            valid.discard(verification)
            if not valid:
                del self._valid[verification.producer_id]

    def on_marker(self, producer_id: int) -> None:
        """Make the verifications of a producer invalid, since its transaction has ended."""
        self._valid.pop(producer_id, None)
