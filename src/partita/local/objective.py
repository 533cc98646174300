"""A client's problem, whatever the method: maximise w·ell(q) − KL(q ‖ context); local free energies and Z_q."""

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Key

from partita.data.shard import Shard
from partita.families.base import Family
from partita.families.factor import Factor
from partita.models import Model


class Problem(eqx.Module):
    """One client's local free energy (`eq:vfe`), w·ell(q) + E_q[log context] + H[q].

    The context's own normaliser is not needed, so it may be improper. The problem may then have no maximum; q is
    therefore held within a KL ball around `start` when, and only when, the context is improper.
    """

    model: Model
    shard: Shard
    context: Factor
    weight: Float[Array, ""]
    start: Family
    trust_region: Float[Array, ""]
    free: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    """For each leaf of q whether it may change; None when all may. See `Blockwise`."""

    def ell(self, q: Family, key: Key[Array, ""]) -> Float[Array, ""]:
        """w · E_q[log p(y | θ)]."""
        return self.weight * self.model.ell(q, self.shard.data, self.shard.weights, key)

    def free_energy(self, q: Family, key: Key[Array, ""]) -> Float[Array, ""]:
        """The local free energy of q; larger is better."""
        return self.ell(q, key) + self.negative_divergence(q)

    def negative_divergence(self, q: Family) -> Float[Array, ""]:
        """−KL(q ‖ context), but for the context's normaliser."""
        return self.context.expected_log(q) + q.entropy()

    def likelihood_factor(self, q: Family, key: Key[Array, ""]) -> Family:
        """∇_μ ell at q: the factor that q·t would be a fixed point with (`eq:fixed-point-bi-simplified`)."""
        return q.natural_gradient(lambda member: self.ell(member, key))

    def restrict(self, candidate: Family) -> Family:
        """The candidate, with the leaves that are not free put back to where they began."""
        if self.free is None:
            return candidate
        leaves, treedef = jax.tree.flatten(candidate.plain())
        fixed = jax.tree.leaves(self.start)
        return jax.tree.unflatten(
            treedef, [a if free else b for a, b, free in zip(leaves, fixed, self.free, strict=True)]
        )

    def within(self, q: Family) -> Bool[Array, ""]:
        """Whether q lies in the trust region; everything does when the context is proper."""
        return self.bounded() | (q.kl(self.start) <= self.trust_region * q.size())

    def bounded(self) -> Bool[Array, ""]:
        """Whether the context is proper, so that there is a maximum."""
        return self.context.natural.is_proper()


def local_free_energy(model: Model, shard: Shard, q: Family, factor: Factor, key: Key[Array, ""]) -> Float[Array, ""]:
    """F_m(q) = E_q[log p(y_m | θ) − log t_m(θ)], the local free energy at q_m = q (`prop:local-fe-global-fe`)."""
    return model.ell(q, shard.data, shard.weights, key) - factor.expected_log(q)


def log_partition(prior: Family, factors: Sequence[Factor]) -> Float[Array, ""]:
    """log Z_q = log ∫ p(θ) Π t_m(θ) dθ (`eq:approx`)."""
    total = Factor.of(prior)
    for factor in factors:
        total = total * factor
    return total.natural.log_normaliser() + total.log_scale
