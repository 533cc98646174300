import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from partita import Gradient, InputError, LogisticRegression, MeanFieldGaussian, Table
from partita.data import federate
from partita.expectations import MonteCarlo
from partita.local.solvers import Outcome
from support.small_problems import KEY, X, Y, problem, scipy_optimum, solve

PRIOR = MeanFieldGaussian.standard_normal(3)


@pytest.mark.parametrize(
    ("batch_size", "width", "sizes"),
    [(8, 8, [8] * 5), (7, 7, [7, 7, 7, 7, 7, 5]), (30, 27, [20, 20]), (100, 80, [40])],
    ids=["divides 40", "leaves a rest", "evenly", "more than all"],
)
def test_an_epoch_of_mini_batches_is_all_rows_once(batch_size, width, sizes):
    """Σ_b (n_b / N) ell_b = ell, so that each batch is an unbiased estimate; padding is never drawn.

    Of 40 rows, padded to 80, batches of at most 30 are two of 20, and no program has room for 30.
    """
    twice = Table(np.tile(X, (2, 1)), np.tile(Y, 2))
    weights = np.random.default_rng(2).uniform(0.5, 2.0, 40)
    shard = federate([Table(X, Y), twice], weights=[weights, np.ones(80)], buckets=1).shards[0]
    assert len(shard.weights) == 80
    model, solver = LogisticRegression(), Gradient(batch_size=batch_size)
    q = MeanFieldGaussian.from_mean_sd(jnp.array([1.0, -0.5, 0.2]), 0.5)
    batches = len(sizes)

    @jax.jit
    def next_batch(order, index):
        batch, order = solver._batch(shard, order, index, KEY)
        return model.ell(q, batch.data, batch.weights, KEY), batch.data.x[:, 0], order

    order, visits = jnp.arange(80), []
    for epoch in range(2):
        total, visited = 0.0, []
        for place in range(batches):
            ell, column, order = next_batch(order, epoch * batches + place)
            assert len(column) == width
            rows = sizes[place]
            total += rows / 40 * ell
            visited += column[:rows].tolist()
        np.testing.assert_allclose(total, model.ell(q, shard.data, shard.weights, KEY), rtol=1e-12)
        assert sorted(visited) == sorted(X[:, 0])
        visits.append(visited)
    assert (visits[0] != visits[1]) == (batch_size < 80)


@pytest.mark.parametrize(
    ("solver", "model"),
    [
        (Gradient(learning_rate=0.02, batch_size=8, max_steps=2000), LogisticRegression()),
        (Gradient(learning_rate=0.02, max_steps=2000), LogisticRegression(expectation=MonteCarlo(10))),
    ],
    ids=["mini-batches", "draws"],
)
def test_noisy_gradients_end_near_the_optimum(solver, model):
    """A learning rate of 0.02 leaves Adam wandering by about 0.02 in six coordinates of curvature about ten."""

    @jax.jit
    @jax.vmap
    def free_energies(key):
        return problem(PRIOR).free_energy(solver.solve(problem(PRIOR, model=model), key).q, key)

    best = scipy_optimum(X, Y, 1.0, "mean-field")[0]
    found = free_energies(jax.random.split(KEY, 100))
    assert found.max() <= best + 1e-9
    # the mean of a hundred runs has a standard error of 0.0007
    assert best - found.mean() < 6 * 10 * 0.02**2 / 2


def test_a_plain_step_in_natural_coordinates_is_the_gradient():
    """∇_η F = Fisher · (target − η), with target = context · ∇_μ ell."""
    start = MeanFieldGaussian.from_mean_sd(jnp.array([0.4, -0.2, 0.1]), 0.8)
    task = problem(PRIOR, start)
    solver = Gradient(optimiser=optax.sgd, coordinates="natural", learning_rate=0.01, max_steps=1)
    found = solve(solver, task, KEY).q
    target = PRIOR * task.likelihood_factor(start, KEY)
    expected = 0.01 * start.fisher() @ jax.flatten_util.ravel_pytree(target / start)[0]
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(found / start)[0], expected, rtol=1e-9)


def test_too_large_a_learning_rate_returns_the_best_iterate():
    task = problem(PRIOR)
    solution = solve(Gradient(learning_rate=30.0, max_steps=50), task, KEY)
    assert solution.q.is_proper()
    assert solution.free_energy >= task.free_energy(PRIOR, KEY)
    last = solve(Gradient(learning_rate=30.0, max_steps=50, keep_best=False), task, KEY)
    assert last.free_energy < task.free_energy(PRIOR, KEY)


def test_a_step_to_an_improper_member_is_not_taken():
    downhill = Gradient(optimiser=lambda rate: optax.sgd(-rate), coordinates="natural", learning_rate=30.0)
    solution = solve(downhill, problem(PRIOR), KEY)  # its precision falls
    assert Outcome(int(solution.outcome)) == Outcome.IMPROPER
    assert solution.q.is_proper()


@pytest.mark.parametrize(("window", "patience", "steps"), [(7, 1, 14), (7, 3, 28), (30, 1, 60)])
def test_convergence_is_judged_on_whole_windows_of_steps(window, patience, steps):
    """With an infinite tolerance the second block is the first that can be compared."""
    solution = solve(Gradient(window=window, patience=patience, tolerance=np.inf), problem(PRIOR), KEY)
    assert (int(solution.outcome), int(solution.steps)) == (Outcome.CONVERGED, steps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coordinates": "polar"}, "'polar'.*unconstrained, natural"),
        ({"batch_size": 0}, "batch size must be a whole number, 1 or more, not 0"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Gradient(**settings)
