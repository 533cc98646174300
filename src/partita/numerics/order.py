"""Random orders in time and memory linear in their length."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt32

__all__ = ["random_order"]

_ROUNDS = 8


def random_order(key: Key[Array, ""], length: int) -> Int[Array, " n"]:
    """0, …, length − 1 in a pseudo-random order, by a Feistel cipher of the places.

    Sorting random numbers, as `jax.random.permutation` does, takes longer than all else in a pass over many rows. The
    cipher permutes all numbers with as many bits as `length` needs; one that is `length` or more is enciphered again
    until it is below.
    """
    bits = max(length - 1, 3).bit_length()
    low = bits // 2
    keys = jax.random.bits(key, (_ROUNDS,), jnp.uint32)

    def enciphered(value: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
        left, right, widths = value >> low, value & (2**low - 1), (bits - low, low)
        for each in keys:
            left, right = right, left ^ (_mixed(right ^ each) & (2 ** widths[0] - 1))
            widths = widths[::-1]
        return (left << widths[1]) | right

    def again(value: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
        return jnp.where(value >= length, enciphered(value), value)

    begun = enciphered(jnp.arange(length, dtype=jnp.uint32))
    return jax.lax.while_loop(lambda value: jnp.any(value >= length), again, begun).astype(int)


def _mixed(value: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """A hash in which every bit of the value changes about half of all bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ (value >> shift)) * jnp.uint32(factor)
    return value ^ (value >> 16)
