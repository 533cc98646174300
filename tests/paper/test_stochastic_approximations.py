"""Appendix B.7, `sec:stochastic-approx`: two stochastic approximations beside NumPy, and what tells them apart."""

import jax
import numpy as np
import pytest

from partita import FullGaussian, LogisticRegression, MeanFieldGaussian, Schedule, methods
from partita.local.solvers import FixedPoint, NaturalGradient
from partita.numerics.rates import RobbinsMonro
from support import reference
from support.small_problems import KEY, problem, solve
from support.trajectories import assert_equal, natural, shards, trajectory

MODEL = LogisticRegression()
X, Y = reference.logistic_data()
CLIENTS = reference.divide(X, Y, reference.SIZES[3])
PRIOR = FullGaussian.standard_normal(3)
ETA_0 = natural(PRIOR)
RATES = {"constant": 0.25, "falling": RobbinsMonro(0.6, delay=4.0, power=0.8)}


def rate_of(damping, step):
    return damping if isinstance(damping, float) else 0.6 * (1 + step / 4.0) ** -0.8


def minus(eta):
    return reference.power(eta, -1.0)


def slope(eta, k):
    return reference.natural_gradient(eta, *CLIENTS[k], reference.logistic)


@pytest.mark.parametrize("rate", RATES)
def test_the_stochastic_global_update_is_the_papers_in_both_forms(rate):
    """`eq:stoch-global` and `eq:stoch-global-EP`: also PVI with one average factor (`sec:stochastic_pep`)."""
    method = methods.stochastic_fixed_point(RATES[rate], "fixed")
    eta = ep = ETA_0
    for step, state in enumerate(trajectory(method, MODEL, PRIOR, shards(CLIENTS), 7)):
        assert_equal(state.posterior, eta, 1e-11)
        assert_equal(state.posterior, ep, 1e-11)
        k, rho = step % 3, rate_of(RATES[rate], step)
        batches = 30 / len(CLIENTS[k][1])
        target = reference.product(ETA_0, reference.power(slope(eta, k), batches))
        eta = reference.product(reference.power(eta, 1 - rho), reference.power(target, rho))
        like = reference.product(ep, minus(ETA_0))
        change = reference.product(slope(ep, k), reference.power(like, -1 / batches))
        ep = reference.product(ep, reference.power(change, rho * batches))


@pytest.mark.parametrize("participants", [1, 2])
@pytest.mark.parametrize("rate", RATES)
def test_the_stochastic_local_update_is_the_papers_in_both_forms(rate, participants):
    """`eq:stoch-local` and `eq:stoch-local-EP`, of groups one at a time or in batches."""
    method = methods.stochastic_local(RATES[rate], participants=participants)
    eta, sites, before = ETA_0, [reference.power(ETA_0, 0.0)] * 3, None
    for step, state in enumerate(trajectory(method, MODEL, PRIOR, shards(CLIENTS), 7)):
        if before is not None:
            chosen = np.flatnonzero(state.versions > before.versions)
            assert len(chosen) == participants
            rho, at = rate_of(RATES[rate], step - 1), eta
            for k in chosen:
                change = reference.product(slope(at, k), minus(sites[k]))
                eta = reference.product(eta, reference.power(change, rho))
                sites[k] = reference.product(reference.power(sites[k], 1 - rho), reference.power(slope(at, k), rho))
        assert_equal(state.posterior, eta, 1e-11)
        for k in range(3):
            assert_equal(state.factors[k], sites[k], 1e-11)
        before = state


@pytest.fixture(scope="module")
def optimum():
    return solve(FixedPoint(tolerance=1e-20), problem(PRIOR, x=X, y=Y), KEY).q


def test_mini_batches_with_falling_rates_end_at_global_vis_fixed_point(optimum):
    """KL to it falls as the rate does, as one over the steps; with a constant rate it stays what the noise makes it."""

    def away(damping, steps):
        solver = FixedPoint(damping, max_steps=steps, tolerance=None, backtrack=False, batch_size=6)
        task = problem(PRIOR, x=X, y=Y)
        return np.mean([float(solve(solver, task, jax.random.key(seed)).q.kl(optimum)) for seed in range(6)])

    falling = [away(RobbinsMonro(0.5, delay=50.0), steps) for steps in (100, 1_000, 10_000)]
    assert falling[0] > 4 * falling[1] > 16 * falling[2]
    assert min(away(0.1, steps) for steps in (100, 1_000)) > 10 * falling[2]


