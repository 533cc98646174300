"""Against what is a client's answer formed? Together with the weight w this is all in which methods differ."""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.families.base import Family
from partita.families.factor import Factor
from partita.inputs import check_finite_number, check_flag

__all__ = ["Cavity", "Context", "NoDeletion", "Prior", "Proximal", "SplitPrior"]


class Context(eqx.Module):
    """The distribution that takes the prior's place in a client's objective; with the weight w it defines a method."""

    repeats: ClassVar[bool] = False
    """Whether a client's rows are counted again at every visit."""
    takes_prior: ClassVar[bool] = False
    """Whether it is made of the prior itself, which then must be in q's family."""

    @abc.abstractmethod
    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        """The context for a client that holds `factor` and a `share` N_k/N of all rows."""

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        """The weight w of the client's log-likelihood."""
        return jnp.ones_like(share)

    def baseline(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        """The density b for which the change of the client's factor is Δ_k = q_k / b; by default q."""
        return Factor.of(q)


class Cavity(Context):
    """q / t_k: the prior and all other clients' factors (PVI, `eq:vfe`)."""

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q) / factor


class NoDeletion(Context):
    """q, without the deletion step: variational continual learning, online and streaming VB (`eq:vcl_objective`)."""

    repeats = True

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q)


class Prior(Context):
    """p: BCM (same); global VI with one client, or with `rescaled` rows that represent all clients' rows.

    A rescaled log-likelihood has the weight N/N_k. (`sec:experiments` prints the inverse.)
    """

    takes_prior = True

    rescaled: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_flag("setting rescaled", self.rescaled)

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior)

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        return 1 / share if self.rescaled else jnp.ones_like(share)


class SplitPrior(Context):
    """p^(N_k/N): BCM (split), in which each client has its share of the prior.

    The client's factor is q_k / p^(N_k/N), and the posterior, p times all factors, the product of all q_k.
    """

    takes_prior = True

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior) ** share

    def baseline(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(prior) ** share * factor


class Proximal(Context):
    """q · t_k^(−1/penalty): Bayesian ADMM, in which a KL penalty keeps the client close to the posterior it was sent.

    With weight 1/penalty a client minimises E_q[−log p(y_k | θ)] + E_q[log t_k] + penalty·KL(q ‖ q_server). A penalty
    of 1 is `Cavity`.
    """

    penalty: float = 1.0

    def __check_init__(self) -> None:
        check_finite_number("penalty", self.penalty, above=0)

    def __call__(self, prior: Family, q: Family, factor: Factor, share: Float[Array, ""]) -> Factor:
        return Factor.of(q) * factor ** (-1 / self.penalty)

    def weight(self, share: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.ones_like(share) / self.penalty
