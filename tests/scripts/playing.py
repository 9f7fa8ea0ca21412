"""Runs of the lab's scenarios, and what tests ask of them."""

from itertools import groupby

from minibroker.testing.lab.library import load
from minibroker.testing.lab.stage import Played, play
from minibroker.testing.lab.transcript import Event, ReplicaState


def played(name: str, run_name: str, rule: str) -> Played:
    """One run of a scenario."""
    (run,) = (run for run in load(name).runs if run.name == run_name)
    return play(run, rule)


def events(told: Played) -> list[Event]:
    """What happens in a run."""
    return [line for line in told.lines if isinstance(line, Event)]


def texts(told: Played) -> list[str]:
    """The same, as text only."""
    return [event.text for event in events(told)]


def after(told: Played, text: str) -> tuple[ReplicaState, ...]:
    """The replicas after the first event with such a text."""
    return next(event.replicas for event in events(told) if text in event.text)


def ends(replicas: tuple[ReplicaState, ...]) -> list[tuple[int, int]]:
    """LEO and HW of each."""
    return [(replica.log_end, replica.high_watermark) for replica in replicas]


def isrs(told: Played) -> list[tuple[int, ...]]:
    """The in-sync sets of broker 1 that a run shows, without repetitions."""
    return [isr for isr, _ in groupby(event.replicas[0].isr for event in events(told))]
