"""The judge of the adversarial run finds what it is there for: histories that are made up."""

from collections.abc import Sequence

from tests.adversary.journal import Event
from tests.adversary.judge import judge
from tests.adversary.verdict import Process, Run, Seen, Verdict

LOSS = "losses: records never handled"
ACKED_LOSS = "losses of acknowledged records"
SKIPPED = "records skipped by a member"
NOT_HANDLED = "records committed and not handled"
UNEXPLAINED = "unexplained repetitions"
COMMITTED_AGAIN = "repetitions of committed records"
BACK = "commits that went back"
DROPPED = "records silently dropped by a producer"
REPORT = "records missing in a close's report"

BEGIN = "begin 1 positions poll block m"


def process(lines: Sequence[str], **about) -> Process:
    """One whose journal has these lines, a second each."""
    events = [Event(float(at), *split(line)) for at, line in enumerate(lines)]
    return Process(about.pop("name", "m"), events, **about)


def split(line: str) -> tuple[str, tuple[str, ...]]:
    """A kind and words."""
    kind, *words = line.split()
    return kind, tuple(words)


def values(count: int) -> list[bytes]:
    """Those of a producer that was killed, whose journal tells nothing."""
    return [b"p:1:%d:" % seq for seq in range(count)]


def handled(*offsets: int) -> list[str]:
    """The lines of a member that handles these of partition 0."""
    return [f"record 0 {offset} p:1:{offset}:" for offset in offsets]


def judged(count: int, *members: Process, seen: Sequence[Seen] = ()) -> Verdict:
    """A run with so many records in one partition."""
    return judge(Run({0: values(count)}, [], list(members), list(seen)))


def kinds(verdict: Verdict) -> set[str]:
    """What is wrong."""
    return set(verdict.findings.counts)


def sending(log: list[bytes], *lines: str, **about) -> Verdict:
    """A run with one producer."""
    reader = [f"record 0 {offset} {value.decode()}" for offset, value in enumerate(log)]
    member = process([BEGIN, "assigned 0", *reader, "end 1 block"])
    return judge(Run({0: log}, [process(lines, name="p", **about)], [member], []))


def test_a_run_without_a_fault_is_sound() -> None:
    """Everything was handled once and committed: nothing is wrong, and it is counted."""
    lines = [BEGIN, "assigned 0", *handled(0, 1, 2), "commit 0 0=3", "committed 0", "end 1 block"]
    verdict = judged(3, process(lines), seen=[Seen(9.0, 9.1, {0: 3})])
    assert verdict.is_sound
    assert verdict.counts["records handled"] == 3


def test_a_skipped_record_is_found() -> None:
    """A record that no member handled is a loss, and the member that went past it is named."""
    lines = [BEGIN, "assigned 0", *handled(0, 2), "commit 0 0=3", "committed 0", "end 1 block"]
    verdict = judged(3, process(lines), seen=[Seen(9.0, 9.1, {0: 3})])
    assert kinds(verdict) == {LOSS, SKIPPED, NOT_HANDLED}
    assert verdict.findings.counts[LOSS] == 1


def test_a_commit_before_the_handling_is_found() -> None:
    """What an onlooker saw committed was handled before, even if it was handled later."""
    lines = [BEGIN, "assigned 0", *handled(0, 1), "commit 0 0=2", "committed 0", "end 1 block"]
    verdict = judged(2, process(lines), seen=[Seen(2.1, 2.2, {0: 2})])
    assert NOT_HANDLED in kinds(verdict)


def test_a_commit_that_goes_back_is_found() -> None:
    """It goes back behind what was seen, or behind what was acknowledged before."""
    lines = [BEGIN, "assigned 0", *handled(0, 1), "commit 0 0=2", "committed 0", "end 1 block"]
    seen = [Seen(6.0, 6.1, {0: 2}), Seen(7.0, 7.1, {0: 1})]
    assert kinds(judged(2, process(lines), seen=seen)) == {BACK}
    assert kinds(judged(2, process(lines), seen=seen[1:])) == {BACK}


def test_a_repetition_needs_an_excuse() -> None:
    """A member that gave a partition back in order has committed what it handled."""
    first = [BEGIN, "assigned 0", *handled(0, 1), "revoked 0", "end 1 block"]
    second = ["start m"] * 10 + [BEGIN, "assigned 0", *handled(1, 2), "end 1 block"]
    assert kinds(judged(3, process(first), process(second))) == {UNEXPLAINED}
    interrupted = [*first[:-2], "interrupt poll", *first[-2:]]
    assert kinds(judged(3, process(interrupted), process(second))) == {UNEXPLAINED}
    for excuse in ("lost 0", "refused 0 why", "closing other 1.0"):
        excused = judged(3, process([*first[:-2], excuse, "end 1 block"]), process(second))
        assert excused.is_sound, excuse
        assert excused.excused.total() == 1
    killed = judged(3, process(first[:-2], killed=5.0, code=-9), process(second))
    assert killed.is_sound
    assert kinds(judged(3, process(first[:-2]), process(second))) == {"deaths of processes"}


