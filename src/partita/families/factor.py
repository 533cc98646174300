"""A member of a family with a scale: an approximate likelihood, a change of it, or a context."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from partita.families.base import Family
from partita.numerics.compiled import Scalar

__all__ = ["Factor"]


class Factor(eqx.Module):
    """An unnormalised, possibly improper density exp(⟨η, T(θ)⟩ + log_scale): t_m(θ), its change Δ, or a context.

    The scale does not affect q or any optimum; it is needed for local free energies and Z_q
    (`prop:local-fe-global-fe`).
    """

    natural: Family
    log_scale: Float[Array, ""] | np.floating

    def __mul__(self, other: Self) -> Self:
        return type(self)(self.natural * other.natural, self.log_scale + other.log_scale)

    def __truediv__(self, other: Self) -> Self:
        return type(self)(self.natural / other.natural, self.log_scale - other.log_scale)

    def __pow__(self, exponent: Scalar) -> Self:
        return type(self)(self.natural**exponent, self.log_scale * exponent)

    def expected_log(self, q: Family) -> Float[Array, ""]:
        """E_q[log of this factor]."""
        return q.cross(self.natural) + self.log_scale

    @classmethod
    def one(cls, like: Family) -> Self:
        """The identity factor 1."""
        return cls(like.one(), jnp.zeros((), jax.tree.leaves(like)[0].dtype))

    @classmethod
    def of(cls, q: Family) -> Self:
        """A normalised density as a factor."""
        return cls(q, -q.log_normaliser())
