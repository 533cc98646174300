"""NumPy arrays as JAX arrays."""

import jax
from jaxtyping import Array, ArrayLike, Shaped

__all__ = ["jax_array"]


def jax_array(array: Shaped[ArrayLike, "..."]) -> Shaped[Array, "..."]:
    """A copy of a NumPy array, or number, in JAX; unlike `jnp.array`, it compiles no program for a new shape."""
    return jax.device_put(array, may_alias=False)
