"""A prior that is not in q's family: a base measure that is, and log p(θ) against it as one more likelihood."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from partita.data.shard import Shard
from partita.expectations import Analytic, Expectation
from partita.expectations.capabilities import ClosedForm, offered
from partita.families import Family
from partita.families.base import Theta
from partita.families.factor import Factor
from partita.families.gaussian import gaussian
from partita.inputs import check_kind
from partita.models.base import Model
from partita.models.laws import Law, split_rule
from partita.numerics.compiled import Scalar

__all__ = ["Group", "IndependentPrior", "OutsidePrior", "base_of"]

_SCALE_NODES = 12
"""Gauss–Hermite nodes over a scale that is inferred."""


class OutsidePrior(eqx.Module):
    """A prior p(θ) that is not in q's family.

    q = b · t_0 · Π t_m, where the base measure b is in the family, and t_0 is the factor of one more client, whose only
    row is log p(θ) − log b(θ). Fixed points do not depend on b. One with the width of the prior's central 95% is a
    start from which few visits lead there.
    """

    density: Model
    """log p(θ) is its `log_density` of a row of nothing; its expectation is computed as that of any model."""
    base: Family

    def __check_init__(self) -> None:
        check_kind("density of a prior", self.density, Model, "use LogDensity(lambda theta, row: …)")
        check_kind(
            "base of a prior", self.base, Family, "give one, such as a FullGaussian", name="a member of a family"
        )

    @property
    def row(self) -> "_PriorRow":
        """The likelihood of its client."""
        return _PriorRow(self.density, self.base, expectation=self.density.expectation)

    @property
    def returned(self) -> "OutsidePrior":
        """The same for what a run returns of q's family."""
        return OutsidePrior(self.density, self.base.returned)

    def log_prob(self, theta: Theta) -> Float[Array, ""]:
        """log p(θ)."""
        return self.density.log_density(theta, jnp.zeros(()))

    def shard(self, weight: Scalar) -> Shard:
        """The row of its client, and its weight."""
        dtype = jnp.result_type(*(leaf for leaf in self.base.standard()))
        return Shard(jnp.zeros(1, dtype), jnp.full(1, weight, dtype), jnp.asarray(1))


def base_of(prior: Family | OutsidePrior) -> Family:
    """The prior if it is in q's family, and else its base measure."""
    return prior.base if isinstance(prior, OutsidePrior) else prior


class _PriorRow(Model):
    """log p(θ) − log b(θ)."""

    density: Model
    base: Family
    expectation: Expectation = eqx.field(kw_only=True)

    def log_density(self, theta: Theta, datum: Float[Array, ""]) -> Float[Array, ""]:
        return self.density.log_density(theta, datum) - self.base.log_prob(theta)

    def expected_log_densities(self, q: Family, data: Float[Array, " 1"]) -> Float[Array, " 1"]:
        said = offered(self.density, ClosedForm, "closed form of its expectation", "use MonteCarlo")
        return said.expected_log_densities(q, data) - Factor.of(self.base).expected_log(q)


class Group(eqx.Module):
    """Some elements of θ that are independent given a scale, with one law."""

    law: Law
    places: tuple[int, ...] = eqx.field(static=True)
    """Where they are in θ."""
    location: Scalar
    log_scale: Scalar
    """The logarithm of their scale, where that is known."""
    scale: int | None = eqx.field(static=True, default=None)
    """Where the logarithm of their scale is in θ, if it is inferred."""

    def log_density(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p of its elements."""
        log_scale = jnp.asarray(self.log_scale) if self.scale is None else theta[self.scale]
        return jnp.sum(self.law.log_density(theta[np.array(self.places)] - self.location, log_scale))

    def expected(self, q: Family) -> Float[Array, ""]:
        """E_q of it: each element with the scale by a rule of two dimensions, exact at kinks, spikes and in tails."""
        member = gaussian(q, "A prior by name", "give a LogDensity for the prior's density")
        own = self._axes(q, self.places)
        mean, variance = member.project(own)
        if self.scale is None:
            values, masses = split_rule(mean - self.location, variance)
            return jnp.sum(masses * self.law.log_density(values, jnp.full(1, self.log_scale, values.dtype)))
        log_scale = self._axes(q, (self.scale,))
        centre, spread = (each[0] for each in member.project(log_scale))
        covariance = (member.project(own + log_scale)[1] - variance - spread) / 2
        nodes, weights = (jnp.asarray(each, mean.dtype) for each in np.polynomial.hermite_e.hermegauss(_SCALE_NODES))
        sd = jnp.sqrt(spread)
        given = (mean - self.location)[:, None] + (covariance / sd)[:, None] * nodes
        left = jnp.maximum(variance - covariance**2 / spread, jnp.finfo(mean.dtype).eps * variance)
        values, masses = split_rule(given, jnp.broadcast_to(left[:, None], given.shape))
        densities = self.law.log_density(values, (centre + sd * nodes)[None, :, None])
        return jnp.sum(jnp.sum(masses * densities, axis=(0, 2)) * weights) / jnp.sum(weights)

    def _axes(self, q: Family, places: Sequence[int]) -> Float[Array, "k d"]:
        """Rows whose predictors are these elements of θ."""
        size = len(gaussian(q).precision_mean)
        return jnp.eye(size, dtype=gaussian(q).precision_mean.dtype)[np.array(places)]


class IndependentPrior(Model):
    """Elements of θ that are independent, given scales that are elements of θ too: its density is a product."""

    groups: tuple[Group, ...]
    expectation: Expectation = eqx.field(default=Analytic(), kw_only=True)

    def log_density(self, theta: Float[Array, " d"], datum: Float[Array, ""]) -> Float[Array, ""]:
        return sum((group.log_density(theta) for group in self.groups), jnp.zeros(()))

    def expected_log_densities(self, q: Family, data: Float[Array, " 1"]) -> Float[Array, " 1"]:
        return jnp.stack([sum((group.expected(q) for group in self.groups), jnp.zeros(()))])
