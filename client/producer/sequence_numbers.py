"""Idempotence: the sequence of each batch, when it may be sent, and what errors mean.

A broker accepts a batch of a producer only if its sequence follows the last one it has from it in
that partition, and answers one it has already with the first answer. So a batch that is sent again
must be the same: same id, epoch, sequence. All rules here serve that:

* A batch is numbered when it is first drained. Batches that are sent again go one at a time, lowest
  first; a new batch does not start while one with an older identity is in flight.
* If a broker cannot connect the lowest batch in flight to what it has (it lost state, or a batch
  before it failed for good), the numbers are of no more use: the epoch is raised, locally, and
  *this* queue starts again from 0. The others keep their numbers until all they have sent is
  answered; only then do they go on in the new epoch. Renumbering batches that may have been written
  would duplicate records. So the same refusal of a batch that is not the lowest one in flight is
  ignored: those before it may still be accepted.
* The first batch of a queue in an epoch is sent alone, until it is acknowledged. A broker that does
  not know the producer accepts any first sequence: after a failover the second batch could reach
  the new leader before the first one, and take its place.
* A queue is renumbered only when nothing of it is in flight, so no answer to old numbers can be
  taken for one to new numbers. Until then it sends nothing.
* A batch that was sent and then given up leaves a gap, or was written by a try whose answer was
  lost: the queue is *unresolved* and sends no new batch until all in flight is completed. If then
  the last acknowledged sequence is the last given, there is no gap; else it is renumbered.

Each rule costs a queue one pause of a round trip, and only after an error.

The epoch of a transactional producer is the coordinator's: each end of a transaction gives the
next one, in which all queues start again from 0. Where the rules above would raise the epoch, a
batch of the transaction has failed for good; then the transaction can only be aborted, and none of
its batches is sent any more (transaction_manager.py).
"""

from itertools import islice

from minibroker.client.producer.batches import Batch, PartitionQueue, ProducerIdAndEpoch
from minibroker.protocol.constants import (
    NO_OFFSET,
    NO_SEQUENCE,
    PRODUCER_EPOCH_MAX,
    ErrorCode,
)
from minibroker.protocol.messages.produce import PartitionProduced
from minibroker.protocol.records.batch import (
    ProducerStamp,
    increment_sequence,
    stamp_producer,
    stamp_transaction,
)


