"""Priors as texts: a law with its numbers, such as student_t(3, 0, 2.5), of which a scale may have a law itself."""

import ast
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float

from partita.errors import SettingsError, unknown
from partita.families import Family, FullGaussian
from partita.inputs import check_finite_number, check_function, check_texts, check_whole, described
from partita.models.laws import (
    Folded,
    GammaLaw,
    Horseshoe,
    InverseChi,
    InverseGammaLaw,
    Laplace,
    Law,
    Normal,
    NormalGamma,
    StudentT,
    central,
)
from partita.models.prior import Group, IndependentPrior, OutsidePrior

__all__ = ["Placed", "Said", "ScaleLaw", "built", "clauses", "normal", "prior"]

_FORM = 'such as "student_t(3, 0, 2.5)", "horseshoe(0.1)" or "normal(0, half_normal(1))"'


class ScaleLaw(NamedTuple):
    """The prior of a scale, a positive number."""

    law: Law
    log_scale: float


class Said(NamedTuple):
    """What a text says of coefficients."""

    law: Law
    location: float
    scale: float | ScaleLaw
    """Known, or inferred with this prior."""

    @property
    def in_family(self) -> bool:
        """Whether it is a Gaussian."""
        return isinstance(self.law, Normal) and not isinstance(self.scale, ScaleLaw)

    @property
    def width(self) -> float:
        """The sd of a Gaussian whose central 95% are as wide, its own of a Gaussian; by the median of the scale."""
        if isinstance(self.scale, ScaleLaw) or not self.in_family:
            return central(self.law, self.log_scale, False)[1]
        return self.scale

    @property
    def log_scale(self) -> float:
        """Of a scale that is inferred, the logarithm of its prior median."""
        if isinstance(self.scale, ScaleLaw):
            return central(*self.scale, True)[0]
        return math.log(self.scale)


def _above(**numbers: Any) -> None:
    for name, value in numbers.items():
        check_finite_number(f"{name} of a prior", value, above=0)


def _half(law: Law, scale: float) -> ScaleLaw:
    _above(scale=scale)
    return ScaleLaw(Folded(law), math.log(scale))


def _half_t(freedom: float, scale: float) -> ScaleLaw:
    _above(freedom=freedom)
    return _half(StudentT(freedom), scale)


def _gamma(shape: float, rate: float) -> ScaleLaw:
    _above(shape=shape, rate=rate)
    return ScaleLaw(GammaLaw(shape), -math.log(rate))


def _inverse_gamma(shape: float, scale: float) -> ScaleLaw:
    _above(shape=shape, scale=scale)
    return ScaleLaw(InverseGammaLaw(shape), math.log(scale))


_SCALES: Mapping[str, Callable[..., ScaleLaw]] = {
    "half_normal": lambda scale: _half(Normal(), scale),
    "half_t": _half_t,
    "half_cauchy": lambda scale: _half(StudentT(1.0), scale),
    "exponential": lambda rate: _gamma(1.0, rate),
    "gamma": _gamma,
    "inverse_gamma": _inverse_gamma,
}
"""Laws of scales."""


def _said(law: Law, location: float, scale: float | ScaleLaw) -> Said:
    check_finite_number("location of a prior", location)
    if not isinstance(scale, ScaleLaw):
        _above(scale=scale)
    return Said(law, location, scale)


def _student_t(freedom: float, location: float, scale: float | ScaleLaw) -> Said:
    _above(freedom=freedom)
    return _said(StudentT(freedom), location, scale)


def _horseshoe(scale: float | ScaleLaw, slab: float = 2.0) -> Said:
    _above(slab=slab)
    return _said(Horseshoe(slab), 0.0, scale if isinstance(scale, ScaleLaw) else _SCALES["half_cauchy"](scale))


def _r2d2(concentration: float = 0.5, b: float = 0.5) -> Said:
    _above(concentration=concentration, b=b)
    return _said(NormalGamma(concentration), 0.0, ScaleLaw(InverseChi(b), 0.0))


def normal(mean: float, sd: float | ScaleLaw) -> Said:
    """N(mean, sd²)."""
    return _said(Normal(), mean, sd)


_LAWS: Mapping[str, Callable[..., Said]] = {
    "normal": normal,
    "student_t": _student_t,
    "laplace": lambda location, scale: _said(Laplace(), location, scale),
    "cauchy": lambda location, scale: _said(StudentT(1.0), location, scale),
    "horseshoe": _horseshoe,
    "r2d2": _r2d2,
}
"""Laws of coefficients."""


