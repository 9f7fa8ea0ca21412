"""The fixed seeds of randomised tests: a third run with the other tests, the rest in soak."""

from collections.abc import Sequence
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Seed = TypeVar("Seed", int, str)  # or the name of a mutant


def always(seeds: Sequence[Seed], count: int | None = None) -> Sequence[Seed]:
    """The seeds that run in every `make test`: the first third, or the first `count`."""
    return seeds[: count or (len(seeds) + 2) // 3]


def rest_in_soak(seeds: Sequence[Seed], count: int | None = None) -> list[Seed | ParameterSet]:
    """All of the seeds, for `parametrize`; those that are not among `always` only in soak."""
    chosen = always(seeds, count)
    rest = seeds[len(chosen) :]
    return [*chosen, *(pytest.param(seed, marks=pytest.mark.soak) for seed in rest)]
