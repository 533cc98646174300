"""What expectations are taken of: the part of a model that they see."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from partita.errors import DataError, InputError
from partita.families import Family
from partita.families.base import Theta


class Integrand(eqx.Module):
    """log p(y_n | θ) of rows, and the forms of it that particular expectations use.

    A model implements `log_density` of one row; the other forms raise an `InputError` unless it has them.
    """

    @abc.abstractmethod
    def log_density(self, theta: Theta, datum: PyTree) -> Float[Array, ""]:
        """The log density log p(y_n | θ) of one row."""

    def predictor(self, q: Family, data: PyTree) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance under q of each row's scalar predictor."""
        raise self._lacks("a Gaussian linear predictor", "MonteCarlo")

    def log_density_at(self, predictor: Array, data: PyTree) -> Float[Array, " n"]:
        """Every row's log p(y_n | f_n), given the predictors f; scalar predictors may have more axes behind."""
        raise self._lacks("a density given its predictor", "MonteCarlo")

    def expected_log_density(
        self, mean: Float[Array, " n"], variance: Float[Array, " n"], data: PyTree
    ) -> Float[Array, " n"]:
        """E[log p(y_n | f_n)] in closed form for f_n ~ N(mean_n, variance_n)."""
        raise self._lacks("a closed form of its expectation", "GaussHermite or MonteCarlo")

    def expected_log_densities(self, q: Family, data: PyTree) -> Float[Array, " n"]:
        """E_q[log p(y_n | θ)] of each row in closed form; unless overridden, from its Gaussian linear predictor."""
        return self.expected_log_density(*self.predictor(q, data), data)

    def expected_joint_log_densities(self, q: Family, data: PyTree) -> Float[Array, "n k"]:
        """E_q[log p(y_n, z_n = k | θ)] of each row and each value of its latent variable."""
        raise self._lacks("a discrete latent variable", "Analytic or MonteCarlo")

    def shared(self, q: Family, data: PyTree) -> PyTree[Float[Array, "..."]]:
        """Precomputes what all local draws of the predictors share, such as means and variances."""
        raise self._lacks("predictors that can be sampled locally", "MonteCarlo")

    def noise_shape(self, shared: PyTree) -> tuple[int, ...]:
        """The shape of the standard normal noise that one draw of all predictors takes."""
        raise self._lacks("predictors that can be sampled locally", "MonteCarlo")

    def predictor_at(self, shared: PyTree, noise: Array) -> Array:
        """A draw of every row's predictor under q, independent across rows."""
        raise self._lacks("predictors that can be sampled locally", "MonteCarlo")

    def _lacks(self, what: str, instead: str) -> InputError:
        return DataError(f"{type(self).__name__} does not have {what}: use the expectation {instead}.")
