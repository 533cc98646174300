"""What is fitted: the settings that a user gives, and the spec that follows when sites have agreed on the design.

A spec is plain data, so that it goes to a file, or from a server to its clients.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from partita import methods
from partita.data.table import OffsetTable, Table
from partita.errors import DataError, SettingsError
from partita.families import BlockGaussian, Family, FullGaussian, MeanFieldGaussian
from partita.inputs import check_choice, check_kind, described
from partita.io.settings import build
from partita.models.glm import GeneralisedLinear
from partita.server.method import Method
from partita.tables.agreement import Agreement
from partita.tables.blocks import block_sizes
from partita.tables.design import INTERCEPT, Design
from partita.tables.formula import Formula, parsed
from partita.tables.likelihoods import LIKELIHOODS, Likelihood
from partita.tables.reading import Site
from partita.tables.response import Response

__all__ = ["POLICIES", "Settings", "Spec"]

POLICIES = ("drop", "mean")
"""What may be done about missing predictors: drop their rows, or take the mean, and mark it in a column."""

_Vector = Float[np.ndarray, " d"]


def _full(mean: _Vector, sd: _Vector, design: Design) -> Family:
    return FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


def _block(mean: _Vector, sd: _Vector, design: Design) -> Family:
    return BlockGaussian.from_mean_sd(mean, sd, block_sizes(design.widths))


def _mean_field(mean: _Vector, sd: _Vector, design: Design) -> Family:
    return MeanFieldGaussian.from_mean_sd(mean, sd)


_FAMILIES: Mapping[str, Callable[[_Vector, _Vector, Design], Family]] = {
    "full": _full,
    "block": _block,
    "mean-field": _mean_field,
}
"""A prior of each form of the covariance, given mean and sd of every coefficient."""
_MOST_FULL = 500
"""The largest number of columns for which a full covariance is the default; beyond it is one of blocks."""
_AUTOMATIC = "automatic"
_INTERCEPT_SD = 10.0
"""The least sd of the intercept's prior."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a user asks for; the arguments of `fit`."""

    formula: str
    family: str = "gaussian"
    prior: str = "normal(0, 2.5)"
    covariance: str = _AUTOMATIC
    weights: str = ""
    """The column of row weights; empty for none."""
    positive: str = ""
    """The label of a binary response that counts as 1; empty for the last in the alphabet."""
    missing: str = "drop"
    """What is done about missing predictors: one of `POLICIES`."""

    def __post_init__(self) -> None:
        check_choice("family", self.family, LIKELIHOODS)
        check_choice("covariance", self.covariance, (_AUTOMATIC, *_FAMILIES))
        check_choice("policy on missing values", self.missing, POLICIES)
        for what, text in (("column of weights", self.weights), ("positive label", self.positive)):
            check_kind(what, text, str, "give a name", name="a text")
        _normal(self.prior)
        parsed(self.formula)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood."""
        return LIKELIHOODS[self.family]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that sites read."""
        formula = parsed(self.formula)
        weights = (self.weights,) if self.weights else ()
        return tuple(dict.fromkeys((*formula.response.columns, *formula.columns, *weights)))

    @property
    def optional(self) -> frozenset[str]:
        """The columns that may be missing in a row that is used."""
        formula = parsed(self.formula)
        needed = {name for factor in (formula.response, *formula.offsets) for name in factor.columns} | {self.weights}
        return frozenset() if self.missing == "drop" else frozenset(formula.columns) - needed

    @property
    def begun(self) -> Agreement:
        """What sites begin to agree on."""
        return Agreement.of(self.formula, self.missing == "mean")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Settings, with the design and the response that sites have agreed on."""

    settings: Settings
    agreement: Agreement

    def __post_init__(self) -> None:
        begun, design = self.settings.begun.design, self.agreement.design
        same = design.formula.text == begun.formula.text and design.indicated == begun.indicated
        if not (same and self.agreement.complete):
            raise DataError("Sites have not agreed on a design of this formula: go through round 0 with it.")
        _ = self.response  # which refuses what does not fit the likelihood

    @functools.cached_property
    def response(self) -> Response:
        """How every site turns its response into numbers."""
        factor = self.formula.response
        about = self.agreement.response.columns[factor.text]
        return Response.agreed(factor, self.settings.likelihood, about, self.settings.positive or None)

    @property
    def design(self) -> Design:
        """How every site makes its design matrix."""
        return self.agreement.design

    @property
    def formula(self) -> Formula:
        """The formula."""
        return self.design.formula

    @property
    def covariance(self) -> str:
        """The form of the covariance."""
        if self.settings.covariance != _AUTOMATIC:
            return self.settings.covariance
        return "full" if len(self.design.names) <= _MOST_FULL else "block"

    def table(self, site: Site) -> Table | OffsetTable:
        """A site's rows as numbers."""
        x, y = jnp.asarray(self.design.standardised(site)), jnp.asarray(self.response.numbers(site.columns))
        return OffsetTable(x, y, jnp.asarray(self.offset(site))) if self.formula.offsets else Table(x, y)

    def offset(self, site: Site) -> Float[np.ndarray, " n"]:
        """The sum of the formula's offsets, in units of the response; 0 without any."""
        return self.design.offset(site) / self.response.sd if self.formula.offsets else np.zeros(site.rows)

    def weights(self, site: Site) -> Float[np.ndarray, " n"]:
        """The weight of each row."""
        name = self.settings.weights
        if not name:
            return np.ones(site.rows)
        found = site.columns[name]
        if found.dtype.kind != "f" or not (np.isfinite(found).all() and (found >= 0).all()):
            raise DataError(f"Column {name!r} holds weights: give finite numbers from 0 up.")
        return found

    def model(self) -> GeneralisedLinear:
        """The likelihood's model."""
        return self.settings.likelihood.model()

    def method(self) -> Method:
        """By which it is fitted."""
        return methods.sequential(learn=self.settings.likelihood.learned)

    def prior(self) -> Family:
        """The prior of the coefficients of standardised columns.

        The intercept's is wide, as a base rate may be small.
        """
        mean, sd = _normal(self.settings.prior)
        own = np.array([name == INTERCEPT for name in self.design.names])
        means, sds = np.where(own, 0.0, mean), np.where(own, max(sd, _INTERCEPT_SD), sd)
        return _FAMILIES[self.covariance](means, sds, self.design)

    def to_dict(self) -> dict[str, Any]:
        """The spec as lists, texts and numbers, for JSON."""
        return {"settings": dataclasses.asdict(self.settings), **self.agreement.to_dict()}

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        if not isinstance(contents, Mapping) or not isinstance(contents.get("settings"), Mapping):
            raise DataError("This is not the spec of a fit: send what Spec.to_dict made.")
        rest = {key: value for key, value in contents.items() if key != "settings"}
        return cls(build(Settings, contents["settings"], "the spec"), Agreement.from_dict(rest))


def _normal(text: str) -> tuple[float, float]:
    """Mean and sd of a prior."""
    number = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*"
    found = re.fullmatch(rf"\s*normal\({number},{number}\)\s*", text) if isinstance(text, str) else None
    if not found or not float(found[2]) > 0:
        raise SettingsError(f'Write the prior as "normal(mean, sd)" with a positive sd, not {described(text)}.')
    return float(found[1]), float(found[2])
