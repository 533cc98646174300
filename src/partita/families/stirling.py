"""The remainder of Stirling's formula for log Γ and its derivatives.

For a large shape, KL, entropy and Fisher information of a gamma are small differences of terms of size `shape`; written
with the remainder they are accurate in single precision.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Float

__all__ = ["LOG_ROOT_2PI", "fisher_excess", "log_excess", "log_gamma", "log_gap", "remainder", "remainder_slope"]

_LEAST = 10.0
"""Above this shape the series is accurate to double precision: its next term is 6e-3 / shape^13."""
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_SHIFT = 8
LOG_ROOT_2PI = 0.9189385332046727


def log_gamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log Γ(x) for x > 0, as log Γ(x + 8) − log x(x + 1)…(x + 7) with Stirling's formula, to 1e-14 of 1 + |log Γ(x)|.

    JAX's own compiles for seconds with its second derivative; this takes powers and logarithms only.
    """
    product = x
    for k in range(1, _SHIFT):
        product = product * (x + k)
    large = x + _SHIFT
    series = jnp.polyval(jnp.array(_SERIES[::-1], large.dtype), large**-2) / large
    return (large - 0.5) * jnp.log(large) - large + LOG_ROOT_2PI + series - jnp.log(product)


def remainder(shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """R(s) = log Γ(s) − ((s − ½) log s − s + ½ log 2π), which is about 1/(12 s)."""
    large = jnp.maximum(shape, _LEAST)
    series = jnp.polyval(jnp.array(_SERIES[::-1], shape.dtype), large**-2) / large
    direct = jsp.special.gammaln(shape) - (shape - 0.5) * jnp.log(shape) + shape - LOG_ROOT_2PI
    return jnp.where(shape > _LEAST, series, direct)


def remainder_slope(shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """R′(s)."""
    return _derivative(remainder, shape)


def log_gap(shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(s) − ψ(s), which is about 1/(2 s): log E[θ] − E[log θ] of a gamma."""
    return 0.5 / shape - remainder_slope(shape)


def fisher_excess(shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """s ψ′(s) − 1, which is about 1/(2 s)."""
    return -shape * _derivative(log_gap, shape)


def log_excess(ratio: Float[Array, "..."], less_one: Float[Array, "..."]) -> Float[Array, "..."]:
    """r − 1 − log r, given r and r − 1, which is known to more digits where r is near 1.

    There log r = 2 artanh z with z = (r − 1)/(r + 1), and (r − 1) − 2 z = (r − 1) z.
    """
    near = jnp.abs(less_one) < 0.1
    small = jnp.where(near, less_one, 0)
    z = small / (2 + small)
    tail = jnp.polyval(jnp.array([1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3], z.dtype), z**2)
    return jnp.where(near, z * (small - 2 * z**2 * tail), ratio - 1 - jnp.log(ratio))


def _derivative(function: Callable[[Array], Array], at: Float[Array, "..."]) -> Float[Array, "..."]:
    """Of a function of each element."""
    return jax.jvp(function, (at,), (jnp.ones_like(at),))[1]
