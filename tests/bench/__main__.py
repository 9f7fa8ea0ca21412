"""`make bench`: every figure beside its yardstick, in one table.

    python -m tests.bench [--only NAME]...

The yardstick of a figure is measured in the same run, by turns with it: the machine is the same,
and so is whatever else it is doing. Exit code 0 whatever the figures are, for they are to be read;
a measurement that cannot be made is an error.
"""

import argparse
import os
import sys
import time

from rich.console import Console
from rich.table import Table

from tests.bench import (
    abuse,
    audit,
    cluster,
    compaction,
    copies,
    footprint,
    groups,
    growth,
    kit,
    portals,
    replication,
    sessions,
    stores,
    throughput,
    wires,
    without_trio,
)
from tests.bench.rounds import Row

MEASURES = {
    measure.__name__: measure
    for measure in (
        *abuse.MEASURES,
        *throughput.MEASURES,
        *footprint.MEASURES,
        *portals.MEASURES,
        *replication.MEASURES,
        *sessions.MEASURES,
        *cluster.MEASURES,
        *compaction.MEASURES,
        *copies.MEASURES,
        *groups.MEASURES,
        *stores.MEASURES,
        *growth.MEASURES,
        *kit.MEASURES,
        *audit.MEASURES,
        *wires.MEASURES,
        *without_trio.MEASURES,
    )
}
WIDTH = 150  # of a table that goes to a file
VERDICTS = {None: "", True: "[green]yes[/]", False: "[bold red]no[/]"}


def table_of(rows: list[Row]) -> Table:
    """All rows, and whether each is what is wanted."""
    table = Table(title="minibroker beside its yardsticks", title_justify="left")
    table.add_column("what", ratio=3)
    table.add_column("minibroker", justify="right", no_wrap=True)
    table.add_column("yardstick", ratio=2)
    table.add_column("its figure", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("wanted", no_wrap=True)
    table.add_column("met", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            row.ours,
            row.yardstick,
            row.theirs,
            row.ratio,
            row.wanted,
            VERDICTS[row.is_met],
        )
    return table


def line_of(row: Row) -> str:
    """The row in one line."""
    beside = f" ({row.yardstick}: {row.theirs})" if row.theirs else ""
    return f"{row.name}: {row.ours}{beside}"


def main() -> None:
    """Measure, then show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=list(MEASURES), help="may be given several times"
    )
    names = parser.parse_args().only or list(MEASURES)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    began = time.monotonic()
    rows: list[Row] = []
    try:
        with console.status("") as status:
            for name in names:
                status.update(f"measuring {name}")
                for row in MEASURES[name]():
                    rows.append(row)
                    console.print(line_of(row))  # the table comes much later
    finally:  # also when one cannot be made: the others took minutes
        console.print(table_of(rows))
        load = os.getloadavg()[1]
        console.print(
            "Values of 100 bytes, keys null, acks=1 where nothing else is said; medians of rounds "
            "that alternate with their "
            f"yardsticks; {time.monotonic() - began:.0f} s in all, load {load:.1f} on "
            f"{os.cpu_count()} cores (two processes at work make 2; more is somebody else)."
        )


if __name__ == "__main__":
    main()
