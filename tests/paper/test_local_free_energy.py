"""`prop:local-fe-opt`: F_k(q) = log Ẑ_k − KL(q ‖ p̂_k), so the maximum of one is the minimum of the other."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from paper import reference
from paper.runs import EXACT, KEY, assert_equal, natural, shards, trajectory
from partita import Damped, FullGaussian, GaussHermite, LogisticRegression, MeanFieldGaussian, Method, Synchronous
from partita.client import update
from partita.objective import Cavity, Problem

# enough points that quadrature over the predictor and over θ agree to rounding
MODEL = LogisticRegression(GaussHermite(80))
METHOD = Method(EXACT, Synchronous(), Damped(0.6))


@pytest.fixture(scope="module", params=[(MeanFieldGaussian, 1), (MeanFieldGaussian, 2), (FullGaussian, 2)])
def tilted(request):
    """A client's problem in the middle of a damped run, and its un-normalised tilted density on a grid."""
    family, columns = request.param
    clients = reference.divide(*reference.logistic_data(15, columns, seed=2), (4, 5, 6))
    prior, parts = family.standard_normal(columns), shards(clients)
    state = trajectory(METHOD, MODEL, prior, parts, 2)[-1]
    assert abs(float(state.factors[1].log_scale)) > 1e-3
    context = Cavity()(prior, state.posterior, state.factors[1], jnp.asarray(1.0))
    problem = Problem(MODEL, parts.shards[1], context, jnp.asarray(1.0), state.posterior, jnp.asarray(1.0))
    reply = update(METHOD.recipe(MODEL), prior, state.posterior, state.factors[1], parts.shards[1], 1.0, KEY)

    theta, volume = reference.grid(columns)
    log_tilted = (
        reference.log_density(natural(state.posterior), theta)
        - reference.log_factor(natural(state.factors[1]), theta)
        - float(state.factors[1].log_scale)
        + reference.log_likelihood(theta, *clients[1])
    )
    return problem, reply, theta, volume, log_tilted - reference.log_integral(log_tilted, volume), log_tilted


def divergence(eta, theta, volume, log_target):
    log_q = reference.log_density(eta, theta)
    return volume * np.sum(np.exp(log_q) * (log_q - log_target))


def test_free_energy_is_log_normaliser_of_tilted_minus_divergence(tilted):
    problem, _, theta, volume, log_target, log_tilted = tilted
    log_z = reference.log_integral(log_tilted, volume)
    start = problem.start
    for member in (start, start**0.5, start**2, start * (start / problem.context.natural)):
        expected = log_z - divergence(natural(member), theta, volume, log_target)
        assert float(problem.free_energy(member, KEY)) == pytest.approx(expected, abs=1e-10)


def test_answer_reports_its_free_energy_and_minimises_divergence(tilted):
    problem, reply, theta, volume, log_target, log_tilted = tilted
    answer = problem.start * reply.delta.natural
    log_z = reference.log_integral(log_tilted, volume)
    least = divergence(natural(answer), theta, volume, log_target)
    assert float(reply.info.free_energy) == pytest.approx(log_z - least, abs=1e-10)

    columns, full = len(natural(answer)[0]), natural(answer)[1].ndim == 2

    def member(z):
        mean, scale = z[:columns], z[columns:]
        if not full:
            return np.exp(-2 * scale) * mean, np.exp(-2 * scale)
        lower = np.array([[np.exp(scale[0]), 0.0], [scale[1], np.exp(scale[2])]])
        precision = np.linalg.inv(lower @ lower.T)
        return precision @ mean, precision

    size = columns + (3 if full else columns)
    found = minimize(lambda z: divergence(member(z), theta, volume, log_target), np.zeros(size), options={"gtol": 1e-9})
    assert found.fun == pytest.approx(least, abs=1e-12)
    # BFGS with differenced gradients knows where the minimum is to the square root of the precision
    assert_equal(answer, member(found.x), 1e-6)
