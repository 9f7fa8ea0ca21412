"""Which findings are one fault."""

from minibroker.audit.model import Finding, Severity
from minibroker.audit.report.faults import in_faults

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def at(check: str, offset: int | None, broker: int = 1, position: int | None = None) -> Finding:
    """A finding in t-0."""
    segment = None if position is None else 0
    return Finding(check, ERROR, "t", 0, broker, None, offset, segment, position)


def test_findings_of_one_batch_are_one_fault() -> None:
    """They name the same batch, or offsets that follow each other; the gravest stands for all."""
    batch = [at("crc", 10, position=700), *(at("lost-write", n) for n in range(10, 55))]
    apart = [at("lost-write", 60, position=900), at("unseen", 63, position=900)]
    [first, second] = in_faults([*apart, *batch])
    assert (first.worst, first.offsets) == (batch[1], "10 to 54")
    assert first.checks == {"lost-write": 45, "crc": 1}
    assert first.others == "lost-write (44), crc"
    assert (second.findings, second.offsets) == (tuple(apart), "60 to 63")
    assert in_faults([]) == []


def test_other_replicas_batches_and_files_are_other_faults() -> None:
    """No finding gets lost, and none without an offset is merged."""
    found = [
        at("crc", 10),
        at("crc", 10, broker=2),
        at("crc", 12),
        at("index", 10),
        at("index", 11),
        at("divergence", None),
        at("gap", None),
        Finding("checkpoint", WARNING, broker=1),
    ]
    faults = in_faults(found)
    assert len(faults) == len(found)
    assert {fault.others for fault in faults} == {""}
    assert faults[-1].worst.check == "checkpoint"
