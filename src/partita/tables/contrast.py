"""Contrasts: sums of coefficients with weights, given as a mapping or as a text that is parsed and never evaluated."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from partita.errors import SettingsError, unknown
from partita.inputs import check_finite_number, check_kind, check_number
from partita.tables.coefficients import short
from partita.tables.fitted import Fitted

__all__ = ["Effect", "contrast_of", "effect"]

_SIGN, _NUMBER = re.compile(r"\s*([-+])\s*"), re.compile(r"\s*(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)\s*\*?\s*")


@dataclasses.dataclass(frozen=True)
class Effect:
    """One number with its uncertainty."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    """The ends of its central interval."""
    positive: float
    """The probability that it is above 0."""
    ratio: tuple[float, ...] | None = None
    """exp(mean) and the ends of its interval, where it has a meaning."""

    def __repr__(self) -> str:
        said = f"{self.name}: {short(self.mean)} ± {short(self.sd)} ({short(self.low)} to {short(self.high)})"
        if self.ratio is not None:
            said += ", ratio {} ({} to {})".format(*map(short, self.ratio))
        return f"{said}, above 0 with probability {self.positive:.3f}"


def contrast_of(fit: Fitted, what: Mapping[str, float] | str, mass: float = 0.95) -> Effect:
    """A weighted sum of coefficients; see `Fit.contrast`."""
    check_number("mass of an interval", mass, lambda mass: 0 < mass < 1, "between 0 and 1")
    check_kind("contrast", what, (str, Mapping), 'write "a - b" or {"a": 1, "b": -1}', name="a text or a dict")
    zero = _references(fit)
    known = (*fit.names, *zero)
    weights = _parsed(what, known) if isinstance(what, str) else dict(what)
    row = np.zeros(len(fit.names))
    for name, weight in weights.items():
        if name not in known:
            raise unknown("coefficient", name, known)
        check_finite_number(f"weight of {name}", weight)
        if name not in zero:
            row[fit.names.index(name)] += weight
    if not row.any():
        raise SettingsError("The contrast holds nothing but reference levels, which are 0: name another coefficient.")
    label = what if isinstance(what, str) else " ".join(f"{weight:+g} * {name}" for name, weight in weights.items())
    mean, sd = float(row @ fit.mean), float(np.sqrt(row @ fit.covariance @ row))
    return effect(label, mean, sd, mass, ratio=fit.likelihood.ratio is not None)


def effect(name: str, mean: float, sd: float, mass: float, ratio: bool = False) -> Effect:
    """A Gaussian number."""
    reach = float(stats.norm.ppf((1 + mass) / 2)) * sd
    ends = (mean, mean - reach, mean + reach)
    return Effect(
        name, *(mean, sd, *ends[1:]), float(stats.norm.cdf(mean / sd)), tuple(map(math.exp, ends)) if ratio else None
    )


def _references(fit: Fitted) -> tuple[str, ...]:
    """The names that reference levels would have as coefficients, which are 0."""
    classes, references = fit.likelihood.classes(fit.response), fit.design.references
    return tuple(f"{label}{name}[T.{level}]" for label in classes for name, level in references.items())


def _parsed(text: str, known: Sequence[str]) -> dict[str, float]:
    """The weights in a text such as "a - 2 * b": signs, numbers and names that are known, the longest first."""
    names = sorted(known, key=len, reverse=True)
    place, found = 0, dict[str, float]()
    while place < len(text.rstrip()):
        sign = _SIGN.match(text, place)
        if sign is None and found:
            raise SettingsError(
                f"The contrast cannot be read at {text[place:][:30]!r}: put + or - between coefficients."
            )
        place = sign.end() if sign else place
        weight = -1.0 if sign and sign[1] == "-" else 1.0
        place += len(text[place:]) - len(text[place:].lstrip())
        name = next((name for name in names if text.startswith(name, place)), None)
        if name is None and (number := _NUMBER.match(text, place)):
            weight, place = weight * float(number[1]), number.end()
            name = next((name for name in names if text.startswith(name, place)), None)
        if name is None:
            raise SettingsError(
                f"The contrast cannot be read at {text[place:][:30]!r}: write it as {names[-1]} - 2 * {names[0]}, of "
                f"{', '.join(known[:8])}{', …' if len(known) > 8 else ''}."
            )
        found[name] = found.get(name, 0.0) + weight
        place += len(name)
    if not found:
        raise SettingsError("The contrast is empty: name a coefficient.")
    return found
