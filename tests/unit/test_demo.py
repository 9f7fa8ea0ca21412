"""How the demo ends: what was seen, in five lines."""

from tests.demo import SQLITE, Report, what_was_seen


def test_the_demo_ends_with_what_was_seen() -> None:
    """The records, the group, the logs, the audit's verdict, and what cost how much time."""
    report = Report(SQLITE, line_count=300_000, byte_count=9_500_000, delivered=300_000)
    report.readers._found = {(0, offset): (b"", b"") for offset in range(3)}
    report.readers.record_count = 4
    report.log_count = 12
    report.costs = {"to start": 2.6, "for the audit": 50.0}
    lines = what_was_seen(report, 0)
    assert len(lines) == 5
    assert lines[0].startswith("300,000 of 300,000 lines (9.5 MB) were acknowledged.")
    assert "read 4 records at the same time, 1 of them twice: nothing lost" in lines[1]
    assert lines[2].startswith("12 logs of 3 brokers")
    assert lines[3].endswith(": clean. Its report: build/demo/audit/report.html")
    assert lines[4] == "It took 53 s: 3 s to start, 50 s for the audit."


def test_the_demo_does_not_call_a_difference_well() -> None:
    """Neither one of its own comparison nor a finding of the audit."""
    report = Report(SQLITE)
    report.differences.append("something")
    lines = what_was_seen(report, 1)
    assert lines[1].endswith("1 difference, shown above.")
    assert "it found something" in lines[3]
