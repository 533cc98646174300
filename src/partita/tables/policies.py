"""What may be done about missing predictors, by name."""

import abc
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from partita.inputs import check_choice, check_seed, check_whole
from partita.tables.reading import Site

__all__ = ["policy"]


class _Policy(abc.ABC):
    """What is done about missing predictors."""

    keeps: ClassVar[bool]
    """Whether rows without a predictor are read."""
    marks: ClassVar[bool] = False
    """Whether a missing number becomes its column's mean, and a column marks it."""
    completed_as: ClassVar[str]
    """The policy of the tables that are fitted."""

    @property
    def draws(self) -> bool:
        """Whether there are several such tables, with values that were drawn."""
        return False

    def completed(self, sites: tuple[Site, ...], draws: int, seed: int) -> Sequence[tuple[Site, ...]]:
        """The tables that are fitted: all sites' rows, once or several times."""
        return (sites,)


class _Drop(_Policy):
    """Rows without a value are dropped."""

    keeps = False
    completed_as = "drop"


class _Mean(_Policy):
    """The mean over all sites, marked; a missing category has a level of its own."""

    keeps = True
    marks = True
    completed_as = "mean"


class _Multiple(_Policy):
    """Sites draw their own missing values several times."""

    keeps = True
    completed_as = "drop"

    @property
    def draws(self) -> bool:
        return True

    def completed(self, sites: tuple[Site, ...], draws: int, seed: int) -> Sequence[tuple[Site, ...]]:
        from partita.tables.imputation import imputed  # which loads scikit-learn

        check_whole("number of imputations", draws, least=5)
        check_seed(seed)
        generators = [np.random.default_rng([seed, place]) for place in range(len(sites))]
        return [tuple(map(imputed, sites, generators)) for _ in range(draws)]


_POLICIES: Mapping[str, _Policy] = {"drop": _Drop(), "mean": _Mean(), "multiple": _Multiple()}


def policy(name: str) -> _Policy:
    """The policy of this name."""
    check_choice("policy on missing values", name, _POLICIES)
    return _POLICIES[name]
