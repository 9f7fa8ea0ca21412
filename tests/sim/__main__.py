"""Run seeds of the simulation: `python -m tests.sim --seeds 0-999`.

The program prints one line for each failed seed, with the command that repeats it, and a summary
line last. It exits with 1 if any seed failed. Seeds do not depend on each other, so a long run can
be split: 0-99, 100-199, and so on. For a single seed it also prints where the seed failed, and with
`--trace` every event.

`--scenario` names what is simulated:

* `cluster` (the default): a cluster under load and faults,
* `groups` (also `--groups`): consumer groups on such a cluster,
* `wires`: a cluster whose wires break,
* `variants`: a cluster with fewer replicas or more topics,
* `deletions`: a cluster whose clients delete records,
* `reassignments`: a cluster whose partitions move between brokers,
* `compaction`: a cluster that compacts topics,
* `group-compaction`: consumer groups on a cluster that compacts their commits,
* `transactions`: processes that consume, transform and produce in transactions,
* `broker`: one broker alone.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import trio

from minibroker.broker.replication.replicas import Replicas
from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import (
    COMPACTION_MUTANTS,
    DELETION_MUTANTS,
    MUTANTS,
    REASSIGNMENT_MUTANTS,
    RULE_MUTANTS,
    WIRE_MUTANTS,
    mutated,
)
from minibroker.testing.pause import PROCESS
from minibroker.testing.transaction_mutants import TRANSACTION_MUTANTS
from tests.sim import chaos
from tests.sim.cluster import Scenario
from tests.sim.compaction import CompactionScenario
from tests.sim.deletions import DeletionsScenario
from tests.sim.group_compaction import CompactedGroupScenario
from tests.sim.group_scenario import GroupScenario
from tests.sim.reassignments import ReassignmentsScenario
from tests.sim.transaction_scenario import TransactionScenario
from tests.sim.variants import VariantScenario
from tests.sim.wires import WiresScenario

SCENARIOS = (
    "cluster",
    "broker",
    "groups",
    "wires",
    "variants",
    "deletions",
    "reassignments",
    "compaction",
    "group-compaction",
    "transactions",
)
MADE = MUTANTS | DELETION_MUTANTS
BROKEN = ChainMap(
    dict(RULE_MUTANTS),
    dict(WIRE_MUTANTS),
    dict(REASSIGNMENT_MUTANTS),
    dict(COMPACTION_MUTANTS),
    dict(TRANSACTION_MUTANTS),
)


class VirtualTime(logging.Filter):
    """Gives a log record the virtual time and the process that it comes from."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        try:
            record.now = trio.current_time()
        except RuntimeError:  # outside of the simulation
            record.now = 0.0
        record.process_name = PROCESS.get() or "clients"
        return True


