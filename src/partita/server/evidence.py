"""Scales of damped factors, of which power EP's estimate of log p(y) is made."""

from collections.abc import Mapping

import jax.numpy as jnp

from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.compiled import Compiled
from partita.server.aggregation import Iterate

__all__ = ["with_masses"]


def with_masses(before: Iterate, after: Iterate, deltas: Mapping[int, Factor]) -> Iterate:
    """The iterate after a damped step whose new factors have the masses of the tilted densities.

    A factor t_k · Δ_k^ρ whose scale is damped like its natural parameters has its right scale only at the fixed point,
    and comes to it as slowly as (1 − ρ)ⁿ. The scale is chosen instead so that ∫ cavity · t is what it is undamped.
    """
    changed = {
        k: _with_mass(before.posterior, before.factors[k], delta, after.factors[k]) for k, delta in deltas.items()
    }
    return after._replace(factors=after.factors.replaced(changed))


@Compiled
def _with_mass(posterior: Family, factor: Factor, delta: Factor, damped: Factor) -> Factor:
    whole, part = posterior * delta.natural, posterior * (damped.natural / factor.natural)
    scale = factor.log_scale + delta.log_scale + whole.log_normaliser() - part.log_normaliser()
    return Factor(damped.natural, jnp.where(jnp.isfinite(scale), scale, damped.log_scale))
