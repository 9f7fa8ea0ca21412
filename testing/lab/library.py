"""Loading of scenarios: the installed ones, by name, and files of the user's own.

A scenario that cannot be found or read is a `ScenarioUnknown` or `ScenarioError`, whose text is for
the user.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from minibroker.testing.lab.scenario import Scenario, ScenarioError, nearest, parse

SUFFIX: Final = ".txt"


class ScenarioUnknown(Exception):
    """There is no scenario, or no rule, of that name."""


def _folder() -> Traversable:
    return files("minibroker.testing.lab").joinpath("scenarios")


def names() -> list[str]:
    """Return the names of the installed scenarios, in alphabetical order."""
    found = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


def load(name: str) -> Scenario:
    """Load the installed scenario of this name, or the one in a file whose name ends with `.txt`.

    Raises `ScenarioUnknown`, `ScenarioError` (with the file's name), OSError.
    """
    if name.endswith(SUFFIX):
        return _read(Path(name), name)
    if name not in names():
        raise ScenarioUnknown(nearest(f"there is no scenario {name!r}", name, names()))
    return _read(_folder().joinpath(f"{name}{SUFFIX}"), name)


def _read(place: Traversable, name: str) -> Scenario:
    try:
        return parse(place.read_text(encoding="utf-8"))
    except ScenarioError as error:
        raise error.of(name) from None
    except UnicodeDecodeError:
        raise ScenarioError(1, "the file is not UTF-8 text").of(name) from None


def choose_rule(name: str, scenario: Scenario, rule: str | None) -> str:
    """Return the rule to play under: the given one, else the first that the scenario names.

    Raises `ScenarioUnknown`.
    """
    if rule is None:
        return scenario.rules[0]
    if rule not in scenario.rules:
        what = f"{name} is not told under the rule {rule!r}"
        raise ScenarioUnknown(nearest(what, rule, scenario.rules))
    return rule