class Totals:
    """The sums over all seeds."""

    def __init__(self) -> None:
        self.failed = 0
        self.virtual_s = 0.0
        self.terms = 0
        self.delivered = 0
        self.faults = 0
        self.generations = 0
        self.repeated = 0
        self.late = 0
        self.transactions = 0
        self.committed = 0

    def run(
        self, scenario: str, seed: int, replicas: Mapping[str, type[Replicas]], is_traced: bool
    ) -> None:
        """Run one seed of a scenario."""
        if scenario == "broker":
            self.run_broker(seed)
        elif scenario == "groups":
            self.run_groups(GroupScenario(seed, **replicas), is_traced)
        elif scenario == "group-compaction":
            self.run_groups(CompactedGroupScenario(seed, **replicas), is_traced)
        elif scenario == "wires":
            self.run_cluster(WiresScenario(seed, **replicas), is_traced)
        elif scenario == "deletions":
            self.run_cluster(DeletionsScenario(seed, **replicas), is_traced)
        elif scenario == "reassignments":
            self.run_cluster(ReassignmentsScenario(seed, **replicas), is_traced)
        elif scenario == "compaction":
            self.run_cluster(CompactionScenario(seed, **replicas), is_traced)
        elif scenario == "transactions":
            self.run_transactions(TransactionScenario(seed, **replicas), is_traced)
        elif scenario == "variants":
            self.run_cluster(VariantScenario(seed, **replicas), is_traced)
        else:
            self.run_cluster(Scenario(seed, **replicas), is_traced)

    def run_broker(self, seed: int) -> None:
        """Run one broker alone."""
        ledger = chaos.run_seed(seed)
        self.delivered += ledger.sent
        self.faults += len(ledger.faults)
        self.virtual_s += chaos.CHAOS_S

    def run_cluster(self, scenario: Scenario, is_traced: bool) -> None:
        """Run a cluster."""
        try:
            result = simulate(scenario.run, scenario.seed)
        finally:
            if is_traced and scenario.watcher is not None:
                print(*scenario.watcher.trace, sep="\n")
        self.virtual_s += result.virtual_s
        self.terms += result.terms
        self.delivered += result.delivered
        self.faults += result.faults

    def run_groups(self, scenario: GroupScenario, is_traced: bool) -> None:
        """Run a cluster with consumer groups."""
        try:
            result = simulate(scenario.run, scenario.seed)
        finally:
            if is_traced and scenario.watcher is not None and scenario.stage is not None:
                lines = [*scenario.watcher.trace, *str(scenario.stage.group.history).split("\n")]
                for history in scenario.stage.others.values():
                    lines += str(history).split("\n")
                print(*sorted(lines), sep="\n")
        self.virtual_s += result.virtual_s
        self.terms += result.terms
        self.delivered += result.delivered
        self.faults += result.faults
        self.generations += result.generations
        self.repeated += result.repeated
        self.late += result.late

    def run_transactions(self, scenario: TransactionScenario, is_traced: bool) -> None:
        """Run a cluster with transactions."""
        try:
            result = simulate(scenario.run, scenario.seed)
        finally:
            if is_traced and scenario.watcher is not None:
                print(*scenario.watcher.trace, sep="\n")
        self.virtual_s += result.virtual_s
        self.terms += result.terms
        self.delivered += result.delivered
        self.faults += result.faults
        self.transactions += result.attempts
        self.committed += result.committed

    def __str__(self) -> str:
        transactions = f" {self.transactions} transactions, {self.committed} committed,"
        groups = (
            f" {self.generations} generations, {self.repeated} records read again,"
            f" {self.late} late commits,"
        )
        return (
            f"{self.failed} failed; {self.virtual_s / 3600:.2f} virtual hours,"
            f" {self.terms} failovers, {self.delivered} records delivered,"
            f"{groups if self.generations else ''}"
            f"{transactions if self.transactions else ''} {self.faults} faults"
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from causes(each)
    else:
        yield error


def main() -> int:
    """Run the seeds of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST, or one seed")
    parser.add_argument("--scenario", default="cluster", choices=SCENARIOS, help="what to simulate")
    parser.add_argument(
        "--groups",
        action="store_const",
        dest="scenario",
        const="groups",
        help="same as --scenario groups",
    )
    parser.add_argument("--mutant", choices=[*MADE, *BROKEN], help="bug to plant")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--log", help="show the brokers' logs from this level on")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    set_logging(given.log)
    replicas = {"replicas_type": MADE[given.mutant]} if given.mutant in MADE else {}
    again = "".join(
        f" --{name} {getattr(given, name)}"
        for name in ("scenario", "mutant")
        if getattr(given, name) != parser.get_default(name)
    )
    totals, start = Totals(), time.process_time()
    for seed in seeds:
        try:
            with mutated(given.mutant) if given.mutant in BROKEN else nullcontext():
                totals.run(given.scenario, seed, replicas, given.trace)
        except Exception as error:
            totals.failed += 1
            text = "; ".join(f"{type(each).__name__}: {each}" for each in causes(error))
            command = f"python -m tests.sim --seeds {seed}{again}"
            print(f"seed {seed}: {text}; repeat: {command}", flush=True)
            if len(seeds) == 1:
                traceback.print_exc()
    print(f"{len(seeds)} seeds, {totals} in {time.process_time() - start:.0f} s of CPU")
    return 1 if totals.failed else 0


def set_logging(level: str | None) -> None:
    """Show the brokers' logs only on request: faults make them long."""
    if level is None:
        logging.disable(logging.CRITICAL)
        return
    handler = logging.StreamHandler()
    handler.addFilter(VirtualTime())
    handler.setFormatter(
        logging.Formatter("%(now)9.4f %(process_name)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
