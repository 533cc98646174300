"""log ∫ exp h(u) du over a few variables, by nodes around the mode of h that are as far apart as h is wide there."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from partita.expectations.predictors import normal_nodes, square_root
from partita.numerics.trees import where

__all__ = ["MOST_VARIABLES", "drawn", "log_integral"]

_POINTS = {2: 12, 3: 8}
"""How many Gauss–Hermite nodes there are along each of several variables."""
_STEP, _STEPS = 0.2, 19
"""Of the rule for one variable, to both sides."""
MOST_VARIABLES = max(_POINTS)
"""How many variables an integral may be over."""
_TOGETHER = 39
"""How many nodes are evaluated at once."""
_CANDIDATES = 256
"""Of how many draws of the Gaussian at the mode one is chosen."""
_TRIES = 100
_HALVINGS = 30
_NEAR = 1e-9
"""The step to the mode that ends the climb, as a gain in nats; the next one's would be of the order of its square."""
_FLATTEST = 1e-6
"""The least curvature that a direction is given, as a share of the largest."""

_LogDensity: TypeAlias = Callable[[Float[Array, " d"]], Float[Array, ""]]


def log_integral(
    log_density: Callable[[Float[Array, " p"], Float[Array, " d"]], Float[Array, ""]],
    theta: Float[Array, " p"],
    size: int,
) -> Float[Array, ""]:
    """log ∫ exp h(θ, u) du.

    Nodes stay where they are when this is differentiated in θ: its derivatives are quadratures by the same nodes.

    Args:
        log_density: h.
        theta: what it depends on beside u.
        size: how many variables u has.

    """
    nodes, weights = (jnp.asarray(each, theta.dtype) for each in _rule(size))
    still = jax.lax.stop_gradient(theta)
    mode, root = jax.lax.stop_gradient(_gaussian(lambda u: log_density(still, u), size, theta.dtype))
    told = jax.lax.map(
        jax.checkpoint(lambda u: log_density(theta, u)), mode + nodes @ root.T, batch_size=min(_TOGETHER, len(nodes))
    )
    return jax.nn.logsumexp(told + weights) + jnp.sum(jnp.log(jnp.diagonal(root)))


@functools.lru_cache
def _rule(size: int) -> tuple[Float[np.ndarray, "s d"], Float[np.ndarray, " s"]]:
    """Nodes, and the logarithms of their weights.

    For one variable they are equidistant in the inverse hyperbolic sine, by which tails that fall as slowly as an
    exponential or a power are reached, to 22 times the width at the mode; for several they are exact for Gaussians
    times polynomials.
    """
    if size == 1:
        at = _STEP * np.arange(-_STEPS, _STEPS + 1)
        return np.sinh(at)[:, None], np.log(_STEP * np.cosh(at))
    nodes, masses = normal_nodes(size, _POINTS[size] ** size)
    return nodes.T, np.log(masses) + np.sum(nodes**2, axis=0) / 2 + size * np.log(2 * np.pi) / 2


def drawn(log_density: _LogDensity, size: int, key: Key[Array, ""], dtype: DTypeLike) -> Float[Array, " d"]:
    """A draw of the density that is proportional to exp h: one of many of the Gaussian at its mode, by their ratios."""
    mode, root = _gaussian(log_density, size, dtype)
    first, second = jax.random.split(key)
    noise = jax.random.normal(first, (_CANDIDATES, size), dtype)
    at = mode + noise @ root.T
    ratios = jax.lax.map(log_density, at, batch_size=_TOGETHER) + jnp.sum(noise**2, axis=1) / 2
    return at[jax.random.categorical(second, jnp.where(jnp.isfinite(ratios), ratios, -jnp.inf))]


class _Climb(NamedTuple):
    """Where a climb to the mode has come to."""

    at: Float[Array, " d"]
    value: Float[Array, ""]
    root: Float[Array, "d d"]
    direction: Float[Array, " d"]
    size: Float[Array, ""]
    """How much of the direction is tried next."""
    gain: Float[Array, ""]
    """By how much the whole of it would raise h."""
    tries: Int[Array, ""]


def _gaussian(log_density: _LogDensity, size: int, dtype: DTypeLike) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The mode of h, climbed to from 0, and a root of the inverse of its curvature there."""
    axes = jnp.eye(size, dtype=dtype)

    def evaluated(u: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
        def along(axis: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " d"]]:
            (value, slope), (_, column) = jax.jvp(jax.value_and_grad(log_density), (u,), (axis,))
            return value, slope, column

        values, slopes, columns = jax.vmap(along)(axes)
        return values[0], slopes[0], _root_of_inverse(-(columns + columns.T) / 2)

    def go_on(climb: _Climb) -> Bool[Array, ""]:
        near = jnp.maximum(_NEAR, 10 * jnp.finfo(dtype).eps * jnp.abs(climb.value))
        return (climb.gain > near) & (climb.size > 0.5**_HALVINGS) & (climb.tries < _TRIES)

    def step(climb: _Climb) -> _Climb:
        tried = climb.at + climb.size * climb.direction
        value, slope, root = evaluated(tried)
        whitened, one = root.T @ slope, jnp.ones_like(value)
        found = _Climb(tried, value, root, root @ whitened, one, whitened @ whitened / 2, climb.tries + 1)
        rose = (value >= climb.value) & jnp.all(jnp.isfinite(found.direction))
        return where(rose, found, climb._replace(size=climb.size / 2, tries=climb.tries + 1))

    far, zeros = jnp.finfo(dtype).max, jnp.zeros(size, dtype)
    first = _Climb(
        zeros, jnp.asarray(-far, dtype), axes, zeros, jnp.ones((), dtype), jnp.asarray(far, dtype), jnp.asarray(0)
    )
    found = jax.lax.while_loop(go_on, step, first)
    return found.at, found.root


def _root_of_inverse(curvature: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """R with R Rᵀ the inverse of a small matrix, whose diagonal is raised until it is positive."""
    size = len(curvature)
    if size == 1:
        return jnp.maximum(jnp.abs(curvature), jnp.finfo(curvature.dtype).tiny) ** -0.5
    diagonal = jnp.diagonal(curvature)
    scale = jnp.maximum(jnp.abs(diagonal), _FLATTEST * jnp.max(jnp.abs(curvature)))
    scale = jnp.maximum(scale, jnp.finfo(curvature.dtype).tiny) ** -0.5
    # of ones along the diagonal, where that was positive: eigenvalues lie within the other elements' sums of it
    scaled = scale[:, None] * curvature * scale
    least = jnp.linalg.eigvalsh(scaled)[0]
    raised = scaled + jnp.maximum(0.1 - least, 0) * (least < _FLATTEST) * jnp.eye(size, dtype=scaled.dtype)
    lower = square_root(raised)
    inverse = jax.scipy.linalg.solve_triangular(lower, jnp.eye(size, dtype=scaled.dtype), lower=True)
    return scale[:, None] * inverse.T
