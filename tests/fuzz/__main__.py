"""`python -m tests.fuzz --frames 100000 --seed 4711 [--cluster] [--wire kafka]`: fuzz real brokers.

It prints its seed and, at the end, one line of JSON; exit code 1 if anything is wrong. Then
`frames.jsonl` and `tracebacks.txt` in the directory that it names have the last frames and what the
brokers printed; `--replay frames.jsonl` sends these frames one by one to a new broker, and names
the one that ended it.
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

from tests.fuzz.frames import THOUSANDS
from tests.fuzz.replay import replay
from tests.fuzz.run import ROUNDS, Fuzz, running_brokers
from tests.fuzz.sender import WIRES

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--cluster", action="store_true", help="three brokers")
    parser.add_argument("--wire", choices=WIRES, action="append")
    parser.add_argument("--elements", type=int, default=THOUSANDS, help="of an array, at most")
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.replay:
        return replay(given.replay, given.place)
    words = [f"python -m tests.fuzz --frames {given.frames} --seed {given.seed}"]
    words += [f"--elements {given.elements}"]
    words += ["--cluster"] * given.cluster + [f"--wire {wire}" for wire in given.wire or ()]
    print(f"seed {given.seed}; such a run again: {' '.join(words)}", flush=True)
    shutil.rmtree(given.place, ignore_errors=True)
    given.place.mkdir(parents=True)
    with running_brokers(given.place, 3 if given.cluster else 1) as brokers:
        fuzz = Fuzz(brokers, given.seed, given.place, given.wire or WIRES, given.elements)
        verdict = fuzz.run(given.frames, ROUNDS)
    fuzz.judge_times()
    print(verdict)
    if verdict.problems:
        print(f"the last frames and the tracebacks are in {given.place}")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
