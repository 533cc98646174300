"""`prop:local-global-gradient`: one plain gradient step in η per client and round is gradient ascent on the global F.

The coordinates are η = (Λm, Λ). Gradient ascent depends on that choice, the property holds for any linear one.
`Gradient` keeps the best q it has seen, so it holds for rates at which a step raises every client's free energy.
"""

import numpy as np
import optax
import pytest

from partita import Damped, Gradient, LogisticRegression, MeanFieldGaussian, Method, Synchronous
from support import reference
from support.trajectories import assert_equal, natural, shards, trajectory

RATE, ROUNDS = 0.02, 8
X, Y = reference.logistic_data()
PRIOR = MeanFieldGaussian.standard_normal(3)


def states(clients, steps):
    parts = shards(reference.divide(X, Y, reference.SIZES[clients]))
    solver = Gradient(optax.sgd, learning_rate=RATE, max_steps=steps, coordinates="natural")
    return trajectory(Method(solver, Synchronous(), Damped(1.0)), LogisticRegression(), PRIOR, parts, ROUNDS)


@pytest.fixture(scope="module")
def ascent():
    """η ← η + ρ dF/dη on the pooled data."""
    etas = [natural(PRIOR)]
    for _ in range(ROUNDS):
        slope = reference.gradient(etas[-1], etas[0], X, Y, reference.logistic)
        etas.append(reference.product(etas[-1], reference.power(slope, RATE)))
    return etas


def test_reference_gradient_is_the_derivative_of_the_free_energy(ascent):
    prior, eta = ascent[0], np.concatenate(ascent[3])

    def free_energy(flat):
        return reference.free_energy((flat[:3], flat[3:]), prior, X, Y, reference.logistic)

    slope = np.concatenate(reference.gradient(ascent[3], prior, X, Y, reference.logistic))
    # central differences of step h err by h² and by rounding / h: about 1e-9
    differences = [(free_energy(eta + h) - free_energy(eta - h)) / 2e-5 for h in 1e-5 * np.eye(6)]
    np.testing.assert_allclose(slope, differences, atol=1e-7)


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_one_step_a_round_is_global_gradient_ascent(clients, ascent):
    for state, eta in zip(states(clients, 1), ascent, strict=True):
        assert_equal(state.posterior, eta, 1e-10)
    assert np.abs(ascent[-1][0] - ascent[0][0]).max() > 0.5


def test_several_steps_per_round_differ_from_global_steps(ascent):
    alone, three = (natural(states(clients, 2)[-1].posterior)[0] for clients in (1, 3))
    assert np.abs(alone - three).max() > 1e-2
