"""Multi-layer networks with ReLU units, for classification and regression."""

import abc
import itertools
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Float

from partita.data.table import Table
from partita.errors import DataError, SettingsError
from partita.expectations import Expectation, LocalReparameterisation
from partita.families import Family
from partita.families.base import Theta
from partita.families.capabilities import IndependentGaussian
from partita.inputs import check_finite_number, check_whole, described
from partita.models.base import Model, check_table, check_values
from partita.numerics.compiled import Scalar

__all__ = ["Network", "NetworkClassifier", "NetworkRegressor", "Shared"]


class Shared(NamedTuple):
    """Precomputed for local draws: the first layer's pre-activation moments, and later layers' moments, transposed."""

    centre: Float[Array, "h n"]
    spread: Float[Array, "h n"]
    later: tuple[tuple[Theta, Theta], ...]


def _widths(widths: Any) -> tuple[int, ...]:
    """The widths of layers, inputs first; raises a `SettingsError` where they are something else."""
    if not isinstance(widths, list | tuple) or len(widths) < 2:
        raise SettingsError(f"The widths must be two or more whole numbers, inputs first, not {described(widths)}.")
    for width in widths:
        check_whole("width of a layer", width)
    return tuple(widths)


class Network(Model):
    """Fully connected layers of the given widths, inputs first; θ is a tuple of {"weight", "bias"}, layer by layer.

    Weights have shape (outputs, inputs): the matrix product for their gradient is then a third faster.
    """

    widths: eqx.AbstractVar[tuple[int, ...]]

    @abc.abstractmethod
    def log_output_density(self, outputs: Float[Array, "n c"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """The log density of y given the outputs of the last layer, row by row."""

    def template(self) -> Theta:
        """A θ of zeros, to build a prior on."""
        layers = itertools.pairwise(self.widths)
        return tuple({"bias": jnp.zeros(m), "weight": jnp.zeros((m, n))} for n, m in layers)

    def outputs(self, theta: Theta, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
        """The last layer's outputs at θ."""
        for index, layer in enumerate(theta):
            x = (x if index == 0 else jax.nn.relu(x)) @ layer["weight"].T + layer["bias"]
        return x

    def check(self, data: Table) -> None:
        check_table(data)
        if data.x.shape[1] != self.widths[0]:
            raise DataError(f"x has {data.x.shape[1]} columns where the network has {self.widths[0]} inputs")

    def log_density(self, theta: Theta, datum: Table) -> Float[Array, ""]:
        return self.log_output_density(self.outputs(theta, datum.x[None]), datum.y[None])[0]

    def log_density_at(self, predictor: Float[Array, "n c"], data: Table) -> Float[Array, " n"]:
        return self.log_output_density(predictor, data.y)

    def shared(self, q: Family, data: Table) -> Shared:
        if not isinstance(q, IndependentGaussian):
            raise DataError("Local reparameterisation of a network needs a mean-field Gaussian: use MonteCarlo.")
        (mean, *means), (variance, *variances) = q.standard()
        centre = data.x @ mean["weight"].T + mean["bias"]
        spread = jnp.sqrt(jnp.square(data.x) @ variance["weight"].T + variance["bias"])
        later = jax.tree.map(jnp.transpose, tuple(zip(means, variances, strict=True)))
        # gradients of narrow layers are faster with the inputs first; the barrier keeps XLA from undoing the transpose
        return Shared(centre.T, spread.T, jax.lax.optimization_barrier(later))

    def noise_shape(self, shared: Shared) -> tuple[int, ...]:
        return sum(self.widths[1:]), shared.centre.shape[1]

    def predictor_at(self, shared: Shared, noise: Float[Array, "u n"]) -> Float[Array, "n c"]:
        """Draws the pre-activations layer by layer, with the rows last, which is faster for narrow layers."""
        drawn = self.widths[1]
        h = shared.centre + shared.spread * noise[:drawn]
        for mean, variance in shared.later:
            h = jax.nn.relu(h)
            centre = mean["weight"].T @ h + mean["bias"][:, None]
            spread = jnp.sqrt(variance["weight"].T @ jnp.square(h) + variance["bias"][:, None])
            h = centre + spread * noise[drawn : drawn + len(centre)]
            drawn += len(centre)
        return h.T


class NetworkClassifier(Network):
    """Class labels 0 … C−1 with softmax outputs; the last width is C."""

    widths: tuple[int, ...] = eqx.field(static=True, converter=_widths)
    expectation: Expectation = eqx.field(default=LocalReparameterisation(), kw_only=True)

    predicts_classes = True

    def check(self, data: Table) -> None:
        super().check(data)
        y = np.asarray(data.y)
        classes = self.widths[-1]
        check_values(y, (y >= 0) & (y < classes) & (y == np.round(y)), f"labels are 0 to {classes - 1}")

    def log_output_density(self, outputs: Float[Array, "n c"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        chosen = jax.nn.one_hot(y.astype(int), outputs.shape[1], dtype=outputs.dtype)
        return jnp.sum(outputs * chosen, axis=1) - jax.nn.logsumexp(outputs, axis=1)

    def response(self, theta: Theta, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
        return self.response_at(self.outputs(theta, x))

    def response_at(self, predictor: Float[Array, "n c"]) -> Float[Array, "n c"]:
        return jax.nn.softmax(predictor)


class NetworkRegressor(Network):
    """A real response with Gaussian noise; the last width is 1."""

    widths: tuple[int, ...] = eqx.field(static=True)
    noise: Float[Array, ""]
    expectation: Expectation
    positive: ClassVar[tuple[str, ...]] = ("noise",)

    def __init__(self, widths: tuple[int, ...], noise: Scalar = 1.0, expectation: Expectation | None = None) -> None:
        check_finite_number("noise", noise, above=0)
        self.widths = _widths(widths)
        if self.widths[-1] != 1:
            raise SettingsError(f"The last width of a regressor must be 1, not {self.widths[-1]}.")
        self.noise = jnp.asarray(noise, jnp.result_type(float))
        self.expectation = LocalReparameterisation() if expectation is None else expectation

    def log_output_density(self, outputs: Float[Array, "n 1"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jsp.stats.norm.logpdf(y, outputs[:, 0], self.noise.astype(outputs.dtype))

    def response(self, theta: Theta, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.response_at(self.outputs(theta, x))

    def response_at(self, predictor: Float[Array, "n 1"]) -> Float[Array, " n"]:
        return predictor[:, 0]
