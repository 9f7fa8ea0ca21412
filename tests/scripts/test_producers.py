"""The scenarios of producers: what their stamps are good for, and where their ids come from."""

import pytest

from tests.scripts.playing import after, ends, played, texts


def test_a_retry_is_recognised_by_every_leader():
    """The batch is stored once, and each answer has its first offset (PID-02)."""
    told = played("idempotence", "retry", "sequences")
    assert texts(told).count("1 has a (id 7, epoch 0, sequence 0) already") == 1
    assert "2 acknowledges a at offset 0" in texts(told)
    assert "TIMES" not in told.verdict
    assert "a on 2, stored 2 TIMES." in played("idempotence", "retry", "no-sequences").verdict


def test_a_gap_is_refused():
    """c waits for b, and the log has them in order (PID-01)."""
    told = played("idempotence", "gap", "sequences")
    assert "1 answers c with OUT_OF_ORDER_SEQUENCE_NUMBER" in texts(told)
    assert "1 takes c (id 7, epoch 0, sequence 2) at offset 2" in texts(told)
    doubled = played("idempotence", "gap", "no-sequences")
    assert "1 takes c (id 7, epoch 0, sequence 2) at offset 1" in texts(doubled)
    assert "c on 1,2, stored 2 TIMES" in doubled.verdict


@pytest.mark.parametrize(
    ("rule", "known", "refused"),
    [("sequences", "b", "a"), ("six-batches", "ba", ""), ("one-batch", "", "ba")],
)
def test_the_last_five_batches_are_known(rule: str, known: str, refused: str):
    """The fifth batch back is recognised, the sixth looks like a gap (PID-02, A14)."""
    told = texts(played("idempotence", "sixth", rule))
    assert [text[6] for text in told if " already" in text] == list(known)
    wanted = [f"1 answers {value} with OUT_OF_ORDER_SEQUENCE_NUMBER" for value in refused]
    assert [text for text in told if "answers" in text and "FETCH" not in text] == wanted


def test_five_in_flight_come_again_in_order():
    """The first one fails and the others are refused behind it; none is lost or doubled (A20)."""
    told = played("idempotence", "five", "sequences")
    refused = [text for text in texts(told) if "OUT_OF_ORDER" in text]
    assert [text[10] for text in refused] == list("cdef")
    assert ends(after(told, "1 has b"))[0] == (6, 6)
    assert texts(told)[-1] == "1 acknowledges f at offset 5"
    assert "TIMES" not in told.verdict
    by_last = texts(played("idempotence", "five", "one-batch"))
    assert [text[10] for text in by_last[-6:] if "OUT_OF_ORDER" in text] == list("bcde")


def test_five_in_flight_lose_their_order_without_stamps():
    """The first of five is sent again behind the others; with stamps they wait for it (PID-01)."""
    told = played("idempotence", "reordered", "no-sequences")
    assert "the reader asks 1 from 0: b c d e a" in texts(told)
    assert "LOST" not in told.verdict
    assert "TIMES" not in told.verdict
    told = played("idempotence", "in-order", "sequences")
    refused = [text[10] for text in texts(told) if "OUT_OF_ORDER" in text]
    assert refused == list("bcde")
    assert "the reader asks 1 from 0: z a b c d e" in texts(told)
    assert "TIMES" not in told.verdict


def test_a_sixth_in_flight_may_be_stored_twice():
    """Of six whose answers are lost, the first is not known any more when it comes again."""
    told = texts(played("idempotence", "six", "sequences"))
    assert "1 answers a with OUT_OF_ORDER_SEQUENCE_NUMBER" in told
    assert "a on 1,2, stored 2 TIMES" in played("idempotence", "six-in-doubt", "sequences").verdict
    assert not any("OUT" in text for text in texts(played("idempotence", "six", "six-batches")))


def test_an_unknown_producer_begins_anywhere():
    """After its state has expired any first sequence is accepted; a gap is not seen (PID-09)."""
    told = played("idempotence", "unknown", "refuse-unknown")
    assert [text for text in texts(told) if "UNKNOWN" in text] == [
        "1 answers c with UNKNOWN_PRODUCER_ID",
        "1 answers b with UNKNOWN_PRODUCER_ID",
    ]
    assert "TIMES" not in told.verdict
    trusted = texts(played("idempotence", "unknown", "sequences"))
    assert "1 takes c (id 7, epoch 0, sequence 2) at offset 1" in trusted
    assert "1 answers b with OUT_OF_ORDER_SEQUENCE_NUMBER" in trusted


def test_a_new_epoch_fences_the_old_one():
    """It begins at sequence 0, and what comes in the old one is refused (PID-06, PID-07)."""
    told = texts(played("idempotence", "epoch", "sequences"))
    assert "1 answers b with OUT_OF_ORDER_SEQUENCE_NUMBER" in told
    assert "1 answers c with INVALID_PRODUCER_EPOCH" in told


def test_two_brokers_never_claim_the_same_ids():
    """The store compares before it writes; else an acknowledged record is lost (PID-17)."""
    told = played("producer-ids", "at-once", "compare")
    assert {"1 gives p the id 0", "2 gives q the id 1000"} <= set(texts(told))
    assert "x on 1,2; y on 1,2." in told.verdict
    assert "y LOST" in played("producer-ids", "at-once", "no-compare").verdict
