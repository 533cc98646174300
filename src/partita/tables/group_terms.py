"""Effects of groups in a formula: their columns, their numbers, and what they add to a likelihood."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from partita.errors import DataError
from partita.local.solvers import FixedPoint
from partita.models import GeneralisedLinear, GroupEffects, Model
from partita.tables.constants import Constant
from partita.tables.design import INTERCEPT, Design, categories, numbers
from partita.tables.formula import GroupTerm
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site
from partita.tables.response import Response

__all__ = ["check_sites", "columns_of_groups", "effects", "numbers_of_groups", "units", "with_groups"]

_BYTES = 6
"""A group's number is a digest of its name, of so many bytes, which a double holds exactly."""


def with_groups(likelihood: Likelihood, term: GroupTerm, design: Design) -> Likelihood:
    """The likelihood with effects of groups: their scales and correlations are constants after its own."""

    def model(response: Response) -> Model:
        own = likelihood.model(response)
        assert isinstance(own, GeneralisedLinear)
        return GroupEffects(own, term.effects)

    def constants(response: Response) -> list[Constant]:
        spreads = [
            Constant(f"sd of {name} by {term.group.text}", _scaled(response.slope / unit), -0.5, 1.0)
            for name, unit in zip(effects(term), units(term, design), strict=True)
        ]
        pairs = [(a, b) for a in range(term.effects) for b in range(a)]
        kind = "correlation" if term.effects == 2 else "partial correlation"
        names = effects(term)
        told = [f"{kind} of {names[b]} and {names[a]} by {term.group.text}" for a, b in pairs]
        return [*likelihood.constants(response), *spreads, *(Constant(name, np.tanh, 0.0, 0.7) for name in told)]

    learned = tuple(f"likelihood.{name}" for name in likelihood.learned)
    return dataclasses.replace(likelihood, model=model, solver=FixedPoint(), learned=learned, constants=constants)


def columns_of_groups(term: GroupTerm, design: Design, site: Site) -> Float[np.ndarray, "n d"]:
    """What effects are multiplied by: ones, and columns that are standardised as those of the design are."""
    found = [np.ones(site.rows)] if term.intercept else []
    for name in term.slopes:
        factor = next(each for each in design.formula.factors if each.text == name)
        if design.is_category(factor):
            wrong = f"{term.text:.100} has effects of {name!r}, which is a category: give a column of numbers."
            raise DataError(wrong, wrong)
        about, values = design.moments(factor), numbers(factor, site.columns)
        found.append((np.where(np.isnan(values), about.mean, values) - about.mean) / about.sd)
    return np.stack(found, axis=1)


def numbers_of_groups(term: GroupTerm, site: Site) -> Float[np.ndarray, " n"]:
    """Every row's group by a number that belongs to the group's name, wherever it is."""
    names, place = np.unique(categories(term.group, site.columns), return_inverse=True)
    digests = [hashlib.sha256(name.encode()).digest()[:_BYTES] for name in names.tolist()]
    return np.array([float(int.from_bytes(digest, "big")) for digest in digests])[place]


def check_sites(term: GroupTerm, sites: Sequence[Site]) -> None:
    """Raises a `DataError` where a group's rows lie at two sites."""
    home = dict[str, str]()
    for site in sites:
        for name in sorted(set(categories(term.group, site.columns))):
            if home.setdefault(name, site.name) != site.name:
                raise DataError(
                    f"{term.group.text} {name!r} lies at the sites {home[name]} and {site.name}: effects of a group "
                    "stay at one site, so rename one of the two, or take sites that hold whole groups."
                )


def effects(term: GroupTerm) -> tuple[str, ...]:
    """The names of effects."""
    return (*([INTERCEPT] if term.intercept else []), *term.slopes)


def units(term: GroupTerm, design: Design) -> Float[np.ndarray, " d"]:
    """By what the columns of effects are divided."""
    factors = {factor.text: factor for factor in design.formula.factors}
    sds = [design.moments(factors[name]).sd for name in term.slopes]
    return np.array([*([1.0] if term.intercept else []), *sds])


def _scaled(unit: float) -> Callable[[np.ndarray], np.ndarray]:
    """The standard deviation of effects in the table's units."""
    return lambda s: np.logaddexp(0, s) * unit
