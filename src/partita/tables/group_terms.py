"""Effects of groups in a formula: their columns, their numbers, and what they add to a likelihood."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from partita.errors import DataError
from partita.local.solvers import FixedPoint
from partita.models import GeneralisedLinear, GroupEffects, Model
from partita.tables.constants import Constant
from partita.tables.design import Design, categories, numbers
from partita.tables.formula import Factor, GroupTerm, column
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site
from partita.tables.response import Response

__all__ = ["check_sites", "columns_of_groups", "names_of_groups", "numbers_of_groups", "units", "with_groups"]

_BYTES = 6
"""A group's number is a digest of its name, of so many bytes, which a double holds exactly."""


def with_groups(likelihood: Likelihood, terms: Sequence[GroupTerm], design: Design) -> Likelihood:
    """The likelihood with effects of groups: their scales and correlations are constants after its own."""

    def model(response: Response) -> Model:
        own = likelihood.model(response)
        assert isinstance(own, GeneralisedLinear)
        return GroupEffects(own, tuple(len(term.names) for term in terms))

    def constants(response: Response) -> list[Constant]:
        return [
            *likelihood.constants(response),
            *(each for term in terms for each in _constants(term, response.slope / units(term, design))),
        ]

    learned = tuple(f"likelihood.{name}" for name in likelihood.learned)
    return dataclasses.replace(likelihood, model=model, solver=FixedPoint(), learned=learned, constants=constants)


def _constants(term: GroupTerm, scales: Float[np.ndarray, " d"]) -> list[Constant]:
    """How effects of one level vary, in these units."""
    names, by = term.names, term.by
    spreads = [
        Constant(f"sd of {name} by {by}", _scaled(scale), -0.5, 1.0) for name, scale in zip(names, scales, strict=True)
    ]
    kind = "correlation" if len(names) == 2 else "partial correlation"
    pairs = [(a, b) for a in range(len(names)) for b in range(a)]
    told = [f"{kind} of {names[b]} and {names[a]} by {by}" for a, b in pairs]
    return [*spreads, *(Constant(name, np.tanh, 0.0, 0.7) for name in told)]


def columns_of_groups(terms: Sequence[GroupTerm], design: Design, site: Site) -> Float[np.ndarray, "n e"]:
    """What effects are multiplied by: ones, and columns that are standardised as those of the design are."""
    found = list[np.ndarray]()
    for term in terms:
        found += [np.ones(site.rows)] if term.intercept else []
        for name in term.slopes:
            factor = next(each for each in design.formula.factors if each.text == name)
            if design.is_category(factor):
                wrong = f"{term.text:.100} has effects of {name!r}, which is a category: give a column of numbers."
                raise DataError(wrong, wrong)
            about, values = design.moments(factor), numbers(factor, site.columns)
            found.append((np.where(np.isnan(values), about.mean, values) - about.mean) / about.sd)
    return np.stack(found, axis=1)


def names_of_groups(term: GroupTerm, site: Site) -> list[tuple[str, ...]]:
    """Every row's group of one level: its value in each column of the grouping."""
    columns = [categories(Factor(name, "", column(name), {}, (name,)), site.columns) for name in term.columns]
    return list(zip(*columns, strict=True))


def numbers_of_groups(terms: Sequence[GroupTerm], site: Site) -> Float[np.ndarray, "n l"]:
    """Every row's group of each level by a number that belongs to the group's name, wherever it is."""
    return np.stack([_numbers(names_of_groups(term, site)) for term in terms], axis=1)


def _numbers(names: list[tuple[str, ...]]) -> Float[np.ndarray, " n"]:
    each = {name: name[0] if len(name) == 1 else json.dumps(name) for name in set(names)}
    digests = {name: hashlib.sha256(text.encode()).digest()[:_BYTES] for name, text in each.items()}
    return np.array([float(int.from_bytes(digests[name], "big")) for name in names])


def check_sites(term: GroupTerm, sites: Sequence[Site]) -> None:
    """Raises a `DataError` where rows of a group, which is an outermost one, lie at two sites."""
    home = dict[tuple[str, ...], str]()
    for site in sites:
        for name in sorted(set(names_of_groups(term, site))):
            if home.setdefault(name, site.name) != site.name:
                raise DataError(
                    f"{term.by} {':'.join(name)!r} lies at the sites {home[name]} and {site.name}: effects of a group "
                    "stay at one site, so rename one of the two, or take sites that hold whole groups."
                )


def units(term: GroupTerm, design: Design) -> Float[np.ndarray, " d"]:
    """By what the columns of effects are divided."""
    factors = {factor.text: factor for factor in design.formula.factors}
    sds = [design.moments(factors[name]).sd for name in term.slopes]
    return np.array([*([1.0] if term.intercept else []), *sds])


def _scaled(unit: float) -> Callable[[np.ndarray], np.ndarray]:
    """The standard deviation of effects in the table's units."""
    return lambda s: np.logaddexp(0, s) * unit
