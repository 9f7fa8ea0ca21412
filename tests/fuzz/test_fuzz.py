"""Brokers among frames of right and wrong types, and a good client that must not notice.

For people: `python -m tests.fuzz --frames 100000 --seed N`. How long others wait is judged there
and in the soak, not in `make test`, where other tests run beside.
"""

import random
from pathlib import Path

import pytest

from tests.fuzz.run import ROUNDS, Fuzz, Verdict, running_brokers

SEED = 38
FRAMES = 20_000
SOAK_FRAMES = 1_000_000


def fuzzed(place: Path, seed: int, frames: int, count: int, rounds: int = 0) -> Verdict:
    """The verdict on so many brokers; its problems fail the test, with the command to repeat it."""
    again = f"python -m tests.fuzz --frames {frames} --seed {seed}" + " --cluster" * (count > 1)
    print(f"seed {seed}; such a run again: {again}")
    with running_brokers(place, count) as brokers:
        fuzz = Fuzz(brokers, seed, place)
        verdict = fuzz.run(frames, rounds)
    if count == 1 and verdict.alive:
        with running_brokers(place, count):
            pass  # it starts again with what it has stored
    if rounds:
        fuzz.judge_times()
    if verdict.problems:
        tracebacks = place / "tracebacks.txt"
        shown = tracebacks.read_text()[-5_000:] if tracebacks.exists() else ""
        pytest.fail(f"{verdict}\n{again}\n{place} has the last frames\n{shown}")
    return verdict


def test_frames_of_all_types_do_not_disturb_a_broker(tmp_path: Path) -> None:
    """It lives, its memory grows by under 64 MB, and a good client's records are as it sent."""
    verdict = fuzzed(tmp_path, SEED, FRAMES, 1)
    assert verdict.frames == FRAMES
    assert verdict.acknowledged > 0
    # Else the fuzz is no good: both must occur.
    assert min(verdict.outcomes["answered"], verdict.outcomes["closed"]) > FRAMES // 50


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 3], ids=["one broker", "a cluster"])
def test_a_million_frames(tmp_path: Path, capfd: pytest.CaptureFixture[str], count: int) -> None:
    """The same for long; in a cluster no session of a broker ends. A good client waits at most
    three times as long as without the fuzz."""
    verdict = fuzzed(tmp_path, random.randrange(2**32), SOAK_FRAMES, count, ROUNDS)
    with capfd.disabled():
        print(verdict)
