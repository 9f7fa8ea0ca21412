"""The report of a scenario under one rule: a table of what happened, and the verdict.

`minibroker lab run` prints it, and the transcripts in the scenarios' files have it, so users read
what the tests compare.
"""

from collections.abc import Iterator
from textwrap import wrap

from minibroker.testing.lab.scenario import Run, Scenario
from minibroker.testing.lab.stage import play
from minibroker.testing.lab.transcript import COLUMNS_MAX, render


def report_lines(scenario: Scenario, rule: str) -> Iterator[str]:
    """Yield every run that names the rule, line by line; an item may have several lines of text.

    Raises `ScenarioError` if a step cannot be played.
    """
    separator = ""
    for run in scenario.runs:
        if rule in run.rules:
            played = play(run, rule)
            yield separator + _wrapped(f"== {run.name}: rule {rule}{_conditions(run)}")
            yield from render(run.brokers, played.lines)
            yield _wrapped(played.verdict)
            separator = "\n"


def transcript(scenario: Scenario, rule: str) -> str:
    """Return the report as one text."""
    return "".join(f"{line}\n" for line in report_lines(scenario, rule))


def _wrapped(text: str) -> str:
    return "\n".join(wrap(text, COLUMNS_MAX, subsequent_indent="  "))


def _conditions(run: Run) -> str:
    seen = "seen" if run.is_unclean_return_seen else "unseen"
    settings = "".join(f", {name}={value}" for name, value in run.settings.items())
    return f"{settings}, unclean return {seen}"
