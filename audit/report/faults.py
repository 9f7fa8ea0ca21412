"""The faults of an audit: findings about the same bytes of a copy are one fault.

One bad batch is found by several checks, and by those of ledgers once for each of its records.
Findings of one replica are one fault if they name the same batch, or offsets that follow each
other. Findings about other files than segments are faults of their own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from minibroker.audit.catalogue import GRAVITY
from minibroker.audit.model import Finding
from minibroker.audit.summary import SEVERITIES, in_order

_OF_OTHER_FILES: Final = frozenset(
    {
        "checkpoint",
        "committed-offset",
        "epoch-checkpoint",
        "hw-beyond-leo",
        "index",
        "open-transaction",
        "snapshot",
        "transaction-index",
        "transaction-outcome",
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The findings of one fault, the gravest first; at least one."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Finding:
        """The finding that stands for all."""
        return self.findings[0]

    @property
    def checks(self) -> Counter[str]:
        """How many findings of each check there are, in the order of `findings`."""
        return Counter(each.check for each in self.findings)

    @property
    def offsets(self) -> str:
        """The first and the last offset in words; "" if there is none."""
        known = [each.offset for each in self.findings if each.offset is not None]
        if not known:
            return ""
        first, last = min(known), max(known)
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"

    @property
    def others(self) -> str:
        """The checks beside that of `worst`, in words: `divergence, lost-write (45)`."""
        rest = self.checks
        rest[self.worst.check] -= 1
        return ", ".join(
            name if count == 1 else f"{name} ({count:,})" for name, count in rest.items() if count
        )


def in_faults(findings: Iterable[Finding]) -> list[Fault]:
    """Return the faults, the worst first, then by log and offset."""
    of_log: dict[tuple[object, ...], list[Finding]] = {}
    apart = []
    for each in findings:
        if each.check in _OF_OTHER_FILES or each.offset is None or each.topic is None:
            apart.append([each])
        else:
            of_log.setdefault((each.topic, each.partition, each.broker), []).append(each)
    groups = [*apart, *(group for log in of_log.values() for group in _split(log))]
    faults = {id(fault.worst): fault for fault in map(_fault, groups)}
    return [faults[id(worst)] for worst in in_order(fault.worst for fault in faults.values())]


def _split(findings: list[Finding]) -> Iterator[list[Finding]]:
    """Yield the findings of one log by fault."""
    group: list[Finding] = []
    for each in sorted(findings, key=lambda each: (each.offset or 0, each.check)):
        if group and not _belongs(each, group[-1]):
            yield group
            group = []
        group.append(each)
    yield group


def _belongs(finding: Finding, last: Finding) -> bool:
    """Whether a finding is of the same fault as the last one before it, by offset."""
    assert finding.offset is not None
    assert last.offset is not None
    if finding.offset <= last.offset + 1:
        return True
    is_placed = finding.segment is not None and finding.position is not None
    return is_placed and (last.segment, last.position) == (finding.segment, finding.position)


def _fault(group: list[Finding]) -> Fault:
    def gravity(finding: Finding) -> tuple[int, int, int]:
        return (
            SEVERITIES.index(finding.severity),
            GRAVITY.get(finding.check, len(GRAVITY)),
            -1 if finding.offset is None else finding.offset,
        )

    return Fault(tuple(sorted(group, key=gravity)))
