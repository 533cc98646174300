"""`prop:fixed-point`: what the local free energies say about the global one, and what they do not.

Where q = p · Π t_m, Σ_m F_m − F is −(M − 1) KL(q ‖ q*) up to a constant. So the gradients add up, but the Hessians do
not as the paper's proof has it: Σ_m Hess F_m = Hess F − (M − 1) C with C the Fisher matrix.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from partita import Damped, LogDensity, LogisticRegression, MeanFieldGaussian, Method, Sequential, Synchronous
from partita.data import federate
from partita.expectations import Expectation
from partita.families.factor import Factor
from partita.local.context import Cavity
from partita.local.objective import Problem
from partita.local.solvers.gradient import from_coordinates, to_coordinates
from partita.server.bound import partition_free_energy
from support import reference
from support.trajectories import EXACT, FAMILIES, KEY, natural, shards, trajectory

M = 3
MODEL = LogisticRegression()
DATA = reference.logistic_data()
CLIENTS = reference.divide(*DATA, reference.SIZES[M])
PARTS = shards(CLIENTS)


def local_problems(model, parts, state):
    one = jnp.asarray(1.0)
    contexts = [Cavity()(state.prior, state.posterior, factor, one) for factor in state.factors]
    return [Problem(model, s, c, one, state.posterior, one) for s, c in zip(parts.shards, contexts, strict=True)]


@eqx.filter_jit
def derivatives_in(coordinates, problem):
    """Gradient and Hessian of a problem's free energy where it starts, in "natural" or "unconstrained" coordinates."""
    z, unravel = ravel_pytree(to_coordinates(problem.start, coordinates))

    def value(z):
        return problem.free_energy(from_coordinates(problem.start, unravel(z), coordinates), KEY)

    def slope(z):
        return (jax.grad(value)(z),) * 2

    hessian, gradient = jax.jacfwd(slope, has_aux=True)(z)
    return gradient, hessian


@pytest.fixture(scope="module", params=FAMILIES)
def derivatives(request):
    """Of each F_m and of F, after one damped step and at a fixed point; with the Fisher matrix there."""
    prior = request.param.standard_normal(3)
    states = [
        trajectory(Method(EXACT, Synchronous(), Damped(0.4)), MODEL, prior, PARTS, 1)[-1],
        trajectory(Method(EXACT, Sequential()), MODEL, prior, PARTS, 20 * M)[-1],
    ]
    pooled = shards([DATA]).shards[0]
    found = []
    for state in states:
        local = local_problems(MODEL, PARTS, state)
        whole = Problem(MODEL, pooled, Factor.of(prior), jnp.asarray(1.0), state.posterior, jnp.asarray(1.0))
        gradients, hessians = zip(*[derivatives_in("natural", problem) for problem in [*local, whole]], strict=True)
        found.append((np.array(gradients), np.array(hessians), reference.fisher(natural(state.posterior))))
    return found


def test_gradients_add_up_and_vanish_at_a_fixed_point(derivatives):
    (on_the_way, _, _), (at_fixed_point, _, _) = derivatives
    np.testing.assert_allclose(on_the_way[:M].sum(axis=0), on_the_way[M], rtol=0, atol=1e-11)
    assert np.abs(on_the_way).max(axis=1).min() > 0.1
    # the solver's answers are exact to rounding, in natural parameters of size 10
    np.testing.assert_allclose(at_fixed_point, 0, atol=1e-11)


def test_hessians_add_up_but_for_the_fisher_matrix(derivatives):
    for _, hessians, fisher in derivatives:
        np.testing.assert_allclose(hessians[:M].sum(axis=0), hessians[M] - (M - 1) * fisher, rtol=0, atol=1e-10)
        assert np.abs(fisher).max() > 0.1


class SecondMoments(Expectation):
    """E_q[log N(y; θ₁θ₂, 1)] of a mean-field q, exactly."""

    def rows(self, model, q, data, key):
        square = jnp.prod(q.mean**2 + q.variance)
        return -(jnp.log(2 * jnp.pi) + data**2 - 2 * data * jnp.prod(q.mean) + square) / 2


def log_density(theta, y):
    return jax.scipy.stats.norm.logpdf(y, theta[0] * theta[1])


@pytest.fixture(scope="module")
def counterexample():
    """y = 5 ~ N(θ₁θ₂, 1), the likelihood as ten tenth powers, under PVI from the prior."""
    model = LogDensity(log_density, expectation=SecondMoments())
    parts = federate([np.array([5.0])] * 10, weights=[np.array([0.1])] * 10)
    prior = MeanFieldGaussian.standard_normal(2)
    return model, parts, trajectory(Method(EXACT, Synchronous(), Damped(0.5)), model, prior, parts, 60)[-1]


def free_energy(z, y=5.0):
    """F of means z[:2] and log standard deviations z[2:], by hand."""
    m, v = z[:2], np.exp(2 * z[2:])
    expected = -(np.log(2 * np.pi) + y**2 - 2 * y * m.prod() + (m**2 + v).prod()) / 2
    return expected - np.sum(v + m**2 - 1 - np.log(v)) / 2


def test_a_fixed_point_can_be_a_saddle_of_the_global_free_energy(counterexample):
    model, parts, state = counterexample
    golden = (np.sqrt(5) - 1) / 2  # v = 1 / (1 + v)
    np.testing.assert_allclose(state.posterior.mean, 0, atol=1e-12)
    np.testing.assert_allclose(state.posterior.variance, golden, atol=1e-12)

    local = local_problems(model, parts, state)[0]
    whole = eqx.tree_at(lambda p: (p.shard.weights, p.context), local, (jnp.ones(1), Factor.of(state.prior)))
    (by_client, of_client), (by_all, of_all) = (derivatives_in("unconstrained", problem) for problem in (local, whole))
    np.testing.assert_allclose([by_client, by_all], 0, atol=1e-12)
    # in the means: −1/v on the diagonal, and beside it y/10 for a client but y for all of them
    assert np.linalg.eigvalsh(of_client)[-1] == pytest.approx(0.5 - 1 / golden, abs=1e-10)
    assert np.linalg.eigvalsh(of_all)[-1] == pytest.approx(5 - 1 / golden, abs=1e-10)
    assert np.linalg.eigvalsh(of_all)[-2] < 0


def test_the_saddle_is_the_highest_point_of_every_local_problem(counterexample):
    model, parts, state = counterexample
    z, unravel = ravel_pytree(state.posterior.unconstrained())
    draws = z + jax.random.normal(KEY, (2000, 4)) * jnp.array([3.0, 3.0, 1.0, 1.0])

    @eqx.filter_jit
    def values(problem, z):
        return jax.vmap(lambda z: problem.free_energy(state.posterior.with_unconstrained(unravel(z)), KEY))(z)

    for local in local_problems(model, parts, state):
        assert values(local, draws).max() < values(local, z[None])[0]


def test_the_saddle_lies_far_below_the_maximum(counterexample):
    model, parts, state = counterexample
    z = np.asarray(ravel_pytree(state.posterior.unconstrained())[0])
    saddle = partition_free_energy(model, parts, state.prior, state.posterior, seed=0)
    assert saddle == pytest.approx(free_energy(z), abs=1e-12)
    best = minimize(lambda z: -free_energy(z), z + 0.1)
    # without the likelihood's constant −½ log 2π it is −12.790 against −6.109
    assert saddle == pytest.approx(-13.709, abs=1e-3)
    assert -best.fun == pytest.approx(-7.028, abs=1e-3)
