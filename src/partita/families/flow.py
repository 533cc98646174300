"""A normalising flow as a posterior."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.errors import SettingsError
from partita.families.form import Form
from partita.inputs import check_kind, check_seed, check_whole

__all__ = ["Flow"]

_LARGEST = 1_000
"""The largest number of layers, and of their hidden units."""
_STEEPEST = 2.0
"""The largest logarithm of a layer's scale, so that no layer is far from invertible in finite precision."""


class Flow(Form):
    """θ = f_J(… f_1(u)), u ~ base, with affine couplings f_j (real NVP; Dinh et al. 2017).

    A layer moves the second part of its input, b, to b · exp(s(a)) + t(a), where s and t are a network of the first
    part a, and exchanges the parts. Its inverse is as cheap, which factors need: they evaluate the density of earlier
    posteriors at points of later ones. A flow is continuous, so that separate modes are for the base to have.
    """

    base: Form
    inner: Float[Array, "j h a"]
    biases: Float[Array, "j h"]
    outer: Float[Array, "j 2 b h"]
    offsets: Float[Array, "j 2 b"]

    @classmethod
    def of(cls, base: Form, layers: int = 4, units: int = 16, seed: int = 0) -> Self:
        """The base itself: every layer is the identity, with hidden units that are drawn once."""
        check_kind("base", base, Form, "use partita.families.Mixture")
        check_whole("number of layers", layers, most=_LARGEST)
        check_whole("number of hidden units", units, most=_LARGEST)
        check_seed(seed)
        if base.dimension < 2:
            raise SettingsError("A flow of couplings needs two parameters at least: use a Mixture.")
        first = base.dimension // 2
        second, drawn, kind = base.dimension - first, np.random.default_rng(seed), jax.tree.leaves(base)[0].dtype
        inner = jnp.asarray(drawn.normal(0, 1 / np.sqrt(first), (layers, units, first)), kind)
        biases = jnp.asarray(drawn.normal(0, 1, (layers, units)), kind)
        return cls(
            base, inner, biases, jnp.zeros((layers, 2, second, units), kind), jnp.zeros((layers, 2, second), kind)
        )

    @property
    def dimension(self) -> int:
        return self.base.dimension

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        second = self.offsets.shape[-1]

        def back(carry: tuple[Array, Array], layer: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
            value, total = carry
            moved, a = value[:second], value[second:]
            scale, move = _coupling(layer, a)
            return (jnp.concatenate([a, (moved - move) * jnp.exp(-scale)]), total + jnp.sum(scale)), None

        start = theta, jnp.zeros((), theta.dtype)
        (value, total), _ = jax.lax.scan(back, start, self._layers(), reverse=True)
        return self.base.log_prob(value) - total

    def points(self, noise: Float[Array, "s d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        values, masses = self.base.points(noise)
        return jax.vmap(self._pushed)(values), masses

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        values = self.base.sample(key, shape)
        return jax.vmap(self._pushed)(values.reshape(-1, self.dimension)).reshape(values.shape)

    def _pushed(self, value: Float[Array, " d"]) -> Float[Array, " d"]:
        """θ of a value of the base."""
        first = self.dimension - self.offsets.shape[-1]

        def forth(value: Array, layer: tuple[Array, ...]) -> tuple[Array, None]:
            a, b = value[:first], value[first:]
            scale, move = _coupling(layer, a)
            return jnp.concatenate([b * jnp.exp(scale) + move, a]), None

        return jax.lax.scan(forth, value, self._layers())[0]

    def _layers(self) -> tuple[Array, ...]:
        return self.inner, self.biases, self.outer, self.offsets


def _coupling(layer: tuple[Array, ...], a: Float[Array, " a"]) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """The log scale and the shift of what a layer moves."""
    inner, biases, outer, offsets = layer
    scale, move = outer @ jnp.tanh(inner @ a + biases) + offsets
    return _STEEPEST * jnp.tanh(scale / _STEEPEST), move
