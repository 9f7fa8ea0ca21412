"""The adversarial run as a soak test of half an hour.

For people: `python -m tests.adversary --minutes 30 --seed N`.
"""

import random
from pathlib import Path

import pytest

from tests.adversary.run import Adversary, Pace, report

SOAK_S = 1800.0


async def run(place: Path, seed: int, pace: Pace) -> str:
    """The whole of it; returns the report of a sound run."""
    again = f"python -m tests.adversary --minutes {pace.seconds / 60:.3g} --seed {seed}"
    print(f"seed {seed}; such a run again: {again}")
    adversary = Adversary(place, seed, pace)
    verdict = await adversary.run()
    told = report(verdict, adversary.faults)
    if not verdict.is_sound:
        pytest.fail(f"{told}\n{again}")
    return told


@pytest.mark.soak
async def test_half_an_hour_among_adversaries_loses_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Producers and a group among interrupts, closes by other threads, kills and pauses, while
    brokers die: nothing is lost or double, and what is handled again has an excuse."""
    told = await run(tmp_path, random.randrange(2**32), Pace(SOAK_S))
    with capfd.disabled():
        print(told)
