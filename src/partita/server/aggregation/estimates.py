"""What may stand in for the factors of clients that have not answered yet (`sec:stochastic-approx`, last paragraph)."""

import abc
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import ArrayLike, Float

from partita.errors import SettingsError
from partita.families.factor import Factor
from partita.inputs import check_finite_number, real_array
from partita.numerics.arrays import jax_array
from partita.server.aggregation.base import multiplied

__all__ = ["Amortised", "FactorEstimate", "GeometricMean", "LastFactor"]


class FactorEstimate(eqx.Module):
    """An estimate of the factors that are not known from those that are."""

    @abc.abstractmethod
    def __call__(self, known: Mapping[int, Factor], latest: int, unheard: Sequence[int]) -> Mapping[int, Factor]:
        """The factors of clients that are unheard; `latest` is the client that answered last."""

    def check(self, clients: int) -> None:
        """Raises an `InputError` if it cannot serve this many clients."""


class GeometricMean(FactorEstimate):
    """The geometric mean of the factors that are known."""

    def __call__(self, known: Mapping[int, Factor], latest: int, unheard: Sequence[int]) -> Mapping[int, Factor]:
        return dict.fromkeys(unheard, multiplied(known.values()) ** (1 / len(known)))


class LastFactor(FactorEstimate):
    """The factor that came last: as good as the mean where clients are alike, and noisier."""

    def __call__(self, known: Mapping[int, Factor], latest: int, unheard: Sequence[int]) -> Mapping[int, Factor]:
        return dict.fromkeys(unheard, known[latest])


def _matrix(features: ArrayLike) -> Float[np.ndarray, "m f"]:
    return np.asarray(real_array("features of clients", features))


class Amortised(FactorEstimate):
    """A linear inference network: natural parameters are regressed on what is known of each client, such as its size.

    Ridge regression on the features of the clients that have answered, around the geometric mean. Features are what
    clients have agreed to tell, with a row each; a client that joins has none.
    """

    features: Float[np.ndarray, "m f"] = eqx.field(converter=_matrix)
    ridge: float = 1.0
    """How many clients' worth of evidence the mean has against every standardised feature."""

    def __check_init__(self) -> None:
        check_finite_number("ridge", self.ridge, above=0)
        if np.ndim(self.features) != 2 or not np.isfinite(self.features).all():
            raise SettingsError("The features of clients must be a matrix of finite numbers, with a row each.")

    def check(self, clients: int) -> None:
        if len(self.features) < clients:
            raise SettingsError(
                f"There are features of {len(self.features)} clients and not of {clients}: add the rest."
            )

    def __call__(self, known: Mapping[int, Factor], latest: int, unheard: Sequence[int]) -> Mapping[int, Factor]:
        heard = [k for k in known if k < len(self.features)]
        spread = np.std(self.features, axis=0)
        scaled = (self.features - self.features.mean(axis=0)) / np.where(spread > 0, spread, 1)
        centre = scaled[heard].mean(axis=0)
        inputs = scaled[heard] - centre
        gram = inputs.T @ inputs + self.ridge * np.eye(inputs.shape[1])
        others = [k for k in unheard if k < len(scaled)]
        # each estimate is a sum of the known factors with these weights
        weights = 1 / len(heard) + (scaled[others] - centre) @ np.linalg.solve(gram, inputs.T)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(known[k] for k in heard))
        sums = jax.tree.map(lambda leaf: jax_array(np.tensordot(weights, leaf, 1)), stacked)
        return {k: jax.tree.map(lambda leaf, row=row: leaf[row], sums) for row, k in enumerate(others)}
