"""The check of mean-field standard deviations, from the rows of a run that has ended."""

import numpy as np
from jaxtyping import Float

from partita.engines.base import Engine
from partita.expectations.capabilities import CurvedInTable
from partita.families.capabilities import GroupedGaussian
from partita.models import Model
from partita.results.mean_field import MAX_COLUMNS, MeanFieldCheck, grouped, ratios
from partita.server.state import State

__all__ = ["mean_field_check"]


def mean_field_check(model: Model, engine: Engine, state: State, temperature: float) -> MeanFieldCheck:
    """The check of a posterior whose coefficients are independent, or so in blocks.

    At the optimum of mean field the precisions are the diagonal of Λ = Λ_prior + Σ_n c_n x_n x_nᵀ, with the expected
    curvatures c_n of the rows, and in blocks its blocks; with full covariance Λ is the precision. What a client that
    has left said of its rows is in its factor. A run through full covariance has that precision already.
    """

    def compare() -> Float[np.ndarray, " d"] | None:
        q = grouped(model, state.posterior.returned)
        if not isinstance(model, CurvedInTable) or q is None or q.sd.size > MAX_COLUMNS:
            return None
        whole = model.coefficients(state.posterior)
        if isinstance(whole, GroupedGaussian) and whole.independent_groups < q.independent_groups:
            return ratios(np.asarray(whole.matrix(), float), np.asarray(q.sd, float))
        curvature = engine.curvature(model, state.posterior, state.inactive_names)
        if curvature is None:
            return None
        kept = [state.factors[k].natural for k in np.flatnonzero(state.inactive)]
        parts = [grouped(model, each) for each in (state.current_prior, *kept)]
        own = sum(np.asarray(part.matrix(), float) for part in parts if part is not None)
        return ratios(own + curvature / temperature, np.asarray(q.sd, float))

    return MeanFieldCheck(compare)
