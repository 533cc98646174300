"""Comparison of fits of one response: by evidence, and by how well they predict rows that they have not seen."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jax import enable_x64

from partita.errors import DataError, SettingsError
from partita.inputs import check_kind
from partita.tables.coefficients import text_table
from partita.tables.fit import Fit
from partita.tables.fitted import rows_of
from partita.tables.loo import Loo, SiteLoo, joint_ratios, left_out, spread, summed
from partita.tables.reading import Site

__all__ = ["Compared", "compare"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """One of the fits that are compared."""

    name: str
    elpd: float
    """The expected log density of unseen rows."""
    behind: float
    """By how much it is less than the best."""
    se: float
    """The standard error of that difference, from how rows vary in it."""
    free_energy: float
    """The lower bound of the log evidence; it depends on the priors."""
    evidence_behind: float
    shape: float
    """k of q against the joint density."""
    trusted: bool
    """Whether q is near enough to the posterior for these numbers; see `Loo.trusted`."""


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """Fits in the order of their elpd, the best first; print it, or ask for its rows."""

    rows: tuple[Compared, ...]

    def __repr__(self) -> str:
        heads = ("", "elpd", "behind", "± se", "free energy", "behind", "k of q", "q is")
        cells = [
            (
                row.name,
                *(f"{number:.1f}" for number in (row.elpd, row.behind, row.se)),
                *(f"{number:.1f}" for number in (row.free_energy, row.evidence_behind)),
                f"{row.shape:.2f}",
                "good" if row.trusted else "not to be trusted",
            )
            for row in self.rows
        ]
        notes = ["A difference of a few standard errors is one that other rows would show too."]
        return text_table("Comparison of fits, in nats", heads, cells, notes)


def compare(fits: Mapping[str, Fit], draws: int = 1000, seed: int = 0) -> _Comparison:
    """Compares fits of one response by leave-one-out cross-validation and by their free energies.

    Each site computes its rows' log densities under all fits, and sends sums of them and of their products. The
    evidence is that of each fit with its prior; cross-validation hardly depends on priors.

    Args:
        fits: by name, at least two; of the same rows at the same sites.
        draws: how many draws of each posterior.
        seed: of the draws.

    Returns:
        A row for each fit, the best first, with the standard errors of differences.

    """
    check_kind("fits", fits, Mapping, 'give them by name, as {"a": a, "b": b}', name="a dict")
    if len(fits) < 2:
        raise SettingsError("A comparison needs two fits at least: give them by name.")
    for name, fit in fits.items():
        check_kind("name", name, str, "give a text", name="a text")
        check_kind(f"fit {name!r}", fit, Fit, "use what pt.fit returns")
    fits = {name: fit.with_rows() for name, fit in fits.items()}
    _check_same(fits)
    found, errors = _left_out(fits, draws, seed)
    order = sorted(found, key=lambda name: -found[name].elpd)
    best, highest = found[order[0]].elpd, max(loo.free_energy for loo in found.values())
    return _Comparison(tuple(_row(name, found[name], best, highest, errors[order[0]][name]) for name in order))


def _row(name: str, loo: Loo, best: float, highest: float, error: float) -> Compared:
    return Compared(
        name, loo.elpd, best - loo.elpd, error, loo.free_energy, highest - loo.free_energy, loo.shape, loo.trusted
    )


def _left_out(fits: Mapping[str, Fit], draws: int, seed: int) -> tuple[dict[str, Loo], dict[str, dict[str, float]]]:
    """The cross-validation of every fit, and the standard errors of the differences of any two.

    A site leaves its rows out under all fits, and sends sums over rows of differences and of their squares.
    """
    with enable_x64(True):
        rows = {name: rows_of(fit) for name, fit in fits.items()}
        shared = {name: joint_ratios(fit, rows[name], draws, seed) for name, fit in fits.items()}
        sites: dict[str, dict[str, SiteLoo]] = {name: {} for name in fits}
        sums = {(one, other): np.zeros(2) for one in fits for other in fits}
        for site in next(iter(rows.values())):
            own = {}
            for name, fit in fits.items():
                sites[name][site], own[name] = left_out(fit.result.posterior.model, rows[name][site], *shared[name])
            for one, other in sums:
                gap = own[one] - own[other]
                sums[one, other] = sums[one, other] + np.array([gap.sum(), gap @ gap])
        found = {name: summed(fit, rows[name], sites[name], shared[name][1]) for name, fit in fits.items()}
    count = next(iter(found.values())).rows
    errors = {one: {other: spread(count, *map(float, sums[one, other])) for other in fits} for one in fits}
    return found, errors


def _check_same(fits: Mapping[str, Fit]) -> None:
    """Raises where fits are not of the same responses, row by row at each site."""
    first, *others = fits
    expected = fits[first]
    for name in others:
        fit = fits[name]
        texts = [each.spec.formula.response.text for each in (expected, fit)]
        if texts[0] != texts[1]:
            raise DataError(
                f"{first!r} is a fit of {texts[0]!r} and {name!r} of {texts[1]!r}: compare fits of one response."
            )
        same = [site.name for site in fit.sites] == [site.name for site in expected.sites] and all(
            mine.rows == theirs.rows and _same_responses((fit, mine), (expected, theirs))
            for mine, theirs in zip(fit.sites, expected.sites, strict=True)
        )
        if not same:
            raise DataError(
                f"{first!r} and {name!r} are fits of different rows or sites: fit both to the same table, without the "
                "rows in which a column of either is missing."
            )


def _same_responses(*both: tuple[Fit, Site]) -> bool:
    """Whether the rows of a site have the same responses under two fits, which may code them differently."""
    (one, hidden), (other, also) = (fit.spec.agreement.rows.observed(site, fit.response) for fit, site in both)
    labels = [np.array(fit.response.labels) for fit, _ in both]
    if all(map(len, labels)):
        return np.array_equal(labels[0][one.astype(int)], labels[1][other.astype(int)])
    return np.allclose(one, other, rtol=1e-9, atol=0) and np.array_equal(hidden, also)