def clauses(text: Any) -> tuple[tuple[tuple[str, ...], Said], ...]:
    """What a text says: "law; name, name: law; …", where a law without names is that of all others."""
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"Write the prior as a law with numbers, {_FORM}, not {described(text)}.")
    found = list[tuple[tuple[str, ...], Said]]()
    for clause in filter(str.strip, text.split(";")):
        names, colon, law = clause.rpartition(":")
        own = tuple(name.strip() for name in _apart(names)) if colon else ()
        found.append((own, _read(law.strip())))
    listed = [name for own, _ in found for name in own or ("",)]
    if twice := [name for name in listed if listed.count(name) > 1]:
        whom = repr(twice[0]) if twice[0] else "all other coefficients"
        raise SettingsError(f"The prior of {whom} is given twice: give one.")
    return tuple(found)


def _apart(names: str) -> list[str]:
    """Names between commas that are not within brackets, as a spline's are."""
    return re.split(r",(?![^(\[]*[)\]])", names)


def _read(text: str) -> Said:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Call):
        raise SettingsError(f"Write the prior as a law with numbers, {_FORM}, not {described(text)}.")
    said: Said = _called(tree, _LAWS, "prior")
    return said


def _called(call: ast.Call, laws: Mapping[str, Callable[..., Any]], what: str) -> Any:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name not in laws:
        raise unknown(what, ast.unparse(call.func), laws)
    made = laws[name]
    given = [_value(each) for each in call.args]
    named = {each.arg or "**": _value(each.value) for each in call.keywords}
    try:
        inspect.signature(made).bind(*given, **named)
    except TypeError:
        takes = ", ".join(inspect.signature(made).parameters)
        raise SettingsError(f"The prior {ast.unparse(call)!r:.60} has other numbers than {name}({takes}).") from None
    return made(*given, **named)


def _value(tree: ast.expr) -> Any:
    """A number, or the law of a scale."""
    if isinstance(tree, ast.Call):
        return _called(tree, _SCALES, "prior of a scale")
    try:
        value = ast.literal_eval(tree)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"A prior's {ast.unparse(tree)!r:.40} is no number: give numbers, or the law of a scale.")
    return float(value)


class Placed(NamedTuple):
    """A law, and where its coefficients and their scale are in θ."""

    said: Said
    places: tuple[int, ...]
    scale: int | None = None


def built(
    laws: Sequence[Placed], size: int, family: Callable[[Float[np.ndarray, " d"], Float[np.ndarray, " d"]], Family]
) -> Family | OutsidePrior:
    """The prior of θ; a member of the family if all laws are, and else one outside, whose base is as wide as it."""
    mean, sd = np.zeros(size), np.ones(size)
    groups = list[Group]()
    for said, places, scale in laws:
        mean[list(places)] = said.location
        sd[list(places)] = said.width
        groups.append(Group(said.law, tuple(places), said.location, said.log_scale, scale))
        if scale is not None and isinstance(said.scale, ScaleLaw):
            mean[scale], sd[scale] = central(*said.scale, True)
            groups.append(Group(said.scale.law, (scale,), 0.0, said.scale.log_scale))
    base = family(mean, sd)
    return base if all(said.in_family for said, _, _ in laws) else OutsidePrior(IndependentPrior(tuple(groups)), base)


def prior(
    text: str,
    names: int | Sequence[str],
    family: Callable[[Float[np.ndarray, " d"], Float[np.ndarray, " d"]], Family] | None = None,
) -> Family | OutsidePrior:
    """The prior that a text says of a vector of coefficients, for `run`.

    Args:
        text: such as "student_t(3, 0, 2.5)", or "horseshoe(0.1); age, ward: normal(0, 1)" for coefficients by name.
        names: of the coefficients, or how many there are.
        family: makes q's family of means and sds, such as `MeanFieldGaussian.from_mean_sd`; full covariance if None.

    Returns:
        A member of the family if all laws are Gaussian with known scales; else an `OutsidePrior`. Of a scale that is
        inferred, the logarithm is one more element of θ, after the coefficients, in the order of the text: rows have a
        column of zeros for it.

    """
    check_function("family of a prior", _full if family is None else family)
    if isinstance(names, list | tuple):
        check_texts("names of the coefficients", names)
    else:
        check_whole("number of coefficients", names)
        names = [str(place) for place in range(cast(int, names))]
    said = clauses(text)
    size, placed = len(names), list[Placed]()
    for own, law in said:
        for name in own:
            if name not in names:
                raise unknown("coefficient", name, names)
        named = {name for others, _ in said for name in others}
        places = tuple(place for place, name in enumerate(names) if (name in own if own else name not in named))
        inferred = isinstance(law.scale, ScaleLaw)
        placed.append(Placed(law, places, size if inferred else None))
        size += inferred
    if lost := set(range(len(names))) - {place for each in placed for place in each.places}:
        raise SettingsError(f"The prior says nothing of {names[min(lost)]!r}: add a law without names, for all others.")
    return built([each for each in placed if each.places], size, _full if family is None else family)


def _full(mean: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"]) -> Family:
    return FullGaussian.from_mean_covariance(mean, np.diag(sd**2))
