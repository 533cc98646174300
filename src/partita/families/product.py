"""A product of named families: independent groups of parameters, each with its own family."""

import functools
import operator
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.base import Family, Theta
from partita.inputs import check_kind

__all__ = ["Product"]


class Product(Family):
    """q(θ) = Π q_name(θ_name); θ is a dict with the names of the components."""

    components: dict[str, Family]

    def __init__(self, components: dict[str, Family] | None = None, **named: Family) -> None:
        if components is not None:
            check_kind("components of a product", components, dict, "give families by name")
        self.components = {**(components or {}), **named}
        if not self.components:
            raise SettingsError("A product needs at least one named family.")

    def __getitem__(self, name: str) -> Family:
        return self.components[name]

    def part(self, name: str) -> Family | None:
        return self.components.get(name)

    def statistics(self, theta: Theta) -> PyTree:
        return {name: family.statistics(theta[name]) for name, family in self.components.items()}

    def log_normaliser(self) -> Float[Array, ""]:
        return self._total(lambda family: family.log_normaliser())

    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.array([family.is_proper() for family in self.components.values()]))

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        keys = jax.random.split(key, len(self.components))
        named = sorted(self.components.items())
        return {name: family.sample(k, shape) for k, (name, family) in zip(keys, named, strict=True)}

    def standard(self) -> PyTree:
        return {name: family.standard() for name, family in self.components.items()}

    def with_standard(self, standard: PyTree) -> Self:
        return self._map(lambda family, value: family.with_standard(value), standard)

    def at_standard(self, standard: PyTree) -> Self:
        return self._map(lambda family, value: family.at_standard(value), standard)

    def unconstrained(self) -> PyTree:
        return {name: family.unconstrained() for name, family in self.components.items()}

    def with_unconstrained(self, unconstrained: PyTree) -> Self:
        return self._map(lambda family, value: family.with_unconstrained(value), unconstrained)

    def at_unconstrained(self, unconstrained: PyTree) -> Self:
        return self._map(lambda family, value: family.at_unconstrained(value), unconstrained)

    def plain(self) -> Self:
        return type(self)({name: family.plain() for name, family in self.components.items()})

    def mean_parameters(self) -> PyTree:
        return {name: family.mean_parameters() for name, family in self.components.items()}

    def with_mean_parameters(self, mean: PyTree) -> Self:
        return self._map(lambda family, value: family.with_mean_parameters(value), mean)

    def pull_back(self, gradient: PyTree) -> Self:
        return self._map(lambda family, value: family.pull_back(value), gradient)

    def is_split(self, free: Self) -> bool:
        return any(family.is_split(free[name]) for name, family in self.components.items())

    def restricted(self, direction: Self, free: Self) -> Self:
        parts = self.components.items()
        return type(self)({name: family.restricted(direction[name], free[name]) for name, family in parts})

    def entropy(self) -> Float[Array, ""]:
        return self._total(lambda family: family.entropy())

    def kl(self, other: Self) -> Float[Array, ""]:
        return functools.reduce(operator.add, [family.kl(other[name]) for name, family in self.components.items()])

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        ranges = [family.precision_range(other[name]) for name, family in self.components.items()]
        return jnp.min(jnp.array([low for low, _ in ranges])), jnp.max(jnp.array([high for _, high in ranges]))

    @property
    def returned(self) -> "Product":
        return Product({name: family.returned for name, family in self.components.items()})

    def nearest(self) -> Self:
        return type(self)({name: family.nearest() for name, family in self.components.items()})

    def within(self, factor: Self) -> "Product":
        return Product({name: family.within(factor[name]) for name, family in self.components.items()})

    @property
    def gap(self) -> Float[Array, ""] | None:
        known = [gap for family in self.components.values() if (gap := family.gap) is not None]
        return functools.reduce(operator.add, known) if known else None

    def symmetrised(self) -> Self:
        return type(self)({name: family.symmetrised() for name, family in self.components.items()})

    def has_scale(self) -> bool:
        return any(family.has_scale() for family in self.components.values())

    def stretched(self, scale: Theta) -> Self:
        """Components without a scale, such as a gamma, are unchanged."""
        if not self.has_scale():
            return super().stretched(scale)
        return self._map(lambda family, value: family.stretched(value) if family.has_scale() else family, scale)

    def moments(self) -> tuple[Theta, Theta]:
        return self._pair(lambda family: family.moments())

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        return self._pair(lambda family: family.interval(mass))

    def _map(self, function: Callable[[Any, PyTree], Family], values: PyTree) -> Self:
        return type(self)({name: function(family, values[name]) for name, family in self.components.items()})

    def _pair(self, function: Callable[[Family], tuple[Theta, Theta]]) -> tuple[Theta, Theta]:
        pairs = {name: function(family) for name, family in self.components.items()}
        return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}

    def _total(self, function: Callable[[Family], Float[Array, ""]]) -> Float[Array, ""]:
        return functools.reduce(operator.add, map(function, self.components.values()))
