"""A fit as one HTML file: tables, pictures and what a reader should know, without anything to load from elsewhere."""

import base64
import contextlib
import html
import io
import math
import os
import string
from collections.abc import Callable, Iterable
from importlib import metadata, resources
from typing import TYPE_CHECKING

from jax import enable_x64

from partita.errors import InputError
from partita.inputs import check_path
from partita.io.atomic import write_text
from partita.tables.check import check_of
from partita.tables.coefficients import Grid, coefficient_grid
from partita.tables.fitted import FEW, Fitted
from partita.tables.forest import draw_forest
from partita.tables.formula import INTERCEPT
from partita.tables.heterogeneity import heterogeneity_of
from partita.tables.loo import loo_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["forest_names", "write_report"]

_MOST_FORESTS = 12


def write_report(fit: Fitted, path: str | os.PathLike[str], mass: float = 0.95) -> None:
    """Writes the report of a fit; see `Fit.report`."""
    check_path(path)
    with contextlib.suppress(InputError):  # of which sections that need rows tell
        fit = fit.with_rows()
    page = string.Template((resources.files("partita.tables") / "report.html").read_text(encoding="utf-8"))
    title = fit.formula
    parts = (
        f"<h1>{_escaped(title)}</h1>",
        f'<p class="lead">{_escaped(_summary(fit))}</p>',
        *_section("Coefficients", lambda: _coefficients(fit, mass)),
        *_section("Sites", lambda: _forests(fit, mass)),
        *_section("Heterogeneity between sites", lambda: _heterogeneity(fit)),
        *_section("Checks", lambda: _check(fit)),
        *_section("Rows that were left out", lambda: _loo(fit)),
        *_section("How it was computed", lambda: _computed(fit)),
        *_section("What left the sites", lambda: _privacy(fit)),
    )
    write_text(path, page.substitute(title=_escaped(title), body="\n".join(parts)))


def forest_names(fit: Fitted) -> list[str]:
    """The coefficients that a report draws: all but the intercept, up to a dozen; none where there is one site."""
    return _slopes(fit)[:_MOST_FORESTS] if len(fit.sites) > 1 else []


def _slopes(fit: Fitted) -> list[str]:
    """All coefficients but intercepts."""
    intercepts = {label + INTERCEPT for label in fit.likelihood.classes(fit.response)}
    return [name for name in fit.names if name not in intercepts]


def _section(title: str, body: Callable[[], Iterable[str]]) -> list[str]:
    """A section; where something cannot be computed, the sentence that says why."""
    try:
        return [f"<h2>{_escaped(title)}</h2>", *body()]
    except InputError as error:
        return [f"<h2>{_escaped(title)}</h2>", _said(str(error))]


def _summary(fit: Fitted) -> str:
    rows = sum(site.rows for site in fit.sites)
    return f"{fit.family}, {rows} rows of {len(fit.sites)} sites, {fit.result.status.value}"


def _coefficients(fit: Fitted, mass: float) -> list[str]:
    grid = coefficient_grid(fit.coefficients(mass), fit.likelihood.ratio, mass)
    return [_table(grid), *map(_said, fit.notes)]


def _forests(fit: Fitted, mass: float) -> list[str]:
    names = forest_names(fit)
    if not names:
        return [_said("There is one site, or no coefficient but the intercept, so that there is nothing to compare.")]
    parts = [
        _said("Each site alone (its factor times the prior), all without it, and all, from the factors that are held.")
    ]
    left = len(_slopes(fit)) - len(names)
    parts += [_picture(draw_forest(fit, name, mass), f"Forest plot of {name}") for name in names]
    return parts + ([_said(f"{left} more coefficients are not drawn: use forest.")] if left else [])


def _heterogeneity(fit: Fitted) -> list[str]:
    said = (
        "Nats are half the squared distance between what a site says and what the others predict of it. Where sites "
        "agree, twice of it has a chi-square distribution; its mean is beside it, and p is the probability of so many "
        "nats or more."
    )
    return [_table(heterogeneity_of(fit).grid()), _said(said, "small")]


def _check(fit: Fitted) -> list[str]:
    found = check_of(fit)
    said = (
        "p is the share of simulations above what was observed. In the picture grey marks are 95% ranges of what is "
        "expected."
    )
    return [
        _table(found.grid()),
        *map(_said, found.notes),
        _picture(found.draw(), "Calibration by site"),
        _said(said, "small"),
    ]


def _loo(fit: Fitted) -> list[str]:
    found = loo_of(fit)
    return [_table(found.grid()), *map(_said, found.notes)]


def _computed(fit: Fitted) -> list[str]:
    result = fit.result
    family = type(result.posterior.q).__name__
    with enable_x64(True):
        sds = sorted({f"{float(sd):g}" for sd in result.state.current_prior.moments()[1]})
    bound = f" Free energy {fit.free_energy:.6g}." if math.isfinite(fit.free_energy) else ""
    return [
        _said(
            "Partitioned variational inference: each site fits its own factor to its rows, given those of the others, "
            "until none moves. Columns were standardised with the sites' sums, and coefficients turned back into their "
            "own units."
        ),
        _said(
            f"q is a {family} of {len(fit.names)} coefficients; the priors of standardised coefficients have the sds "
            f"{', '.join(sds[:5])}. {result.message}{bound} {result.state.communications} visits of sites. partita "
            f"{metadata.version('partita')}."
        ),
    ]


def _privacy(fit: Fitted) -> list[str]:
    asked = (
        " For this report each sent sums of log densities at shared draws of the coefficients, and summaries of its "
        "checks."
    )
    return [
        _said(
            "No row left its site. Sites sent counts of levels, sums and sums of squares of columns, counts in bins "
            "where there are splines or intervals of time, and a Gaussian factor at each visit."
            + (asked if all(site.columns for site in fit.sites) else "")
        ),
        _said(
            f"Summaries of fewer than {FEW} rows were withheld, and so were maxima. Factors and sums are not "
            "differentially private: of a site with few rows they tell much."
        ),
    ]


def _table(grid: Grid) -> str:
    heads, rows = grid
    head = "".join(f'<th scope="col">{_escaped(cell)}</th>' for cell in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _picture(figure: "Figure", what: str) -> str:
    """A figure inside the page, as a vector image in which no script runs."""
    from matplotlib import rc_context

    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "partita", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    data = base64.b64encode(out.getvalue()).decode()
    return f'<div class="wide"><img alt="{_escaped(what)}" src="data:image/svg+xml;base64,{data}"></div>'


def _said(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{_escaped(text)}</p>' if kind else f"<p>{_escaped(text)}</p>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
