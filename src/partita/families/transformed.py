"""A family of θ = g(u), for a family of u: logarithms that are Gaussian, reciprocals that are gamma."""

import abc
import dataclasses
from typing import Any, ClassVar, Self

from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.base import Family, Mean, Remembering, Theta

__all__ = ["Transformed"]


class Transformed(Remembering):
    """The distribution of θ = g(u), elementwise and monotone, with the statistics T(u(θ)) of u's family.

    The base measure is 1 in θ: the density of u is exp⟨η, T(u)⟩ |dθ/du|, so the Jacobian |dθ/du| (`stretch`) must be a
    factor of u's family. η then differs from u's natural parameters by a constant, which is part of prior and posterior
    and cancels from factors.
    """

    kind: ClassVar[type]
    """The family of u."""
    natural: Family
    """exp⟨η, T(u)⟩ as a member of u's family."""
    known_original: Family | None = None
    """The law of u that it was made of, in members `at_standard` only."""

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
        """The distribution of θ for this distribution of u."""
        if not isinstance(original, cls.kind):
            raise SettingsError(
                f"A {cls.__name__} is made of a {cls.kind.__name__}, not of a {type(original).__name__}."
            )
        return cls(original / cls.stretch(original))

    @property
    def original(self) -> Family:
        """The base distribution, that of u."""
        return self.natural * self.stretch(self.natural) if self.known_original is None else self.known_original

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

    def at_standard(self, standard: PyTree) -> Self:
        return self._made_of(self.natural.at_standard(standard))

    def unconstrained(self) -> PyTree:
        return self.original.unconstrained()

    def at_unconstrained(self, unconstrained: PyTree) -> Self:
        return self._made_of(self.natural.at_unconstrained(unconstrained))

    def _made_of(self, original: Family) -> Self:
        return dataclasses.replace(self.of(original), known_original=original)

    def plain(self) -> Self:
        return type(self)(self.natural)

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

    def symmetrised(self) -> Self:
        return type(self)(self.natural.symmetrised())

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return self.natural.precision_range(other.natural)
