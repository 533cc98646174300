import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import FullGaussian, InputError, LogDensity, Posterior
from partita.checks import check_model

DATA = {"time": jnp.array([0.3, 1.2, 0.7]), "dose": jnp.array([[1.0, 0.0], [0.5, 1.0], [2.0, -1.0]])}
START = {"effect": jnp.array([0.2, -0.3]), "level": jnp.asarray(0.5)}


def survival(theta, datum):
    """Exponential survival times whose rate depends on a dose: neither a table nor one vector of coefficients."""
    log_rate = theta["level"] + datum["dose"] @ theta["effect"]
    return log_rate - jnp.exp(log_rate) * datum["time"]


MODEL = LogDensity(survival)
Q = FullGaussian.from_mean_covariance(START, 0.1 * np.eye(3) + 0.02)


def test_contract_of_a_users_function():
    check_model(MODEL, Q, DATA)


def test_padding_of_weight_zero_adds_nothing():
    key = jax.random.key(0)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:], leaf[-1:]]), DATA)
    weights = jnp.array([1.0, 1.0, 1.0, 0.0, 0.0])
    # MonteCarlo's draws are shared by all rows, so the same key gives the same draws.
    np.testing.assert_allclose(MODEL.ell(Q, padded, weights, key), MODEL.ell(Q, DATA, jnp.ones(3), key), rtol=1e-14)


def test_a_row_that_is_not_finite_is_named():
    MODEL.check(jax.tree.map(np.asarray, DATA))
    with pytest.raises(InputError, match=r"row 2 .* not finite"):
        MODEL.check({"time": np.ones(3), "dose": np.array([[1.0, 2.0], [0.0, 1.0], [3.0, np.nan]])})


@pytest.mark.parametrize("how", ["closed", "monte_carlo"])
def test_unsupported_predictions_are_refused(how):
    posterior = Posterior(MODEL, FullGaussian.standard_normal(2))
    with pytest.raises(InputError, match="LogDensity has no"):
        posterior.predict(np.ones((1, 2)), how)
