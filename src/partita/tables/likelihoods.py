"""Likelihoods by the names that statisticians know, with what a table of results says of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from partita.errors import SettingsError
from partita.inputs import check_choice, check_finite_number
from partita.local.solvers import ModeFixedPoint, Newton, Solver
from partita.models import Model
from partita.models.classes import MultinomialRegression, OrdinalRegression
from partita.models.continuous import (
    BetaRegression,
    GammaRegression,
    InferredNoiseRegression,
    StudentTRegression,
    WeibullRegression,
)
from partita.models.counts import (
    BinomialRegression,
    CloglogBinomial,
    LogitBinomial,
    NegativeBinomialCounts,
    PoissonCounts,
    ProbitBinomial,
    ZeroInflated,
)
from partita.models.glm import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression
from partita.tables.constants import CUT_POINTS, SCALARS, Constant, Reporting
from partita.tables.episodes import RowSplit, constant_hazard, episodes, whole
from partita.tables.formula import Formula
from partita.tables.response import (
    BINARY,
    IN_UNITS,
    NOMINAL,
    NUMERIC,
    ORDERED,
    STANDARDISED,
    SURVIVAL,
    TRIALS,
    Declared,
    Kind,
    Response,
)

__all__ = ["LIKELIHOODS", "Likelihood", "likelihood"]

_SOLVER = ModeFixedPoint()


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """A likelihood, and how its results are reported."""

    kind: Kind
    """What the response is."""
    model: Callable[[Response], Model]
    """Makes the model, in the precision that is set then."""
    ratio: str | None = None
    """What exp(coefficient) is called, if it has a meaning."""
    solver: Solver = _SOLVER
    learned: tuple[str, ...] = ()
    """The parameters besides coefficients that are learned as one number each."""
    constants: Callable[[Response], Sequence[Constant]] = lambda response: ()
    """Those that are inferred with the coefficients."""
    classes: Callable[[Response], Sequence[str]] = lambda response: ("",)
    """A label for each linear predictor, where there are several."""
    threshold: Callable[[Response], Constant] | None = None
    """As what minus the intercept is reported, before the constants."""
    reporting: Reporting = SCALARS
    """How constants are reported."""
    rows: Callable[[Formula, Declared], RowSplit] = whole
    """Which rows of the design a row of the table becomes."""
    grouped: bool = False
    """Whether there may be effects of groups: with one predictor that is linear."""
    latent: Callable[[Model], float] | None = None
    """The variance of a row's own part of the predictor, with which that of groups is compared."""


def _gaussian(declared: Declared) -> Likelihood:
    noise = "learned" if declared.noise is None else declared.noise
    if isinstance(noise, str):
        check_choice("noise", noise, ("learned", "inferred"))
        if noise == "learned":
            linear = Likelihood(STANDARDISED, lambda response: LinearRegression(), solver=Newton(), learned=("noise",))
            return dataclasses.replace(linear, grouped=True, latent=_noise)
        spread = (Constant("noise", in_units=True),)
        return Likelihood(STANDARDISED, lambda response: InferredNoiseRegression(), constants=lambda response: spread)
    check_finite_number("noise", noise, above=0)
    linear = Likelihood(STANDARDISED, lambda response: LinearRegression(noise / response.sd), solver=Newton())
    return dataclasses.replace(linear, grouped=True, latent=_noise)


def _noise(model: Model) -> float:
    """The variance of a linear regression's noise."""
    assert isinstance(model, LinearRegression)
    return float(model.noise) ** 2


_LINKS: Mapping[str, tuple[type[BinomialRegression], str | None]] = {
    "logit": (LogitBinomial, "odds ratio"),
    "probit": (ProbitBinomial, None),
    "cloglog": (CloglogBinomial, "hazard ratio"),
}


def _binomial(declared: Declared) -> Likelihood:
    link = "logit" if declared.link is None else declared.link
    check_choice("link", link, _LINKS)
    model, ratio = _LINKS[link]
    return Likelihood(TRIALS, lambda response: model(), ratio)


def _constant(chosen: Likelihood) -> Callable[[Declared], Likelihood]:
    """A likelihood that does not depend on settings."""
    return lambda declared: chosen


_DISPERSION, _SHAPE = Constant("dispersion"), Constant("shape")
_SCALE, _FREEDOM = Constant("scale", in_units=True), Constant("degrees of freedom", mean=2.0, sd=1.0)
_ZEROS = Constant("zero inflation", special.expit)