def test_what_comes_after_a_partition_was_given_back_excuses_nothing() -> None:
    """A kill excuses what the member had then, not what it gave back before it went on."""
    first = [BEGIN, "assigned 0 1", *handled(0, 1), "revoked 0", "record 1 0 p:2:0:"]
    second = ["start m"] * 10 + [BEGIN, "assigned 0", *handled(1, 2), "end 1 block"]
    log = {0: values(3), 1: [b"p:2:0:"]}
    killed = process(first, killed=9.0, code=-9)
    assert kinds(judge(Run(log, [], [killed, process(second)], []))) == {UNEXPLAINED}


def test_nothing_excuses_to_repeat_what_is_committed() -> None:
    """An owner begins behind what was committed before it had the partition."""
    commit = ["commit 0 0=2", "committed 0", "lost 0", "end 1 block"]
    first = [BEGIN, "assigned 0", *handled(0, 1), *commit]
    second = ["start m"] * 10 + [BEGIN, "assigned 0", *handled(1, 2), "end 1 block"]
    assert COMMITTED_AGAIN in kinds(judged(3, process(first), process(second)))


def test_a_member_is_shown_each_record_once() -> None:
    """Twice in one assignment has no excuse."""
    lines = [BEGIN, "assigned 0", *handled(0, 1, 1), "lost 0", "end 1 block"]
    assert UNEXPLAINED in kinds(judged(2, process(lines)))


def test_what_members_may_not_see_is_found() -> None:
    """A partition that was not assigned, one that was revoked, and a value that is not there."""
    unknown = judged(1, process([BEGIN, *handled(0), "end 1 block"]))
    assert kinds(unknown) == {"partitions not announced by on_assigned"}
    revoked = [BEGIN, "assigned 0", *handled(0), "revoked 0", *handled(1), "end 1 block"]
    assert kinds(judged(2, process(revoked))) == {"records of partitions that were revoked"}
    other = [BEGIN, "assigned 0", *handled(0), "record 0 1 p:1:7:", "end 1 block"]
    assert "other records than in the log" in kinds(judged(2, process(other)))


def test_acknowledged_records_are_in_the_log() -> None:
    """At the offset that the producer was told."""
    lines = ("begin 1 block", "sent 0 2", "delivered 0 0 0 1", "end 1 block")
    assert sending([b"p:1:0:", b"p:1:1:"], *lines).is_sound
    assert ACKED_LOSS in kinds(sending([b"p:1:0:"], *lines))
    assert ACKED_LOSS in kinds(sending([b"p:1:1:", b"p:1:0:"], *lines))


def test_each_record_is_there_once_and_in_order() -> None:
    """A sequence has one offset, and a partition has them in the order of the sends."""
    lines = ("begin 1 interrupt", "sent 0 3")
    log = [b"p:1:0:", b"p:1:1:", b"p:1:0:"]
    assert kinds(sending(log, *lines, killed=1.0)) == {"doubles", "out of order"}


def test_a_producer_that_ends_in_order_drops_nothing() -> None:
    """What `send` took is delivered or reported; what an interrupted block drops is counted."""
    start = ("begin 1 block", "sent 0 3", "delivered 0 0 0 1")
    log = values(2)
    for how in ("block", "exit", "interrupted"):
        assert kinds(sending(log, *start, f"end 1 {how}")) == {DROPPED}, how
    warned = sending(log, *start, "warning dropped 1 records", "end 1 interrupted")
    assert warned.is_sound
    for report, is_sound in (("2 0 1", True), ("2 0 0", False), ("3 0 1", False)):
        verdict = sending(log, *start, "closing main 0", f"closed main {report}", "end 1 close")
        assert kinds(verdict) == (set() if is_sound else {REPORT}), report
    unknown = sending(log, *start, "unknown 2", "closed main 2 0 0", "end 1 close")
    assert unknown.is_sound


def test_processes_end_in_order() -> None:
    """A traceback, another exit code, an error, a hang and a client that runs on are findings."""
    lines = [BEGIN, "assigned 0", *handled(0), "end 1 block"]
    assert kinds(judged(1, process(lines, errors="Traceback (most"))) == {"tracebacks"}
    assert kinds(judged(1, process(lines, code=1))) == {"exit codes"}
    head = "Exception ignored in: <function f at 0x7f>\nTraceback (most recent call last):\n"
    frame = '  File "x.py", line 1, in f\n    def f():\n'
    for error, found in (("KeyboardInterrupt: ", set()), ("KeyError: 1", {"tracebacks"})):
        errors = f"{head}{frame}{error}\n"
        assert kinds(judged(1, process(lines, errors=errors))) == found
    for line, kind in (
        ("error body ClientError no", "unexpected errors"),
        ("hang poll", "hangs"),
        ("leaked 1 minibroker-consumer", "clients that were left and still run"),
    ):
        assert kinds(judged(1, process([*lines, line]))) == {kind}
