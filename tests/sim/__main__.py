"""Run seeds of the simulation: `python -m tests.sim --seeds 0-999`.

One line per failure with the command that repeats it, a summary line last; exit code 1 if any
seed failed.
"""

import argparse
import logging
import sys
import time
import traceback

from tests.sim.chaos import run_seed


def main() -> int:
    """Run the seeds asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST, or one seed")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    logging.disable(logging.ERROR if len(seeds) > 1 else logging.NOTSET)
    start = time.perf_counter()
    failed = sent = faults = 0
    for seed in seeds:
        try:
            ledger = run_seed(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {error!r}; repeat: python -m tests.sim --seeds {seed}", flush=True)
            if len(seeds) == 1:
                traceback.print_exc()
        else:
            sent += ledger.sent
            faults += len(ledger.faults)
    seconds = time.perf_counter() - start
    print(
        f"{len(seeds)} seeds, {failed} failed; {sent} records delivered under {faults} faults"
        f" in {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
