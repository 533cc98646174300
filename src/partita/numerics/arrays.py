"""NumPy arrays as JAX arrays."""

import jax
import numpy as np
from jaxtyping import Array, Shaped

__all__ = ["jax_array"]


def jax_array(array: Shaped[np.ndarray, "..."]) -> Shaped[Array, "..."]:
    """A copy of a NumPy array in JAX; unlike `jnp.array`, it compiles no program for a new shape."""
    return jax.device_put(array, may_alias=False)