def _between(response: Response) -> list[Constant]:
    """The cut points between neighbouring levels."""
    pairs = zip(response.labels, response.labels[1:], strict=False)
    return [Constant(f"{low} | {high}") for low, high in pairs]


_MADE: Mapping[str, tuple[tuple[str, ...], Callable[[Declared], Likelihood]]] = {
    "gaussian": (("noise",), _gaussian),
    "bernoulli": (
        ("positive",),
        _constant(
            Likelihood(
                BINARY,
                lambda response: LogisticRegression(),
                "odds ratio",
                Newton(),
                grouped=True,
                latent=lambda model: np.pi**2 / 3,
            )
        ),
    ),
    "probit": (
        ("positive",),
        _constant(
            Likelihood(
                BINARY, lambda response: ProbitRegression(), solver=Newton(), grouped=True, latent=lambda model: 1.0
            )
        ),
    ),
    "binomial": (("positive", "trials", "link"), _binomial),
    "poisson": (
        (),
        _constant(Likelihood(NUMERIC, lambda response: PoissonRegression(), "rate ratio", Newton(), grouped=True)),
    ),
    "negative_binomial": (
        (),
        _constant(
            Likelihood(
                NUMERIC,
                lambda response: NegativeBinomialCounts(),
                "rate ratio",
                constants=lambda response: (_DISPERSION,),
            )
        ),
    ),
    "zero_inflated_poisson": (
        (),
        _constant(
            Likelihood(
                NUMERIC,
                lambda response: ZeroInflated(counts=PoissonCounts()),
                "rate ratio",
                constants=lambda response: (_ZEROS,),
            )
        ),
    ),
    "zero_inflated_negative_binomial": (
        (),
        _constant(
            Likelihood(
                NUMERIC,
                lambda response: ZeroInflated(counts=NegativeBinomialCounts()),
                "rate ratio",
                constants=lambda response: (_DISPERSION, _ZEROS),
            )
        ),
    ),
    "gamma": (
        (),
        _constant(
            Likelihood(IN_UNITS, lambda response: GammaRegression(), "mean ratio", constants=lambda response: (_SHAPE,))
        ),
    ),
    "beta": (
        (),
        _constant(
            Likelihood(
                NUMERIC,
                lambda response: BetaRegression(),
                "odds ratio",
                constants=lambda response: (Constant("precision"),),
            )
        ),
    ),
    "student_t": (
        (),
        _constant(
            Likelihood(
                STANDARDISED,
                lambda response: StudentTRegression(),
                constants=lambda response: (_SCALE, _FREEDOM),
            )
        ),
    ),
    "ordinal": (
        ("levels",),
        _constant(
            Likelihood(
                ORDERED,
                lambda response: OrdinalRegression(classes=len(response.labels)),
                "odds ratio",
                constants=lambda response: _between(response)[1:],
                threshold=lambda response: _between(response)[0],
                reporting=CUT_POINTS,
            )
        ),
    ),
    "multinomial": (
        ("levels",),
        _constant(
            Likelihood(
                NOMINAL,
                lambda response: MultinomialRegression(classes=len(response.labels)),
                "odds ratio",
                classes=lambda response: [f"{label}:" for label in response.labels[1:]],
            )
        ),
    ),
    "weibull": (
        ("event",),
        _constant(
            Likelihood(
                SURVIVAL, lambda response: WeibullRegression(), "time ratio", constants=lambda response: (_SHAPE,)
            )
        ),
    ),
    "exponential": (
        ("event",),
        _constant(
            Likelihood(
                NUMERIC,
                lambda response: PoissonRegression(),
                "hazard ratio",
                Newton(),
                rows=constant_hazard,
                grouped=True,
            )
        ),
    ),
    "piecewise_exponential": (
        ("event", "cuts"),
        _constant(Likelihood(NUMERIC, lambda response: PoissonRegression(), "hazard ratio", Newton(), rows=episodes)),
    ),
}
LIKELIHOODS = tuple(_MADE)
"""The names of likelihoods."""


def likelihood(family: str, declared: Declared) -> Likelihood:
    """The likelihood of this name; raises a `SettingsError` where it takes no such setting."""
    check_choice("family", family, LIKELIHOODS)
    takes, make = _MADE[family]
    given: dict[str, Any] = {name: value for name, value in declared._asdict().items() if value is not None}
    for name in given.keys() - set(takes):
        fitting = ", ".join(other for other, (names, _) in _MADE.items() if name in names)
        raise SettingsError(f"The family {family} takes no {name}: leave it out, or use one of {fitting}.")
    return make(declared)
