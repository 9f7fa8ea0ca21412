"""The scenarios of transactions: a zombie is fenced, and a marker makes a batch visible."""

from tests.scripts.playing import events, played, texts


def read_by(told: list[str]) -> list[str]:
    """What each read has brought."""
    return [text.partition(": ")[2] for text in told if text.startswith("the reader")]


def test_a_zombie_is_fenced():
    """Its record is refused by the leader, its commit by the coordinator."""
    told = played("zombie", "zombie", "next-epoch")
    assert "the coordinator gives q the id 0, epoch 2" in texts(told)
    assert "1 answers c with INVALID_PRODUCER_EPOCH" in texts(told)
    assert "the coordinator answers p with PRODUCER_FENCED" in texts(told)
    assert read_by(texts(told)) == ["b"]
    assert told.verdict.endswith("Transactions: p: a, c fenced; q: b committed.")


def test_a_zombie_with_the_same_epoch_is_not():
    """It commits what its successor has open, in which its own record is, and its first one is
    not; the record of the successor is lost."""
    told = played("zombie", "zombie", "same-epoch")
    assert "the coordinator gives q the id 0, epoch 0" in texts(told)
    assert "1 has b (id 0, epoch 0, sequence 0) already" in texts(told)
    assert read_by(texts(told)) == ["c"]
    assert "b LOST" in told.verdict
    assert "p: a NOT SEEN, c committed" in told.verdict


def test_a_batch_is_visible_once_its_marker_is_committed():
    """Neither its own commit nor the decision nor the marker at the leader alone suffices; what is
    behind it waits, too."""
    told = played("commit-marker", "commit", "stable")
    assert read_by(texts(told)) == ["nothing", "nothing", "nothing", "nothing", "a b"]
    held = [(one.replicas[0].high_watermark, one.replicas[0].held_back_to) for one in events(told)]
    assert (2, 0) in held
    assert held[-1] == (3, None)
    hasty = played("commit-marker", "commit", "unstable")
    assert read_by(texts(hasty)) == ["a", "b", "nothing", "nothing", "nothing"]


def test_a_batch_that_is_aborted_is_never_visible():
    """A reader up to the high watermark has seen it."""
    told = played("commit-marker", "abort", "stable")
    assert read_by(texts(told)) == ["nothing", "b"]
    assert told.verdict.endswith("Transactions: p: a aborted.")
    hasty = played("commit-marker", "abort", "unstable")
    assert read_by(texts(hasty)) == ["a b", "nothing"]
    assert hasty.verdict.endswith("Transactions: p: a SEEN aborted.")


def test_the_next_leader_gets_the_marker():
    """What is decided is finished there, also if the marker was lost with the leader before."""
    for run in ("failover", "lost-marker"):
        told = played("commit-marker", run, "stable")
        assert read_by(texts(told)) == ["nothing", "a"]
        assert "2 answers the coordinator: the marker is committed" in texts(told)
        assert "The replicas agree" in told.verdict
    assert "1 answers the coordinator: the marker is committed" not in texts(told)
