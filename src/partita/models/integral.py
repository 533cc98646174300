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

_POINTS = {2: (12, 8), 3: (8, 6)}
"""How many Gauss–Hermite nodes there are along each of several variables, and in the rule that judges them."""
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
_FLAT = 1e-12
"""The curvature up to which it tells no width."""
_FALL = 2.0
"""By how many nats a Gaussian falls within two of its standard deviations."""
_FACTOR, _SEARCHES = 4.0, 40
"""By how much a distance grows or shrinks until it is bracketed, and how often at most."""
_CLOSE = 1.2
"""The ratio of a bracket's ends that ends the search."""
_UNLIKE = 3.0
"""By how much the width that the curvature tells may differ from the one that the fall tells."""
_TOLERANCE = 1e-2
"""How many nats a rule and one with fewer nodes may be apart.

Where h is smooth the former's error is of the order of the square of it, and at a kink a third of it.
"""
_SLOWEST = 0.95
"""The ratio of the last nodes' terms from which on a tail is taken not to end."""

_LogDensity: TypeAlias = Callable[[Float[Array, " d"]], Float[Array, ""]]


def log_integral(
    log_density: Callable[[Float[Array, " p"], Float[Array, " d"]], Float[Array, ""]],
    theta: Float[Array, " p"],
    size: int,
) -> Float[Array, ""]:
    """log ∫ exp h(θ, u) du.

    It is NaN where a rule with fewer nodes differs from this one, or a tail does not end: a wrong number is worse.

    Nodes stay where they are when this is differentiated in θ: its derivatives are quadratures by the same nodes.

    Args:
        log_density: h.
        theta: what it depends on beside u.
        size: how many variables u has.

    """
    nodes, weights, fewer = (jnp.asarray(each, theta.dtype) for each in _rule(size))
    still = jax.lax.stop_gradient(theta)
    mode, root, kink = jax.lax.stop_gradient(_placed(lambda u: log_density(still, u), size, theta.dtype))
    told = jax.lax.map(
        jax.checkpoint(lambda u: log_density(theta, u)), mode + nodes @ root.T, batch_size=min(_TOGETHER, len(nodes))
    )
    if size == 1:
        weights, fewer = (
            each + _ends(jax.lax.stop_gradient(told + each), 2 - k) + _centre(kink * (2 - k))
            for k, each in ((1, weights), (0, fewer))
        )
    found, other = jax.nn.logsumexp(told + weights), jax.nn.logsumexp(told + fewer)
    accurate = jnp.abs(found - other) <= _TOLERANCE
    volume = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root))))
    return jnp.where(accurate, found + volume, jnp.nan)


