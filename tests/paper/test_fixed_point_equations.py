"""`prop:fixed-point-equations`: at a client's optimum η_k = C⁻¹ d/dη E_q[log p(y_k | θ)] = d/dμ E_q[log p(y_k | θ)]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from partita import Damped, LogisticRegression, Method, Newton, Synchronous
from partita.local.client import Visit, client_update
from partita.local.solvers import FixedPoint
from support import reference
from support.trajectories import EXACT, FAMILIES, KEY, assert_equal, natural, shards, trajectory

MODEL = LogisticRegression()
CLIENTS = reference.divide(*reference.logistic_data(), reference.SIZES[3])
PARTS = shards(CLIENTS)


@pytest.fixture(scope="module", params=FAMILIES)
def state(request):
    """Two damped rounds in, so that no factor is trivial."""
    method = Method(EXACT, Synchronous(), Damped(0.4))
    return trajectory(method, MODEL, request.param.standard_normal(3), PARTS, 2)[-1]


def answer(solver, state, client):
    """The client's posterior q_k and its factor afterwards."""
    recipe = Method(solver).recipe(MODEL)
    visit = Visit(state.prior, state.posterior, state.factors[client], PARTS.shards[client], 1.0, KEY)
    reply = client_update(recipe, visit)
    return state.posterior * reply.delta.natural, state.factors[client] * reply.delta


# Newton compares free energies, which are known to 1e-14 nats
@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [(EXACT, 1e-11), (Newton(tolerance=1e-20), 1e-8)],
    ids=["fixed point", "Newton"],
)
def test_an_optimal_factor_is_the_gradient_in_mean_parameters(state, solver, tolerance):
    for client in range(3):
        q, factor = answer(solver, state, client)
        assert_equal(factor, reference.natural_gradient(natural(q), *CLIENTS[client], reference.logistic), tolerance)


def test_the_fisher_matrix_cancels(state):
    q, shard = state.posterior, PARTS.shards[1]
    eta, unravel = ravel_pytree(q)

    def ell(q):
        return MODEL.ell(q, shard.data, shard.weights, KEY)

    slope, natural_gradient, fisher = jax.jit(
        lambda e: (jax.grad(lambda e: ell(unravel(e)))(e), unravel(e).natural_gradient(ell), unravel(e).fisher())
    )(eta)
    np.testing.assert_allclose(fisher, reference.fisher(natural(q)), rtol=0, atol=1e-12)
    # the pseudo-inverse, because a full precision matrix holds every covariance twice
    solved = unravel(jnp.asarray(np.linalg.pinv(fisher, rcond=1e-10, hermitian=True) @ slope))
    expected = reference.natural_gradient(natural(q), *CLIENTS[1], reference.logistic)
    assert_equal(natural_gradient, expected, 1e-11)
    assert_equal(solved, expected, 1e-10)


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_a_damped_step_is_the_papers(state, damping):
    """`eq:fixed-point-bi-damp`: η_k ← (1 − ρ) η_k + ρ d/dμ E_q[log p(y_k | θ)]."""
    solver = FixedPoint(damping, max_steps=1, backtrack=False)
    for client in range(3):
        _, factor = answer(solver, state, client)
        target = reference.natural_gradient(natural(state.posterior), *CLIENTS[client], reference.logistic)
        old = natural(state.factors[client])
        expected = reference.product(reference.power(old, 1 - damping), reference.power(target, damping))
        assert_equal(factor, expected, 1e-11)
        assert np.abs(expected[0] - old[0]).max() > 1e-2
