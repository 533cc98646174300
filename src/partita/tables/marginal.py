"""Average marginal effects: how the expected response changes with a column, averaged over the rows of all sites."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Float, PyTree

from partita.errors import unknown
from partita.expectations.capabilities import ResponseOfRows, offered
from partita.families.base import Theta
from partita.inputs import check_kind, check_number, check_seed, check_whole
from partita.numerics.compiled import Compiled
from partita.tables.contrast import Effect
from partita.tables.draws import draws_of
from partita.tables.fitted import Fitted
from partita.tables.reading import Site

__all__ = ["marginal_effects"]

_STEP = 1e-3
"""Half the difference over which a derivative is taken, in standard deviations of a site's column."""


def marginal_effects(fit: Fitted, name: str, mass: float, draws: int, seed: int) -> dict[str, Effect]:
    """Average marginal effects of a column; see `Fit.marginal_effect`."""
    check_kind("column", name, str, "give its name", name="a text")
    check_number("mass of an interval", mass, lambda mass: 0 < mass < 1, "between 0 and 1")
    check_whole("number of draws", draws, least=50)
    check_seed(seed)
    grouping = [each.text for each in fit.spec.formula.groups]
    columns = [each for each in fit.spec.formula.columns if each not in grouping]
    if name not in columns:
        raise unknown("column of the formula", name, columns)
    sites = fit.with_rows().sites
    model = offered(fit.result.posterior.model, ResponseOfRows, "response to predict", "use a contrast")
    with enable_x64(True):
        theta = draws_of(fit.result.posterior.q, draws, seed)
        changes = [_changes(fit, name, fit.spec.agreement.rows.split(site)[0]) for site in sites]
        weights = [fit.spec.weights(site) for site in sites]
        rows = sum(float(fit.spec.settings.row_weights(site).sum()) for site in sites)
        length = max(map(len, weights))
        found = {}
        for label in changes[0]:
            total = np.zeros(())
            for own, change in zip(weights, changes, strict=True):
                high, low, width = change[label]
                tables = tuple(_padded(fit.spec.design_table(side), length) for side in (high, low))
                own = np.pad(own, (0, length - len(own)))
                total = total + np.asarray(_summed(model, theta, tables, jnp.asarray(own))) / width
            found.update(_effects(label, fit.response.sd * total / rows, mass, fit.response.labels))
    return found


def _changes(fit: Fitted, name: str, site: Site) -> dict[str, tuple[Site, Site, float]]:
    """A site's rows of the design with a column changed in two ways, and how far: by level, or a little up and down."""
    factors = [factor for factor in fit.design.formula.factors if name in factor.columns]
    category = next((factor for factor in factors if fit.design.is_category(factor)), None)
    if category is None:
        step = _STEP * (float(np.std(site.columns[name])) or 1.0)
        up, down = (_with(site, name, site.columns[name] + side * step) for side in (1, -1))
        return {name: (up, down, 2 * step)}
    reference, *levels = fit.design.levels(category)
    numeric = site.columns[name].dtype.kind == "f"
    filled = {
        level: _with(site, name, np.full(site.rows, float(level) if numeric else level))
        for level in (reference, *levels)
    }
    return {f"{name}: {level} - {reference}": (filled[level], filled[reference], 1.0) for level in levels}


def _padded(table: PyTree, length: int) -> PyTree[np.ndarray]:
    """A site's rows, the last repeated up to a length that sites share, where padding has weight 0."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[np.minimum(np.arange(length), len(leaf) - 1)], table)


def _with(site: Site, name: str, values: np.ndarray) -> Site:
    return site._replace(columns={**site.columns, name: values})


def _effects(label: str, draws: Float[np.ndarray, "s ..."], mass: float, labels: Sequence[str]) -> dict[str, Effect]:
    """The effect in draws; for several classes one each."""
    if draws.ndim > 1:
        each = (_effects(f"{label}, {own}", part, mass, ()) for own, part in zip(labels, draws.T, strict=True))
        return {name: effect for effects in each for name, effect in effects.items()}
    low, high = np.quantile(draws, [(1 - mass) / 2, (1 + mass) / 2])
    moments = (float(draws.mean()), float(draws.std(ddof=1)), float(low), float(high))
    return {label: Effect(label, *moments, float(np.mean(draws > 0)))}


@Compiled
def _summed(
    model: ResponseOfRows, theta: Theta, tables: tuple[PyTree, PyTree], weights: Float[Array, " n"]
) -> Float[Array, "s ..."]:
    """What a site sends: differences of expected responses, summed over its rows, at each draw of θ."""

    def change(each: Theta) -> Array:
        high, low = (model.response_of(each, table) for table in tables)
        return weights @ (high - low)

    return jax.lax.map(change, theta)
