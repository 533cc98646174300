"""Undamped sequential PVI is automatically normalised (`sec:pvi:pvi_flavours`): Z_q = ∫ p(θ) Π t_m(θ) dθ stays 1."""

import numpy as np
import pytest

from partita import Damped, LogisticRegression, MeanFieldGaussian, Method, Sequential, Synchronous
from partita.local.objective import log_partition
from support import reference
from support.trajectories import EXACT, natural, shards, trajectory

PARTS = shards(reference.divide(*reference.logistic_data(15, 1, seed=2), (4, 5, 6)))
PRIOR = MeanFieldGaussian.standard_normal(1)
THETA, VOLUME = reference.grid(1)


def states(schedule, damping, steps):
    return trajectory(Method(EXACT, schedule, Damped(damping)), LogisticRegression(), PRIOR, PARTS, steps)


def log_z(state):
    """log Z_q by quadrature over θ, from the factors' natural parameters and scales."""
    parts = [reference.log_factor(natural(t), THETA) + float(t.log_scale) for t in state.factors]
    return reference.log_integral(reference.log_density(natural(PRIOR), THETA) + sum(parts), VOLUME)


@pytest.mark.parametrize("order", ["fixed", "random", "residual"])
def test_undamped_sequential_steps_leave_the_normaliser_at_one(order):
    for state in states(Sequential(order), 1.0, 7):
        assert log_z(state) == pytest.approx(0, abs=1e-12)
        assert float(log_partition(PRIOR, state.factors)) == pytest.approx(0, abs=1e-12)
    assert all(abs(float(t.log_scale)) > 0.1 for t in state.factors)


@pytest.mark.parametrize(("schedule", "damping"), [(Synchronous(), 0.3), (Synchronous(), 1.0), (Sequential(), 0.5)])
def test_the_normaliser_is_tracked_for_damped_or_parallel_steps(schedule, damping):
    for state in states(schedule, damping, 4)[1:]:
        assert abs(log_z(state)) > 1e-3
        assert float(log_partition(PRIOR, state.factors)) == pytest.approx(log_z(state), abs=1e-12)


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_a_factor_is_a_power_of_a_ratio_of_normalised_densities(damping):
    """t_k = (q_k / q)^ρ t_k, with its scale, after the first round."""
    for factor in states(Synchronous(), damping, 1)[-1].factors:
        answer = reference.product(natural(PRIOR), reference.power(natural(factor), 1 / damping))
        ratio = reference.log_density(answer, THETA) - reference.log_density(natural(PRIOR), THETA)
        log_values = reference.log_factor(natural(factor), THETA) + float(factor.log_scale)
        np.testing.assert_allclose(log_values, damping * ratio, rtol=0, atol=1e-11)
