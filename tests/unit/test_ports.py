"""Ports for clusters that a test starts."""

import pytest

from tests.support.processes import PART, PARTS, PORTS, free_base_port


def test_sessions_beside_each_other_take_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one could take a port between another one's look and its broker's start."""
    taken: list[set[int]] = []
    for part in range(PARTS):
        monkeypatch.setenv(PART, str(part))
        bases = [free_base_port(3) for _ in range(2 * len(PORTS) // PARTS // 16)]
        taken.append({base + number for base in bases for number in range(3)})
    assert all(len(each) > 500 for each in taken)
    assert len(set.union(*taken)) == sum(map(len, taken))
    assert set.union(*taken) <= set(PORTS)
