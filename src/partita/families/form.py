"""Normalised densities of any form, which need not belong to an exponential family."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, Key

__all__ = ["Form"]


class Form(eqx.Module):
    """A normalised density over a vector θ. Its array leaves are coordinates in which every real vector is one.

    Expectations are sums over points with masses, both differentiable in the leaves. Where masses depend on the leaves,
    as those of a mixture do, a draw could not be followed as they change; points can.
    """

    @abc.abstractmethod
    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at one θ."""

    @abc.abstractmethod
    def points(self, noise: Float[Array, "s d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Values of θ made of standard normal noise, and their masses, which sum to one."""

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        """Independent draws of θ; not differentiable."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """The number of parameters."""
