"""A client's problem, whatever the method: maximise w·ell(q) − KL(q ‖ context); local free energies and Z_q."""

import abc
from collections.abc import Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from partita.families import Family
from partita.models import Model
from partita.partition.shard import Shard


class Factor(eqx.Module):
    """An un-normalised, perhaps improper, density exp(⟨η, T(θ)⟩ + log_scale): t_m(θ), a change of it, or a context.

    The scale cancels from q and from every optimum; it is kept so that local free energies and Z_q mean what the
    paper says (`prop:local-fe-global-fe`).
    """

    natural: Family
    log_scale: Float[Array, ""]

    def __mul__(self, other: Self) -> Self:
        return type(self)(self.natural * other.natural, self.log_scale + other.log_scale)

    def __truediv__(self, other: Self) -> Self:
        return type(self)(self.natural / other.natural, self.log_scale - other.log_scale)

    def __pow__(self, exponent: float | Float[Array, ""]) -> Self:
        return type(self)(self.natural**exponent, self.log_scale * exponent)

    def expected_log(self, q: Family) -> Float[Array, ""]:
        """E_q[log of this factor]."""
        return q.cross(self.natural) + self.log_scale

    @classmethod
    def one(cls, like: Family) -> Self:
        """The factor that changes nothing."""
        return cls(like.one(), jnp.zeros((), jax.tree.leaves(like)[0].dtype))

    @classmethod
    def of(cls, q: Family) -> Self:
        """A normalised density as a factor."""
        return cls(q, -q.log_normaliser())


class Context(eqx.Module):
    """Against what is a client's answer formed? Together with the weight w this is all that tells methods apart."""

    @property
    def repeats(self) -> bool:
        """Whether a client's rows count again at every visit."""
        return False

    @abc.abstractmethod
    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        """The context for a client that holds `factor` and a `share` N_k/N of all rows."""

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        """The weight w of the client's log-likelihood."""
        return jnp.ones_like(share)

    def baseline(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        """What an answer q_k is divided by to give the change Δ_k of the client's factor; q, unless overridden."""
        return Factor.of(q)


class Cavity(Context):
    """q / t_k: everyone else's factors and the prior (PVI, `eq:vfe`)."""

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q) / factor


class Undeleted(Context):
    """q, with nothing deleted: variational continual learning, online and streaming VB (`eq:vcl_objective`)."""

    @property
    def repeats(self) -> bool:
        return True

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q)


class Prior(Context):
    """p: BCM (same); global VI where there is one client, or where `rescaled` rows stand for everybody's.

    A rescaled log-likelihood has the weight N/N_k. (`sec:experiments` prints the inverse.)
    """

    rescaled: bool = eqx.field(static=True, default=False)

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior)

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        return 1 / share if self.rescaled else jnp.ones_like(share)


class SplitPrior(Context):
    """p^(N_k/N): BCM (split), in which each client has its share of the prior.

    The client's factor is q_k / p^(N_k/N), and the posterior, p times all factors, the product of all q_k.
    """

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior) ** share

    def baseline(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior) ** share * factor


class Proximal(Context):
    """q · t_k^(−1/ρ): Bayesian ADMM, in which a client is held near the posterior it was sent with strength ρ.

    With the weight 1/ρ a client minimises E_q[−log p(y_k | θ)] + E_q[log t_k] + ρ·KL(q ‖ q_server). ρ = 1 is `Cavity`.
    """

    penalty: float = 1.0

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q) * factor ** (-1 / self.penalty)

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.ones_like(share) / self.penalty


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
        leaves, treedef = jax.tree.flatten(candidate)
        fixed = jax.tree.leaves(self.start)
        return jax.tree.unflatten(
            treedef, [a if free else b for a, b, free in zip(leaves, fixed, self.free, strict=True)]
        )

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
