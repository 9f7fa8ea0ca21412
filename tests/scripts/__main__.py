"""Compare every scenario with its transcripts, or write them: `python -m tests.scripts --rewrite`.

The files are those that `minibroker lab` plays. After a rewrite the difference is to be read: it is
what the change of code did to the replicas.
"""

import argparse
import difflib
import logging
import sys
from pathlib import Path

from minibroker.testing.lab.report import transcript
from minibroker.testing.lab.scenario import join, parse, split

SCENARIOS = Path(__file__).resolve().parents[2] / "testing" / "lab" / "scenarios"


def retold(text: str) -> str:
    """The text of a scenario with the transcripts as they are now."""
    scenario = parse(text)
    return join(split(text)[0], {rule: transcript(scenario, rule) for rule in scenario.rules})


def main() -> int:
    """Do what was asked for; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write what is played now")
    logging.disable(logging.ERROR)  # what the brokers have to say is in the tables
    is_rewriting = parser.parse_args().rewrite
    differing = 0
    for path in sorted(SCENARIOS.glob("*.txt")):
        before = path.read_text(encoding="utf-8")
        after = retold(before)
        if after == before:
            continue
        if is_rewriting:
            path.write_text(after, encoding="utf-8")
            print(f"{path.name} is rewritten")
        else:
            differing += 1
            lines = difflib.unified_diff(
                before.splitlines(), after.splitlines(), path.name, "now", lineterm=""
            )
            print("\n".join(lines))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
