"""`prop:local-fe-opt`: F_k(q) = log Ẑ_k − KL(q ‖ p̂_k), so the maximum of one is the minimum of the other."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from partita import Damped, LogisticRegression, MeanFieldGaussian, Method, Synchronous
from partita.expectations import GaussHermite
from partita.local.client import Visit, client_update
from partita.local.context import Cavity
from partita.local.objective import Problem
from support import reference
from support.trajectories import EXACT, FAMILIES, KEY, assert_equal, natural, shards, trajectory

# enough points that quadrature over the predictor and over θ agree to rounding
MODEL = LogisticRegression(expectation=GaussHermite(80))
METHOD = Method(EXACT, Synchronous(), Damped(0.6))


@pytest.fixture(scope="module", params=FAMILIES)
def client(request):
    """A client's problem amid a damped run and its answer; log Ẑ and KL(q ‖ p̂) of the tilted density by quadrature."""
    clients = reference.divide(*reference.logistic_data(15, 2, seed=2), (4, 5, 6))
    prior, parts = request.param.standard_normal(2), shards(clients)
    state = trajectory(METHOD, MODEL, prior, parts, 2)[-1]
    q, factor, shard = state.posterior, state.factors[1], parts.shards[1]
    context = Cavity()(prior, q, factor, jnp.asarray(1.0))
    problem = Problem(MODEL, shard, context, jnp.asarray(1.0), q, jnp.asarray(1.0))
    reply = client_update(METHOD.recipe(MODEL), Visit(prior, q, factor, shard, 1.0, KEY))

    theta, volume = reference.grid(2)
    log_cavity = reference.log_density(natural(q), theta) - reference.log_factor(natural(factor), theta)
    log_tilted = log_cavity - float(factor.log_scale) + reference.log_likelihood(theta, *clients[1])
    log_z = reference.log_integral(log_tilted, volume)

    def divergence(eta):
        log_q = reference.log_density(eta, theta)
        return volume * np.sum(np.exp(log_q) * (log_q - log_tilted + log_z))

    return problem, reply, log_z, divergence


def test_free_energy_is_log_normaliser_of_tilted_minus_divergence(client):
    problem, _, log_z, divergence = client
    q, value = problem.start, eqx.filter_jit(problem.free_energy)
    for member in (q, q**0.5, q**2, q * q / problem.context.natural):
        expected = log_z - divergence(natural(member))
        assert float(value(member, KEY)) == pytest.approx(expected, abs=1e-10)


def test_answer_reports_its_free_energy_and_minimises_divergence(client):
    problem, reply, log_z, divergence = client
    answer = problem.start * reply.delta.natural
    least = divergence(natural(answer))
    assert float(reply.info.free_energy) == pytest.approx(log_z - least, abs=1e-10)

    def member(z):
        mean, scale = z[:2], z[2:]
        if isinstance(answer, MeanFieldGaussian):
            return np.exp(-2 * scale) * mean, np.exp(-2 * scale)
        lower = np.array([[np.exp(scale[0]), 0.0], [scale[1], np.exp(scale[2])]])
        precision = np.linalg.inv(lower @ lower.T)
        return precision @ mean, precision

    start = np.zeros(4 if isinstance(answer, MeanFieldGaussian) else 5)
    found = minimize(lambda z: divergence(member(z)), start, options={"gtol": 1e-9})
    assert found.fun == pytest.approx(least, abs=1e-12)
    # BFGS with differenced gradients knows where the minimum is to the square root of the precision
    assert_equal(answer, member(found.x), 1e-6)
