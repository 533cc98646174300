import jax
import numpy as np
import pytest

from partita import LogisticRegression, Method, Table, federate, run
from partita.errors import InputError
from partita.expectations import GridQuadrature, MonteCarlo
from partita.local.solvers import LBFGS, AlphaDivergence, MomentMatching
from support.small_problems import FAMILIES, KEY, X, Y, problem, solve

ROWS = Table(X[:8, :2], Y[:8])
GRID = GridQuadrature(40)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("alpha", [0.5, pytest.param(0.1, marks=pytest.mark.slow)])
def test_it_ends_at_a_fixed_point_of_moment_matching(family, alpha):
    """`alg:pep_alpha` and `alg:pep` for a client with all rows: the same posterior and the same evidence."""
    prior = family.standard_normal(2, 1.5)
    found = solve(AlphaDivergence(alpha=alpha, rule=GRID, tolerance=1e-15), problem(prior, x=ROWS.x, y=ROWS.y), KEY)
    method = Method(MomentMatching(alpha, GRID))
    matched = run(method, LogisticRegression(), prior, federate([ROWS]), tolerance=None, rounds=40)
    for a, b in zip(jax.tree.leaves(found.q), jax.tree.leaves(matched.state.posterior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found.free_energy == pytest.approx(matched.history.rows[-1]["log_evidence"], abs=1e-8)


def test_as_alpha_vanishes_it_is_the_maximum_of_the_free_energy():
    prior = FAMILIES["full"].standard_normal(2)
    task = problem(prior, model=LogisticRegression(GRID), x=ROWS.x, y=ROWS.y)
    bound = solve(LBFGS(tolerance=1e-15), task, KEY)
    apart = []
    for alpha in (1e-2, 1e-3, 1e-4):
        found = solve(AlphaDivergence(alpha=alpha, rule=GRID, tolerance=1e-15), task, KEY)
        apart.append(float(found.free_energy - bound.free_energy))
    np.testing.assert_allclose(np.divide(apart[:-1], apart[1:]), 10, rtol=0.05)


def test_its_objective_lies_between_the_free_energy_and_the_evidence():
    """log E_q[(p̂/q)^α] / α grows with α for a fixed q, and is log ∫ p̂ at 1 (Li and Turner 2016)."""
    prior = FAMILIES["full"].standard_normal(2)
    task = problem(prior, x=ROWS.x, y=ROWS.y)
    axis = np.linspace(-9, 9, 301)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = -np.logaddexp(0, (theta @ ROWS.x.T) * (1 - 2 * ROWS.y)).sum(axis=1) - (theta**2).sum(axis=1) / 2
    log_evidence = np.log(np.exp(log_joint).sum() * (axis[1] - axis[0]) ** 2 / (2 * np.pi))
    q = solve(LBFGS(), task, KEY).q
    values = [
        float(AlphaDivergence(alpha=a, rule=GRID).alpha_problem(task).free_energy(q, KEY))
        for a in (0.01, 0.3, 0.6, 0.99)
    ]
    assert (np.diff([*values, log_evidence]) > 0).all()


def test_monte_carlo_agrees_with_the_grid():
    prior = FAMILIES["mean-field"].standard_normal(2)
    task = problem(prior, x=ROWS.x, y=ROWS.y)
    exact = solve(AlphaDivergence(rule=GRID), task, KEY)
    drawn = solve(AlphaDivergence(rule=MonteCarlo(2000)), task, KEY)
    np.testing.assert_allclose(drawn.q.mean, exact.q.mean, atol=0.05)
    np.testing.assert_allclose(drawn.q.sd, exact.q.sd, rtol=0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_alpha_not_strictly_between_zero_and_one_is_refused(alpha):
    with pytest.raises(InputError, match="above 0 and below 1"):
        AlphaDivergence(alpha=alpha)
