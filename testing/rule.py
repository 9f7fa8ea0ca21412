"""A rule of the broker that a mutant breaks: one function, method or property is replaced."""

from types import ModuleType
from typing import NamedTuple


class Rule(NamedTuple):
    """The replacement of a method or property of a class, or of a function of a module."""

    owner: type | ModuleType
    name: str
    broken: object
