"""The client's objective, the same for all methods: maximise w·ell(q) − KL(q ‖ context)."""

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Key

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.families.base import Family
from partita.families.factor import Factor
from partita.models import Model

__all__ = ["Problem", "local_free_energy", "log_partition"]


class Problem(eqx.Module):
    """One client's local free energy (`eq:vfe`), w·ell(q) + E_q[log context] + H[q].

    It does not need the context's normaliser, so the context may be improper. The problem may then be unbounded;
    therefore q is restricted to a KL trust region around `start` if, and only if, the context is improper.
    """

    model: Model
    shard: Shard
    context: Factor
    weight: Float[Array, ""]
    start: Family
    trust_region: Float[Array, ""]
    free: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    """For each leaf of q whether it may change; None if all may. See `Blockwise`."""

    def check_independent(self, who: str) -> None:
        """Raises a `SettingsError` where a solver takes rows apart that are not independent given θ."""
        if not self.model.independent_rows:
            raise SettingsError(
                f"{who} takes rows one by one, but those of a {type(self.model).__name__} share variables of their "
                "group: use FixedPoint, Gradient or LBFGS on all rows."
            )

    def ell(self, q: Family, key: Key[Array, ""]) -> Float[Array, ""]:
        """w · E_q[log p(y | θ)]."""
        return self.weight * self.model.ell(q, self.shard.data, self.shard.weights, key)

    def free_energy(self, q: Family, key: Key[Array, ""]) -> Float[Array, ""]:
        """The local free energy of q; larger is better."""
        return self.ell(q, key) + self.negative_divergence(q)

    def negative_divergence(self, q: Family) -> Float[Array, ""]:
        """−KL(q ‖ context) up to the context's normaliser."""
        return self.context.expected_log(q) + q.entropy()

    def likelihood_factor(self, q: Family, key: Key[Array, ""]) -> Family:
        """∇_μ ell at q: the client's factor at a fixed point (`eq:fixed-point-bi-simplified`)."""
        return q.natural_gradient(lambda member: self.ell(member, key))

    def restrict(self, candidate: Family) -> Family:
        """The candidate with the fixed leaves reset to those of `start`."""
        if self.free is None:
            return candidate
        free = self._freedom(self.free)
        return jax.tree.map(lambda kept, a, b: a if kept else b, free, candidate.plain(), self.start)

    def is_split(self) -> bool:
        """Whether leaves are free while others stay that are not independent of them: see `Family.restricted`."""
        return self.free is not None and self.start.is_split(self._freedom(self.free))

    def target(self, q: Family, key: Key[Array, ""]) -> Family:
        """Where an undamped natural-gradient step in the free leaves leads from q: context · ∇_μ ell where all are.

        q is its own target just where the gradient of the free energy in the free leaves is 0.
        """
        target = self.context.natural * self.likelihood_factor(q, key)
        if self.free is None or not self.is_split():
            return self.restrict(target)
        return q * q.restricted(target / q, self._freedom(self.free))

    def _freedom(self, free: tuple[bool, ...]) -> Family:
        return jax.tree.unflatten(jax.tree.structure(self.start), free)

    def within(self, q: Family) -> Bool[Array, ""]:
        """Whether q lies in the trust region; always true if the context is proper."""
        return self.bounded() | (q.kl(self.start) <= self.trust_region * q.size())

    def bounded(self) -> Bool[Array, ""]:
        """Whether the context is proper, so that the objective is bounded."""
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