class SequenceNumbers:
    """The producer's identity, and the rules above for every queue."""

    def __init__(self, *, is_transactional: bool = False) -> None:
        self.identity: ProducerIdAndEpoch | None = None  # None: a new producer id is needed
        self._is_transactional = is_transactional
        self._stamp = stamp_transaction if is_transactional else stamp_producer

    def may_send(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the first batch of a queue may be sent now."""
        if queue.must_renumber:
            return False
        if batch.identity is not None:
            return not queue.in_flight or batch.position < queue.in_flight[0].position
        if self.identity is None or queue.is_unresolved:
            return False
        if queue.identity != self.identity or not queue.expected_sequence:
            return not queue.in_flight
        return True

    def assign(self, queue: PartitionQueue, batch: Batch) -> None:
        """Number a batch that is drained for the first time."""
        assert batch.identity is None, "a batch that was numbered keeps its number"
        assert self.identity is not None, "may_send was asked"
        if queue.identity != self.identity:
            assert not queue.in_flight, "a queue changes its identity with nothing in flight"
            queue.identity = self.identity
            queue.next_sequence = queue.expected_sequence = 0
        self._write(batch, self.identity, queue.next_sequence)
        queue.next_sequence = increment_sequence(queue.next_sequence, batch.record_count)

    def assign_parts(self, whole: Batch, parts: list[Batch]) -> None:
        """Give the parts of a split batch its numbers, so that later batches keep theirs."""
        if whole.identity is None:
            return
        sequence = whole.sequence
        for part in parts:
            self._write(part, whole.identity, sequence)
            sequence = increment_sequence(sequence, part.record_count)

    def on_acknowledged(self, queue: PartitionQueue, batch: Batch) -> None:
        """Record that the broker has this batch; what is known as acknowledged never goes back."""
        if batch.identity is not None and batch.position >= queue.acked_position:
            assert batch.identity == queue.identity, "a queue changes with nothing in flight"
            queue.acked_position = batch.position + batch.record_count
            queue.expected_sequence = increment_sequence(batch.sequence, batch.record_count)

    def is_known_to_be_written(self, queue: PartitionQueue, batch: Batch, code: int) -> bool:
        """Whether a refusal only means that the broker had the batch already.

        One after it was acknowledged under the same numbers, so it was written before that one; the
        broker just no longer remembers its offset. That would be wrong if the broker had forgotten
        the producer and taken the later one for its first. So the first batch is sent alone.
        """
        return code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER or (
            code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            and batch.identity == queue.identity
            and batch.position < queue.acked_position
        )

    def is_about_numbers(
        self, queue: PartitionQueue, batch: Batch, answer: PartitionProduced
    ) -> bool:
        """Whether the broker refused the batch for its numbers: then it is to be sent again.

        With the same numbers, if one before it is still in flight: that one is sent first and may
        fill the gap. The lowest one can never be accepted, nor any after it: they get new numbers.
        The refusal of a broker that does not know its log start yet is ignored (CPR-09).
        """
        if batch.identity is None:
            return False
        if answer.error == ErrorCode.UNKNOWN_PRODUCER_ID:
            is_final = answer.log_start != NO_OFFSET
        elif answer.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_final = True
        else:
            return False
        if is_final and not any(
            other.identity is not None and other.position < batch.position
            for other in (*queue.in_flight[:1], *islice(queue.sealed, 1))
        ):
            if self._is_transactional:
                return False  # in this transaction it can never be accepted
            queue.must_renumber = True
        return True

    def on_given_up(self, queue: PartitionQueue, batch: Batch) -> None:
        """Handle that a batch failed for good: its numbers are a gap, unless an earlier try was
        written."""
        if batch.identity is not None:
            queue.is_unresolved = True

    def resolve(self, queue: PartitionQueue) -> None:
        """Do what had to wait until nothing of the queue is in flight."""
        assert not queue.in_flight
        if queue.must_renumber:
            self._renumber(queue)
        elif queue.is_unresolved and not (queue.sealed and queue.sealed[0].identity is not None):
            if queue.expected_sequence == queue.next_sequence:
                queue.is_unresolved = False
            else:
                self._renumber(queue)

    def may_forget(self, queues: list[PartitionQueue]) -> bool:
        """Whether these queues' sequences may be dropped: not within a transaction, whose epoch
        stays."""
        return not self._is_transactional or all(
            queue.identity != self.identity for queue in queues
        )

    def forget(self, queues: list[PartitionQueue]) -> None:
        """Drop these queues' sequences: new queues for their partitions begin in another epoch."""
        if any(queue.identity == self.identity for queue in queues):
            self._bump_epoch()

    def _renumber(self, queue: PartitionQueue) -> None:
        queue.must_renumber = queue.is_unresolved = False
        # A queue that is behind an earlier new epoch has it already.
        if queue.identity == self.identity:
            self._bump_epoch()
        for batch in queue.sealed:
            if batch.identity is None:
                break
            batch.identity = None
            batch.sequence = NO_SEQUENCE

    def _bump_epoch(self) -> None:
        if self._is_transactional:
            return  # the end of the transaction gives the next one
        if self.identity is None or self.identity.epoch == PRODUCER_EPOCH_MAX:
            self.identity = None
        else:
            self.identity = ProducerIdAndEpoch(self.identity.producer_id, self.identity.epoch + 1)

    def _write(self, batch: Batch, identity: ProducerIdAndEpoch, sequence: int) -> None:
        batch.identity = identity
        batch.sequence = sequence
        self._stamp(batch.data, ProducerStamp(identity.producer_id, identity.epoch, sequence))
