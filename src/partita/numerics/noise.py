"""Fast standard normal noise; with `jax.random.normal` it would dominate the cost of a network's step.

The generator is Threefry-2x32 with 13 rounds, the fewest that pass BigCrush (Salmon et al. 2011), written out so that
it compiles to one vectorised loop; JAX's own has 20 rounds in a loop that passes over memory each time. Two words give
two normals by Box and Muller's transform.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

__all__ = ["Words", "sine_and_cosine", "standard_normal", "threefry", "uniform"]

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_TURN = 2 * math.pi
_SINE = [(-1) ** j * _TURN ** (2 * j + 1) / math.factorial(2 * j + 1) for j in range(6)]
_COSINE = [(-1) ** j * _TURN ** (2 * j) / math.factorial(2 * j) for j in range(7)]
"""Taylor's coefficients of sin 2πu and cos 2πu; for |u| ≤ ¼ the remainder is below the rounding of single precision."""

Words = tuple[UInt32[Array, " n"], UInt32[Array, " n"]]


def standard_normal(key: Key[Array, ""], shape: tuple[int, ...], dtype: np.dtype) -> Float[Array, "..."]:
    """Independent N(0, 1) numbers from any kind of JAX key; in double precision they are JAX's own."""
    if dtype != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    count = math.prod(shape)
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    counter = jax.lax.iota(jnp.uint32, (count + 1) // 2)
    radius, angle = threefry((first, second), (counter, jnp.zeros_like(counter)))
    sine, cosine = sine_and_cosine(angle)
    length = jnp.sqrt(-2 * jnp.log(1 - uniform(radius)))
    # concatenating materialises the numbers; otherwise XLA would recompute them at every use
    return jnp.concatenate([length * sine, length * cosine])[:count].reshape(shape)


def threefry(key: tuple[Array, Array], counter: Words, rounds: int = 13) -> Words:
    """Threefry-2x32: two random words for every counter."""
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    left, right = counter[0] + keys[0], counter[1] + keys[1]
    for index in range(rounds):
        left = left + right
        rotation = _ROTATIONS[index % 8]
        right = left ^ ((right << jnp.uint32(rotation)) | (right >> jnp.uint32(32 - rotation)))
        if index % 4 == 3:
            injection = index // 4 + 1
            left = left + keys[injection % 3]
            right = right + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return left, right


def uniform(words: UInt32[Array, " n"]) -> Float[Array, " n"]:
    """Numbers in [0, 1), multiples of 2⁻²³."""
    return jax.lax.bitcast_convert_type((words >> jnp.uint32(9)) | jnp.uint32(0x3F800000), jnp.float32) - 1


def sine_and_cosine(words: UInt32[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """sin and cos of 2πt, where t in [−½, ½) is read from the words."""
    turn = words.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-32)
    quarter = jnp.abs(turn) - jnp.float32(0.25)
    square = quarter * quarter
    cosine = -quarter * _horner(_SINE, square)
    sine = _horner(_COSINE, square)
    return jnp.where(turn < 0, -sine, sine), cosine


def _horner(coefficients: list[float], x: Float[Array, " n"]) -> Float[Array, " n"]:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + jnp.float32(coefficient)
    return total
