"""The adversarial run as tests: a few seconds of it with every `make test`, half an hour as a soak.

For people: `python -m tests.adversary --minutes 30 --seed N`.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.adversary.run import FACES, Adversary, Pace, report

SOAK_S = 1800.0
# Everything happens at least once: in so short a time it has to come soon.
SHORT = Pace(
    7.0,
    producers=1,
    dynamic_members=2,
    life_s=1.5,
    worker_fault_s=(1.0, 3.0),
    broker_fault_s=(1.0, 2.0),
)


async def run(place: Path, seed: int, pace: Pace) -> str:
    """The whole of it; returns the report of a sound run."""
    again = f"python -m tests.adversary --minutes {pace.seconds / 60:.3g} --seed {seed}"
    again += f" --faces {' '.join(pace.faces)}"
    print(f"seed {seed}; such a run again: {again}")
    adversary = Adversary(place, seed, pace)
    verdict = await adversary.run()
    told = report(verdict, adversary.faults)
    if not verdict.is_sound:
        pytest.fail(f"{told}\n{again}")
    return told


@pytest.mark.parametrize("face", FACES)
async def test_clients_among_interrupts_closes_and_kills_lose_nothing(
    tmp_path: Path, face: str
) -> None:
    """A producer and a group work among interrupts (cancellations, with asyncio), closes by other
    threads or tasks, kills and pauses, while brokers die: nothing is lost or double, and what is
    handled again has an excuse."""
    print(await run(tmp_path, 1, replace(SHORT, faces=(face,))))


@pytest.mark.soak
async def test_half_an_hour_among_adversaries_loses_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same for half an hour with more of them; every count is printed."""
    told = await run(tmp_path, random.randrange(2**32), Pace(SOAK_S))
    with capfd.disabled():
        print(told)