@functools.lru_cache
def _rule(size: int) -> tuple[Float[np.ndarray, "s d"], Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """Nodes, the logarithms of their weights, and those of a rule with fewer of them.

    For one variable they are equidistant in the inverse hyperbolic sine, by which tails that fall as slowly as an
    exponential or a power are reached, to 22 times the width at the mode; every other one, from the mode on, makes the
    other rule. For several they are exact for Gaussians times polynomials, and so are those of the other rule.
    """
    if size == 1:
        places = np.arange(-_STEPS, _STEPS + 1)
        weights = np.log(_STEP * np.cosh(_STEP * places))
        return np.sinh(_STEP * places)[:, None], weights, np.where(places % 2, -np.inf, weights + np.log(2))
    rules = [normal_nodes(size, points**size) for points in _POINTS[size]]
    nodes = np.concatenate([nodes.T for nodes, _ in rules])
    masses = [np.log(masses) + np.sum(at**2, axis=0) / 2 + size * np.log(2 * np.pi) / 2 for at, masses in rules]
    none = [np.full(len(each), -np.inf) for each in masses]
    return nodes, np.concatenate([masses[0], none[1]]), np.concatenate([none[0], masses[1]])


def _ends(terms: Float[Array, " s"], apart: int) -> Float[Array, " s"]:
    """What the last nodes' log weights gain for a tail beyond them, whose terms fall in a constant ratio.

    So those of a power do where nodes are equidistant in the inverse hyperbolic sine.
    """
    first = (len(terms) // 2) % apart
    last = len(terms) - 1 - first
    ratios = jnp.exp(jnp.stack([terms[first] - terms[first + apart], terms[last] - terms[last - apart]]))
    # nothing is left where both are zero
    nothing = jnp.isneginf(jnp.stack([terms[first], terms[last]]))
    gains = jnp.where(nothing, 0, jnp.where(ratios < _SLOWEST, -jnp.log1p(-jnp.minimum(ratios, _SLOWEST)), jnp.nan))
    return jnp.zeros_like(terms).at[jnp.array([first, last])].set(gains)


def _centre(kink: Float[Array, ""]) -> Float[Array, " s"]:
    """What the log weight at the mode gains for a kink there, by the formula of Euler and Maclaurin."""
    gain = jnp.log1p(jnp.clip(_STEP * kink / 12, -0.5, 0.5))
    return jnp.zeros(2 * _STEPS + 1, kink.dtype).at[_STEPS].set(gain)


def drawn(log_density: _LogDensity, size: int, key: Key[Array, ""], dtype: DTypeLike) -> Float[Array, " d"]:
    """A draw of the density that is proportional to exp h: one of many of the Gaussian at its mode, by their ratios."""
    mode, root, _ = _placed(log_density, size, dtype)
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


def _placed(
    log_density: _LogDensity, size: int, dtype: DTypeLike
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Float[Array, ""]]:
    """The mode of h, a root of the covariance of a Gaussian as wide as exp h, and by how much h has a kink there.

    The curvature tells the width, unless that is unlike the one that the distance tells within which h falls.
    """
    mode, root = _gaussian(log_density, size, dtype)
    fallen = jax.vmap(lambda column: _width(log_density, mode, column))(root.T)
    like = (fallen < _UNLIKE) & (fallen * _UNLIKE > 1)
    root = root * jnp.where(like, 1.0, fallen)
    if size > 1:
        return mode, root, jnp.zeros((), dtype)
    ahead = jnp.sqrt(jnp.finfo(dtype).eps) * jnp.maximum(root[0], jnp.abs(mode))
    slope = jax.grad(log_density)
    kink = (root[0] * (slope(mode + ahead) - slope(mode - ahead)))[0]
    return mode, root, kink


def _width(log_density: _LogDensity, mode: Float[Array, " d"], column: Float[Array, " d"]) -> Float[Array, ""]:
    """In lengths of the column, the standard deviation of a Gaussian that falls as far within the same distance."""
    highest = log_density(mode)

    def along(sign: Float[Array, ""]) -> Float[Array, ""]:
        def go_on(state: tuple[Array, Array, Array, Array]) -> Bool[Array, ""]:
            low, high, _, tries = state
            return (high > _CLOSE * low) & (tries < _SEARCHES)

        def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            low, high, at, tries = state
            near = log_density(mode + sign * at * column) > highest - _FALL
            low, high = jnp.where(near, at, low), jnp.where(near, high, at)
            between = jnp.where(jnp.isinf(high), low * _FACTOR, jnp.where(low > 0, jnp.sqrt(low * high), at / _FACTOR))
            return low, high, between, tries + 1

        zero, two = jnp.zeros_like(highest), jnp.full_like(highest, 2)
        return jax.lax.while_loop(go_on, step, (zero, zero + jnp.inf, two, jnp.asarray(0)))[2]

    return jnp.sum(jax.vmap(along)(jnp.array([-1, 1], column.dtype))) / 4


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
    """R with R Rᵀ the inverse of a small matrix, its diagonal raised until it is positive; of ones if it is flat."""
    size = len(curvature)
    largest = jnp.max(jnp.abs(curvature))
    told = (largest > _FLAT) & jnp.isfinite(largest)
    curvature = jnp.where(told, curvature, jnp.eye(size, dtype=curvature.dtype))
    if size == 1:
        return jnp.abs(curvature) ** -0.5
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
