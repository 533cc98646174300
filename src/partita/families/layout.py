"""Where the leaves of θ are in one vector."""

import itertools
import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.families.base import Theta

__all__ = ["Layout"]


class Layout(eqx.Module):
    """The mapping between a parameter vector and the leaves of θ."""

    treedef: jax.tree_util.PyTreeDef = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, theta: Theta) -> Self:
        leaves, treedef = jax.tree.flatten(theta)
        return cls(treedef, tuple(jnp.shape(leaf) for leaf in leaves))

    def ravel(self, theta: Theta) -> Float[Array, "... d"]:
        pairs = zip(jax.tree.leaves(theta), self.shapes, strict=True)
        leaves = [jnp.reshape(leaf, (*leaf.shape[: leaf.ndim - len(shape)], -1)) for leaf, shape in pairs]
        return jnp.concatenate(leaves, axis=-1)

    def unravel(self, vector: Float[Array, "... d"]) -> Theta:
        ends = itertools.accumulate(math.prod(shape) for shape in self.shapes)
        parts = zip(jnp.split(vector, list(ends)[:-1], axis=-1), self.shapes, strict=True)
        return jax.tree.unflatten(self.treedef, [part.reshape(vector.shape[:-1] + shape) for part, shape in parts])
