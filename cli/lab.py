"""`minibroker lab`: short replication scenarios, played step by step on virtual time.

They need no broker and no network: the lab runs the broker's own parts in this process, and shows
after every step how each replica sees the log (docs/lab.md).
"""

import logging
import sys
from typing import Annotated

import typer

from minibroker.cli.terminal import Failure

app = typer.Typer(help="Replay scenarios of replication, step by step.", no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """List the scenarios, and the rules with which each can be played."""
    from minibroker.testing.lab.library import load, names

    width = max(map(len, names()))
    for name in names():
        scenario = load(name)
        print(f"{name:<{width}}  {scenario.title} (--rule {' or '.join(scenario.rules)})")


@app.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Scenario of the list, or a file: PATH.txt.")
    ],
    rule: Annotated[
        str | None,
        typer.Option("--rule", metavar="NAME", help="Rule; default: the scenario's first."),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="One event at a time, at Enter.")] = False,
) -> None:
    """Play a scenario and print what happens to each replica."""
    from minibroker.testing.lab.library import ScenarioUnknown, choose_rule, load
    from minibroker.testing.lab.report import report_lines
    from minibroker.testing.lab.scenario import ScenarioError
    from minibroker.testing.lab.transcript import legend

    # The table already shows what the brokers would log.
    logging.getLogger("minibroker.broker").setLevel(logging.CRITICAL)
    try:
        scenario = load(name)
        lines = list(report_lines(scenario, choose_rule(name, scenario, rule)))
    except ScenarioUnknown as unknown:
        raise typer.BadParameter(str(unknown)) from None
    except ScenarioError as error:
        raise Failure(str(error.of(name))) from None
    print(f"{scenario.title}\n\n{scenario.description}\n\n{legend()}\n")
    if step and sys.stdin is None:
        raise Failure("--step waits for Enter, but stdin is closed")
    for line in lines:
        waits = step and line[0].isdigit()  # an event begins with its time
        # At a terminal the user's Enter ends the line.
        print(line, end="" if waits and sys.stdin.isatty() else "\n", flush=True)
        if waits and not sys.stdin.readline():
            step = False  # no more input: play the rest
