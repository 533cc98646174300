"""The inverse gamma family: variances and squared scales."""

from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.families.base import Numbers, positive
from partita.families.gamma import Gamma
from partita.families.transformed import Transformed

__all__ = ["InverseGamma"]


class InverseGamma(Transformed):
    """θ = 1/u with u gamma: θ^(−shape − 1) exp(−scale / θ), one per element of an array of any shape.

    |dθ/du| = u⁻² has the `exponent` −2; the scale is the rate of u, and the standard parameters are u's shape and mean.
    """

    kind: ClassVar[type] = Gamma
    natural: Gamma

    @classmethod
    def from_shape_scale(cls, shape: Numbers, scale: Numbers) -> Self:
        """The member with this shape and scale, one of which may be a scalar for all elements."""
        shape, scale = positive(shape, "shape of an inverse gamma"), positive(scale, "scale of an inverse gamma")
        return cls.of(Gamma.from_shape_rate(shape, scale))

    @staticmethod
    def forward(u: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1 / u

    @staticmethod
    def backward(theta: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1 / theta

    @staticmethod
    def stretch(like: Any) -> Any:
        return Gamma(jnp.full_like(like.exponent, -2), jnp.zeros_like(like.rate))

    def moments(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Infinite where the shape is at most 1, and the standard deviation where it is at most 2."""
        shape, scale = self.standard().shape, self.natural.rate
        mean = jnp.where(shape > 1, scale / (shape - 1), jnp.inf)
        return mean, jnp.where(shape > 2, mean / jnp.sqrt(shape - 2), jnp.inf)

    def interval(self, mass: float = 0.95) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        low, high = self.original.interval(mass)
        return self.forward(high), self.forward(low)
