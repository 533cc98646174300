"""A product of named families: independent groups of parameters, each with its own family."""

import functools
import operator
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.base import Family, Theta


def _values(method: str) -> Any:
    """A method that gives what the components' own give, by their names."""
    return lambda self, *parts: self.by_name(method, *parts)


def _members(method: str) -> Any:
    """A method that gives the product of what the components' own give."""
    return lambda self, *parts: type(self)(self.by_name(method, *parts))


def _total(method: str) -> Any:
    """A method that gives the sum of what the components' own give."""
    return lambda self, *parts: functools.reduce(operator.add, self.by_name(method, *parts).values())


class Product(Family):
    """q(θ) = Π q_name(θ_name); θ is a dict with the names of the components."""

    components: dict[str, Family]

    def __init__(self, components: dict[str, Family] | None = None, **named: Family) -> None:
        self.components = {**(components or {}), **named}
        if not self.components:
            raise SettingsError("A product needs at least one named family.")

    def __getitem__(self, name: str) -> Family:
        return self.components[name]

    def by_name(self, method: str, *parts: PyTree) -> dict[str, Any]:
        """What a method of the components gives, each with its part of the arguments."""
        named = self.components.items()
        return {name: getattr(family, method)(*(part[name] for part in parts)) for name, family in named}

    def part(self, name: str) -> Family | None:
        return self.components.get(name)

    statistics = _values("statistics")
    standard = _values("standard")
    unconstrained = _values("unconstrained")
    mean_parameters = _values("mean_parameters")
    with_standard = _members("with_standard")
    at_standard = _members("at_standard")
    with_unconstrained = _members("with_unconstrained")
    at_unconstrained = _members("at_unconstrained")
    plain = _members("plain")
    with_mean_parameters = _members("with_mean_parameters")
    pull_back = _members("pull_back")
    restricted = _members("restricted")
    symmetrised = _members("symmetrised")
    log_normaliser = _total("log_normaliser")
    entropy = _total("entropy")
    kl = _total("kl")

    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.array([family.is_proper() for family in self.components.values()]))

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        keys = jax.random.split(key, len(self.components))
        named = sorted(self.components.items())
        return {name: family.sample(k, shape) for k, (name, family) in zip(keys, named, strict=True)}

    def is_split(self, free: Self) -> bool:
        return any(family.is_split(free[name]) for name, family in self.components.items())

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        lows, highs = zip(*self.by_name("precision_range", other).values(), strict=True)
        return jnp.min(jnp.array(lows)), jnp.max(jnp.array(highs))

    def has_scale(self) -> bool:
        return any(family.has_scale() for family in self.components.values())

    def stretched(self, scale: Theta) -> Self:
        """Components without a scale, such as a gamma, are unchanged."""
        if not self.has_scale():
            return super().stretched(scale)
        parts = self.components.items()
        return type(self)({name: part.stretched(scale[name]) if part.has_scale() else part for name, part in parts})

    def moments(self) -> tuple[Theta, Theta]:
        return _unzipped({name: family.moments() for name, family in self.components.items()})

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        return _unzipped({name: family.interval(mass) for name, family in self.components.items()})


def _unzipped(pairs: dict[str, tuple[Theta, Theta]]) -> tuple[Theta, Theta]:
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}
