"""The check of mean-field standard deviations, from the rows of a run that has ended."""

import numpy as np
from jaxtyping import Float

from partita.engines.base import Engine
from partita.expectations.capabilities import CurvedInTable
from partita.families.capabilities import GroupedGaussian
from partita.models import Model
from partita.results.mean_field import MAX_COLUMNS, MeanFieldCheck, grouped, ratios
from partita.server.state import State

__all__ = ["known_check", "mean_field_check"]


def mean_field_check(model: Model, engine: Engine, state: State, temperature: float) -> MeanFieldCheck:
    """The check of a posterior whose coefficients are independent, or so in blocks.

    At the optimum of mean field the precisions are the diagonal of Λ = Λ_prior + Σ_n c_n x_n x_nᵀ, with the expected
    curvatures c_n of the rows, and in blocks its blocks; with full covariance Λ is the precision. What a client that
    has left said of its rows is in its factor.
    """

    def compare() -> Float[np.ndarray, " d"] | None:
        q = grouped(model, state.posterior.returned)
        if not isinstance(model, CurvedInTable) or q is None or q.sd.size > MAX_COLUMNS:
            return None
        if state.posterior.gap is not None:
            return _behind(model, state)
        curvature = engine.curvature(model, state.posterior, state.inactive_names)
        if curvature is None:
            return None
        kept = [state.factors[k].natural for k in np.flatnonzero(state.inactive)]
        parts = [grouped(model, each) for each in (state.current_prior, *kept)]
        own = sum(np.asarray(part.matrix(), float) for part in parts if part is not None)
        return ratios(own + curvature / temperature, np.asarray(q.sd, float))

    return MeanFieldCheck(compare)


def known_check(model: Model, state: State) -> MeanFieldCheck:
    """The check from what the server has: made where a run goes through full covariance, which is Λ."""
    return MeanFieldCheck() if state.posterior.gap is None else MeanFieldCheck(lambda: _behind(model, state))


def _behind(model: Model, state: State) -> Float[np.ndarray, " d"] | None:
    """The standard deviations of the posterior of which the nearest member is returned, as multiples of its own."""
    q = grouped(model, state.posterior.returned)
    whole = model.coefficients(state.posterior) if isinstance(model, CurvedInTable) else None
    if q is None or not isinstance(whole, GroupedGaussian):
        return None
    return ratios(np.asarray(whole.matrix(), float), np.asarray(q.sd, float))
