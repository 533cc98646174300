"""q and factors of any form in undamped sequential PVI (`sec:pvi:pvi_flavours`, `sec:conclusion`).

The references are sums over a grid of log densities in plain NumPy; from the project they take the posteriors.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import Checkpoint, LogDensity, federate, methods, run
from partita.expectations import Points
from partita.families import AnyForm, Flow, Mixture
from partita.families.factor import Factor
from partita.local.objective import Problem, local_free_energy
from partita.local.solvers import LBFGS
from partita.server.run import Status
from support.trajectories import KEY

Y = np.array([1.4, 0.6, 1.9, 0.2])
SIDE = np.linspace(-8, 8, 161)
THETA = np.stack(np.meshgrid(SIDE, SIDE, indexing="ij"), axis=-1).reshape(-1, 2)
CELL = (SIDE[1] - SIDE[0]) ** 2


def banana(theta, y):
    return -0.5 * jnp.square(y - theta[0] - jnp.square(theta[1])) - 0.5 * jnp.log(2 * jnp.pi)


MODEL = LogDensity(banana, expectation=Points())
PARTS = federate(np.split(Y, 2))
STARTS = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


@pytest.fixture(scope="module")
def mixture():
    """Two passes of a mixture of three over two clients, after each visit."""
    prior = AnyForm.of(Mixture.normal(2, 3), visits=6, draws=32)
    start = prior.with_unconstrained(Mixture.from_means_sd(STARTS, 0.7))
    method = methods.sequential(LBFGS(max_steps=12), start=start)
    results = [run(method, MODEL, prior, PARTS, communications=1, tolerance=None)]
    for _ in range(3):
        results.append(run(method, MODEL, prior, PARTS, communications=1, tolerance=None, state=results[-1].state))
    return prior, results


def on_grid(member):
    return np.asarray(member.log_density(jnp.asarray(THETA)))


def test_the_product_of_prior_and_factors_stays_a_density(mixture):
    prior, results = mixture
    visited = [prior] + [result.state.posterior for result in results]
    for turn, result in enumerate(results):
        state, client = result.state, turn % 2
        logs = on_grid(prior) + sum(on_grid(factor.natural) for factor in state.factors)
        np.testing.assert_allclose(logs, on_grid(state.posterior), atol=1e-9)
        assert np.exp(logs).sum() * CELL == pytest.approx(1, abs=1e-6)
        assert [float(factor.log_scale) for factor in state.factors] == [0, 0]
        # t_k ← t_k · q_k / q, and the other's factor is as it was
        before = results[turn - 1].state.factors[client] if turn else None
        kept = on_grid(before.natural) if turn else 0
        ratio = on_grid(visited[turn + 1]) - on_grid(visited[turn])
        np.testing.assert_allclose(on_grid(state.factors[client].natural), kept + ratio, atol=1e-9)
    assert on_grid(results[-1].state.factors[0].natural).std() > 1


def test_a_factor_has_two_more_densities_after_every_visit(mixture):
    _, results = mixture
    used = [int(jnp.sum(result.state.factors[0].natural.exponents != 0)) for result in results]
    assert used == [2, 2, 4, 4]


def test_local_free_energies_sum_to_the_global_one(mixture):
    prior, results = mixture
    state, q = results[-1].state, results[-1].state.posterior
    local = [
        float(local_free_energy(MODEL, shard, q, factor, KEY))
        for shard, factor in zip(PARTS.shards, state.factors, strict=True)
    ]
    points, masses = map(np.asarray, q.points())
    ell = sum(masses @ np.asarray(banana(points.T, y)) for y in Y)
    divergence = masses @ (np.asarray(q.log_density(points)) - np.asarray(prior.log_density(points)))
    assert sum(local) == pytest.approx(ell - divergence, abs=1e-9)
    assert results[-1].free_energy == pytest.approx(ell - divergence, abs=1e-9)


@pytest.mark.slow
def test_local_gradients_add_up_but_for_the_mean_score_over_points(mixture):
    """Property 3 for any form: Σ_m ∇F_m = ∇F where expectations are exact; over points the score has a mean of its own.

    ∇F_m has E_q[log q_old / t_m − log q], of which M parts have log q_old − log q: its gradient at q_old is minus the
    mean score over points, and F has one of them.
    """
    prior, results = mixture
    state, q = results[-1].state, results[-1].state.posterior
    whole = federate([Y]).shards[0]

    @jax.jit
    def gradients(form):
        def climbed(shard, context):
            problem = Problem(MODEL, shard, context, jnp.ones(()), q, jnp.ones(()))
            return jax.grad(lambda form: problem.free_energy(q.with_unconstrained(form), KEY))(form)

        theta, masses = q.points()
        score = jax.grad(lambda form: masses @ jax.vmap(form.log_prob)(theta))(form)
        pairs = zip(PARTS.shards, state.factors, strict=True)
        local = [climbed(shard, Factor.of(q) / factor) for shard, factor in pairs]
        return local, climbed(whole, Factor.of(prior)), score

    local, pooled, score = (jax.tree.leaves(each) for each in gradients(q.form))
    half = len(local) // 2
    for place, (expected, mean) in enumerate(zip(pooled, score, strict=True)):
        np.testing.assert_allclose(local[place] + local[half + place], expected - mean, atol=1e-9)
    assert 1e-4 < max(np.abs(mean).max() for mean in score) < 0.1


@pytest.mark.slow
def test_one_component_is_the_exact_posterior_of_a_conjugate_model():
    x = np.array([[1.0, 0.2], [1.0, -1.0], [1.0, 1.7], [1.0, 0.4]])
    rows = np.column_stack([x, Y])
    model = LogDensity(lambda theta, row: -0.5 * jnp.square(row[2] - row[:2] @ theta), expectation=Points())
    prior = AnyForm.of(Mixture.normal(2, 1), visits=3, draws=8)
    result = run(
        methods.sequential(LBFGS(tolerance=1e-14)), model, prior, federate(np.split(rows, 2)), rounds=1, tolerance=None
    )
    precision = np.eye(2) + x.T @ x
    found = result.posterior.q.form
    root = np.tril(found.roots[0], -1) + np.diag(np.exp(np.diagonal(found.roots[0])))
    # noise has mean 0 and covariance 1, so that the free energy of a Gaussian is exact; what is left is L-BFGS's
    np.testing.assert_allclose(found.means[0], np.linalg.solve(precision, x.T @ Y), atol=1e-6)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), atol=1e-6)


@pytest.mark.slow
def test_a_run_that_stops_goes_on_from_its_checkpoint_until_there_is_no_room(tmp_path):
    prior = AnyForm.of(Flow.of(Mixture.normal(2, 1), layers=2, units=2), visits=2, draws=8)
    method = methods.sequential(LBFGS(max_steps=2))
    settings = {"tolerance": None, "rounds": 5}
    whole = run(method, MODEL, prior, PARTS, **settings)
    assert whole.status is Status.BUDGET_SPENT
    assert "no room for another visit" in whole.message
    path = tmp_path / "run.npz"
    run(method, MODEL, prior, PARTS, communications=1, tolerance=None, store=Checkpoint(path))
    again = run(method, MODEL, prior, PARTS, **settings, store=Checkpoint(path))
    np.testing.assert_array_equal(on_grid(again.posterior.q), on_grid(whole.posterior.q))
