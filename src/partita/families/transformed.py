"""A family of θ = g(u), for a family of u: logarithms that are Gaussian, reciprocals that are gamma."""

import abc
from typing import Any, ClassVar, Self

from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import InputError
from partita.families.base import Family, Mean, Theta, recall, remember


class Transformed(Family):
    """The law of θ = g(u), elementwise and monotone, with the statistics T(u(θ)) of u's family.

    The base measure stays one in θ, not in u: the density of u is exp⟨η, T(u)⟩ |dθ/du|, and so |dθ/du|, the `stretch`,
    must itself be a factor of u's family. As with the exponent of a gamma, η then differs from u's own natural
    parameters by a constant, which is in the prior and in the posterior and cancels from factors.
    """

    kind: ClassVar[type]
    """Of what family u is."""
    natural: Family
    """exp⟨η, T(u)⟩ as a member of u's family."""

    @staticmethod
    @abc.abstractmethod
    def forward(u: Theta) -> Theta:
        """g(u) = θ."""

    @staticmethod
    @abc.abstractmethod
    def backward(theta: Theta) -> Theta:
        """The u of this θ."""

    @staticmethod
    @abc.abstractmethod
    def stretch(like: Any) -> Any:
        """|dθ/du| as a factor of u, in the family of another."""

    @classmethod
    def of(cls, original: Family) -> Self:
        """The law of θ for this law of u."""
        if not isinstance(original, cls.kind):
            raise InputError(f"A {cls.__name__} is made of a {cls.kind.__name__}, not of a {type(original).__name__}.")
        return cls(original / cls.stretch(original))

    @property
    def original(self) -> Family:
        """The law of u."""
        return recall(self, "original", lambda: self.natural * self.stretch(self.natural))

    def statistics(self, theta: Theta) -> Mean:
        return self.natural.statistics(self.backward(theta))

    def log_normaliser(self) -> Float[Array, ""]:
        return self.original.log_normaliser()

    def is_proper(self) -> Bool[Array, ""]:
        return self.original.is_proper()

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        return self.forward(self.original.sample(key, shape))

    def standard(self) -> PyTree:
        return self.original.standard()

    def with_standard(self, standard: PyTree) -> Self:
        return self._made_of(self.natural.with_standard(standard))

    def unconstrained(self) -> PyTree:
        return self.original.unconstrained()

    def with_unconstrained(self, unconstrained: PyTree) -> Self:
        return self._made_of(self.natural.with_unconstrained(unconstrained))

    def _made_of(self, original: Family) -> Self:
        return remember(self.of(original), original=original)

    def mean_parameters(self) -> Mean:
        return self.original.mean_parameters()

    def with_mean_parameters(self, mean: Mean) -> Self:
        return self.of(self.original.with_mean_parameters(mean))

    def pull_back(self, gradient: PyTree) -> Self:
        return type(self)(self.original.pull_back(gradient))

    def is_split(self, free: Self) -> bool:
        return self.natural.is_split(free.natural)

    def restricted(self, direction: Self, free: Self) -> Self:
        return type(self)(self.original.restricted(direction.natural, free.natural))

    def entropy(self) -> Float[Array, ""]:
        original = self.original
        return original.entropy() + original.cross(self.stretch(original))

    def kl(self, other: Self) -> Float[Array, ""]:
        return self.original.kl(other.original)

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return self.natural.precision_range(other.natural)
