"""`prop:local-global-fp`: one damped fixed-point step per client and round is the damped fixed point of global VI."""

import numpy as np
import pytest

from partita import Damped, FullGaussian, LinearRegression, LogisticRegression, MeanFieldGaussian, Method, Synchronous
from partita.local.solvers import FixedPoint
from support import reference
from support.trajectories import assert_equal, natural, shards, trajectory

RATE, ROUNDS, NOISE = 0.3, 10, 0.7
LOGISTIC = LogisticRegression(), reference.logistic, reference.logistic_data()
LINEAR = LinearRegression(NOISE), reference.linear(NOISE), reference.linear_data(noise=NOISE)
PROBLEMS = {
    "mean-field logistic": (MeanFieldGaussian, *LOGISTIC),
    "full logistic": (FullGaussian, *LOGISTIC),
    "full linear": (FullGaussian, *LINEAR),
}


def states(problem, clients, inner, outer, steps=1):
    family, model, _, data = PROBLEMS[problem]
    parts = shards(reference.divide(*data, reference.SIZES[clients]))
    method = Method(FixedPoint(inner, max_steps=steps, backtrack=False), Synchronous(), Damped(outer))
    return trajectory(method, model, family.standard_normal(3), parts, ROUNDS)


@pytest.mark.parametrize(("inner", "outer"), [(RATE, 1.0), (1.0, RATE)], ids=["clients damp", "server damps"])
@pytest.mark.parametrize("clients", [1, 3, 10])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_one_step_a_round_is_the_global_fixed_point(problem, clients, inner, outer):
    family, _, rows, data = PROBLEMS[problem]
    prior = eta = natural(family.standard_normal(3))
    for state in states(problem, clients, inner, outer):
        assert_equal(state.posterior, eta, 1e-10)
        eta = reference.damped_fixed_point(eta, prior, *data, rows, RATE)
    assert np.abs(eta[0] - prior[0]).max() > 0.5


def test_several_steps_per_round_differ_from_global_steps():
    alone, three = (natural(states("mean-field logistic", k, RATE, 1.0, steps=2)[1].posterior)[0] for k in (1, 3))
    assert np.abs(alone - three).max() > 1e-2