def test_a_batch_is_of_random_rows_that_stand_for_all(optimum):
    """Steps of a visit and visits see other rows, and on average a batch says what all rows say."""
    task = problem(PRIOR, x=X, y=Y, start=optimum)
    single = NaturalGradient(batch_size=10)
    found = [natural(solve(single, task, jax.random.key(seed)).q)[0] for seed in range(300)]
    exact = natural(solve(NaturalGradient(), task, KEY).q)[0]
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(error > 0.01)
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 4 * error)


class Visits(Schedule):
    """Clients in an order that is given."""

    order: tuple[int, ...]

    def select(self, turns):
        return [self.order[turns.turn]]


def ell(q, k):
    return reference.ell(natural(q), *CLIENTS[k], reference.logistic)[0]


def test_iterated_on_new_data_the_global_update_forgets_and_the_local_one_does_not():
    """Two batches whose inputs differ: the first is seen, and then the second again and again."""
    x = X.copy()
    x[:15] += [2.0, 0.0, 0.0]
    x[15:] -= [0.0, 2.0, 0.0]
    halves = reference.divide(x, Y, [15, 15])
    both = reference.solve_full(ETA_0, x, Y, reference.logistic)
    order = (0,) * 60 + (1,) * 60
    ends = []
    for named in (methods.stochastic_fixed_point(0.3), methods.stochastic_local(0.6)):
        method = type(named)(named.solver, Visits(order), named.aggregation, named.context)
        states = trajectory(method, MODEL, PRIOR, shards(halves), len(order))
        ends.append([reference.kl(natural(states[turn].posterior), both) for turn in (60, 120)])
    (_, forgot), (half, remembered) = ends
    # the global update fits the second batch alone, counted twice
    twice = reference.solve_full(ETA_0, np.repeat(halves[1][0], 2, 0), np.repeat(halves[1][1], 2), reference.logistic)
    assert forgot == pytest.approx(reference.kl(twice, both), rel=1e-4)
    assert forgot > 10 * remembered
    assert remembered < half / 10


def test_on_iid_batches_the_global_update_is_faster_with_rates_above_one():
    """Ten batches of one kind, seen once: where a factor is not known yet, the average of the others stands in.

    So ρ' may begin at the number of batches and fall. With ρ' = 1 it is no faster than the local update, whose first
    step is the same; after the first pass the local update has no noise left, and wins.
    """
    x, y = reference.logistic_data(rows=400)
    batches = shards(reference.divide(x, y, [40] * 10))
    best = reference.solve_full(ETA_0, x, y, reference.logistic)

    def left(method):
        states = trajectory(method, MODEL, PRIOR, batches, 20)
        return np.array([reference.kl(natural(state.posterior), best) for state in states])

    local = left(methods.stochastic_local(1.0, "fixed"))
    falling = left(methods.stochastic_fixed_point(RobbinsMonro(1.0), "fixed"))
    one = left(methods.stochastic_fixed_point(0.1, "fixed"))
    assert np.all(falling[[2, 3, 4, 10]] < local[[2, 3, 4, 10]] / 3)
    assert one[1] == pytest.approx(local[1], rel=1e-12)
    assert np.all(one[2:11] > local[2:11])
    assert falling[20] > 3 * local[20]


@pytest.mark.parametrize("clients", [4, 12])
def test_the_global_update_keeps_one_set_of_natural_parameters(clients):
    """And global VI too, while the local update has a factor for each client."""

    def sets(method, steps):
        parts = shards([(X[:1], Y[:1])] * clients)
        state = trajectory(method, MODEL, MeanFieldGaussian.standard_normal(3), parts, steps)[-1]
        return state.factors.nbytes / sum(leaf.nbytes for leaf in jax.tree.leaves(state.factors[0]))

    assert sets(methods.stochastic_fixed_point(), clients) == 1
    assert sets(methods.global_vi(), 2) == 1
    assert sets(methods.stochastic_local(), clients) == clients
