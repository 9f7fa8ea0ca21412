"""The fixed seeds of randomised tests: a third run with the other tests, the rest in soak."""

from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet


def always(seeds: Sequence[int]) -> Sequence[int]:
    """The seeds that run in every `make test`: the first third."""
    return seeds[: (len(seeds) + 2) // 3]


def rest_in_soak(seeds: Sequence[int]) -> list[int | ParameterSet]:
    """All of the seeds, for `parametrize`; those that are not among `always` only in soak."""
    rest = seeds[len(always(seeds)) :]
    return [*always(seeds), *(pytest.param(seed, marks=pytest.mark.soak) for seed in rest)]
