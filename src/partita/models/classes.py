"""Responses that are one of several classes: ordered (cumulative logits), or not (softmax)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.inputs import check_whole
from partita.models.base import check_values
from partita.models.glm import softplus
from partita.models.vector import VectorRegression

__all__ = ["MOST_CLASSES", "MultinomialRegression", "OrdinalRegression"]

MOST_CLASSES = 20


def _check_classes(y: np.ndarray, classes: int) -> None:
    allowed = (y >= 0) & (y < classes) & (y == np.round(y))
    check_values(y, allowed, f"classes are whole numbers from 0 to {classes - 1}")


class MultinomialRegression(VectorRegression):
    """log P(y = k) / P(y = 0) = xᵀβ_k: a linear predictor for every class but the first, the reference."""

    classes: int = eqx.field(static=True, default=2)

    predicts_classes = True

    def __check_init__(self) -> None:
        check_whole("number of classes", self.classes, 2, most=MOST_CLASSES)

    @property
    def linear(self) -> int:
        return self.classes - 1

    @property
    def constants(self) -> int:
        return 0

    def check_response(self, y: np.ndarray) -> None:
        _check_classes(y, self.classes)

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        logits = jnp.concatenate([jnp.zeros_like(f[:1]), f])
        return logits[y.astype(int)] - jax.nn.logsumexp(logits, axis=0)

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "c *s"]:
        return jax.nn.softmax(jnp.concatenate([jnp.zeros_like(f[:1]), f]), axis=0)

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jax.random.categorical(key, jnp.log(self.mean_response(f)), axis=0)


class OrdinalRegression(VectorRegression):
    """logit P(y ≤ k) = c_k − f for ordered levels 0, 1, …, with c_0 = 0.

    The first cut point is minus the intercept, which the inputs must have. The constants are the logarithms of the
    increments c_1 − c_0, c_2 − c_1, …
    """

    classes: int = eqx.field(static=True, default=3)

    predicts_classes = True

    def __check_init__(self) -> None:
        check_whole("number of levels", self.classes, 2, most=MOST_CLASSES)

    @property
    def constants(self) -> int:
        return self.classes - 2

    def check_response(self, y: np.ndarray) -> None:
        _check_classes(y, self.classes)

    def log_link_density(self, f: Float[Array, "k *s"], y: Float[Array, ""]) -> Float[Array, "*s"]:
        """By σ(u) − σ(l) = σ(u) σ(−l) (1 − exp(l − u)), where u − l is an increment."""
        distances, level = self._distances(f), y.astype(int)
        upper = -softplus(-distances[jnp.minimum(level, self.classes - 2)])
        lower = -softplus(distances[jnp.maximum(level - 1, 0)])
        inner = jnp.zeros_like(upper)
        if self.constants:
            increment = jnp.exp(f[jnp.clip(level, 1, self.constants)])
            inner = jnp.where((level > 0) & (level < self.classes - 1), jnp.log(-jnp.expm1(-increment)), 0)
        return jnp.where(level < self.classes - 1, upper, 0) + jnp.where(level > 0, lower, 0) + inner

    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "c *s"]:
        below = jax.nn.sigmoid(self._distances(f))
        ends = jnp.zeros_like(below[:1])
        return jnp.diff(jnp.concatenate([ends, below, ends + 1]), axis=0)

    def draw_response(self, f: Float[Array, "k *s"], y: Float[Array, "*s"], key: Key[Array, ""]) -> Float[Array, "*s"]:
        return jax.random.categorical(key, jnp.log(self.mean_response(f)), axis=0)

    def _distances(self, f: Float[Array, "k *s"]) -> Float[Array, "c *s"]:
        """c_k − f for every cut point."""
        cuts = jnp.concatenate([jnp.zeros_like(f[:1]), jnp.cumsum(jnp.exp(f[1:]), axis=0)])
        return cuts - f[:1]
