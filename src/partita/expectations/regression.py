"""Natural gradients by regression on the sufficient statistics (Salimans and Knowles 2013)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.base import Density, Expectation, Rows
from partita.families import Family
from partita.families.base import Theta
from partita.inputs import check_whole

__all__ = ["Regression"]


class Regression(Expectation):
    """Draws of θ, whose log densities are regressed on the statistics T(θ): an explicit estimate of the Fisher matrix.

    ∇_μ E_q[log p] = C⁻¹ Cov[T, log p] with C = Cov[T, T] (`prop:fixed-point-equations`). Where both are estimated from
    the same draws, the slope is that of a regression by least squares, and its error is that of the residuals: there is
    none where log p is linear in T, as for a conjugate model, while the cancelled gradient, which other rules
    differentiate, has noise there. It needs no derivatives of the model, so that discrete densities and simulators
    serve as well, and more draws than there are natural parameters. Its bias is of the order of one over the draws.

    The natural gradient of the total is the slope. The total itself is the average over the draws.
    """

    samples: int = eqx.field(static=True, default=100)
    deterministic = False

    def __check_init__(self) -> None:
        check_whole("number of samples", self.samples, 2)

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        return self._regressed(q, self._densities(model, q, data, key))

    def total(self, model: Density, q: Family, data: PyTree, weights: Rows, key: Key[Array, ""]) -> Float[Array, ""]:
        theta, densities = self._densities(model, q, data, key)
        return self._regressed(q, (theta, (densities @ weights)[:, None]))[0]

    def _densities(
        self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]
    ) -> tuple[Theta, Float[Array, "s n"]]:
        """Draws of θ, and every row's log density at each."""
        theta = jax.lax.stop_gradient(q.plain()).sample(key, (self.samples,))
        each = jax.vmap(model.log_density, in_axes=(None, 0))
        return theta, jax.vmap(lambda one: each(one, data))(theta)

    def _regressed(self, q: Family, drawn: tuple[Theta, Float[Array, "s k"]]) -> Float[Array, " k"]:
        """The averages of some values over the draws, whose derivatives in μ are the slopes of their regression."""
        theta, values = drawn
        statistics = jax.vmap(lambda one: _flat(q.plain().statistics(one)))(theta)
        if self.samples <= statistics.shape[1]:
            raise SettingsError(
                f"A regression on {statistics.shape[1]} statistics needs more draws than {self.samples}: "
                f"use Regression({4 * statistics.shape[1]})."
            )
        centred = statistics - jnp.mean(statistics, axis=0)
        scale = jnp.maximum(jnp.std(centred, axis=0), jnp.finfo(centred.dtype).tiny)
        # the pseudo-inverse, because a full precision matrix holds every covariance twice
        slopes = jnp.linalg.pinv(centred / scale, rtol=1e-9) @ (values - jnp.mean(values, axis=0))
        here, slopes = _flat(q.mean_parameters()), jax.lax.stop_gradient(slopes / scale[:, None])
        return jnp.mean(values, axis=0) + (here - jax.lax.stop_gradient(here)) @ slopes


def _flat(tree: PyTree) -> Float[Array, " p"]:
    return ravel_pytree(tree)[0]
