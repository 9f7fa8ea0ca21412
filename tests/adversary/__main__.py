"""`python -m tests.adversary --minutes 30 --seed N`: the adversarial run, for people.

It prints its seed, what it did, every count, and what is wrong; exit code 1 if anything is. The
journals of all processes and what the brokers left stay in the directory that it names.
"""

import argparse
import logging
import random
import shlex
import shutil
import sys
import time
from pathlib import Path

import trio

from tests.adversary.run import FACES, Adversary, Pace, report

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "adversary")
    parser.add_argument("--faces", nargs="+", choices=FACES, default=FACES)
    given = parser.parse_args()
    words = ["python", "-m", "tests.adversary", "--minutes", given.minutes, "--seed", given.seed]
    words += ["--faces", *given.faces]
    print(f"seed {given.seed}; the same plan again: {shlex.join(map(str, words))}")
    shutil.rmtree(given.place, ignore_errors=True)
    given.place.mkdir(parents=True)
    # What this process hears of brokers that are down is no news.
    logging.getLogger("minibroker").addHandler(logging.NullHandler())
    begin = time.monotonic()
    pace = Pace(given.minutes * 60, faces=tuple(given.faces))
    adversary = Adversary(given.place, given.seed, pace, print_now)
    verdict = trio.run(adversary.run)
    print(report(verdict, adversary.faults))
    print(f"{time.monotonic() - begin:.0f} s; the journals are in {given.place}")
    return 0 if verdict.is_sound else 1


def print_now(line: str) -> None:
    """A line that does not wait for others."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
