"""Stochastic natural-gradient EP (Hasenclever et al. 2017): where it ends, with exact moments and with draws."""

import jax.numpy as jnp
import numpy as np
import pytest

from partita import InputError, Method, Synchronous, methods, run
from partita.families.factor import Factor
from partita.server.aggregation import StochasticLoop
from partita.server.monitor import Monitor
from partita.server.schedules import RandomSubset
from partita.server.stopping import Status
from support.row_each import CLIENTS, MODEL, PRIOR, ROWS, flat, one_row, plain


@pytest.mark.parametrize(
    ("alpha", "schedule"), [(1.0, Synchronous()), (0.5, RandomSubset(2))], ids=["all", "two at a time"]
)
def test_with_exact_moments_it_converges_to_the_double_loops_solution(alpha, schedule):
    """Which is where power EP ends if it is damped (`test_double_loop`)."""
    method = Method(one_row(alpha), schedule, StochasticLoop(alpha, 0.5, 0.5))
    result = run(method, MODEL, PRIOR, ROWS, rounds=500, tolerance=1e-16, monitor=Monitor(every=0))
    assert result.status is Status.CONVERGED
    expected = plain(alpha, 1 / CLIENTS, 400)
    np.testing.assert_allclose(flat(result.state.posterior), flat(expected.state.posterior), rtol=1e-6, atol=1e-6)
    assert result.history.rows[-1]["log_evidence"] == pytest.approx(expected.log_evidence, abs=1e-10)


def test_with_monte_carlo_it_stays_within_the_sampling_error():
    """θ forgets over 1/τ = 10 rounds of 4 clients with 200 draws each: √(4 / 2,000), 0.045 standard deviations.

    The evidence is lower by about 0.05, of which draws four times as many leave a quarter, with a noise of 0.03.
    """
    method = methods.snep(1.0, samples=200, step=0.3, outer=0.1)
    result = run(method, MODEL, PRIOR, ROWS, rounds=300, seed=1, monitor=Monitor(every=0))
    reference = plain(1.0, 1 / CLIENTS, 400)
    estimate, exact = (run.history.rows[-1]["log_evidence"] for run in (result, reference))
    assert estimate == pytest.approx(exact, abs=0.05 + 3 * 0.03)
    found, expected = result.state.posterior, reference.state.posterior
    assert np.max(np.abs(found.mean - expected.mean) / expected.sd) < 3 * 0.045
    np.testing.assert_allclose(found.sd, expected.sd, rtol=3 * 0.045)
    assert np.max(np.abs(expected.mean) / expected.sd) > 1, "the prior would pass"


def test_an_improper_answer_is_refused_and_the_others_count():
    aggregation = StochasticLoop(1.0)
    iterate = aggregation.init(PRIOR, 2)
    good, bad = (Factor(PRIOR**power, jnp.zeros(())) for power in (1.0, -2.0))
    assert aggregation.update(iterate, {1: bad}, lambda q: 0.0).iterate is iterate
    pair = aggregation.update(iterate, {0: good, 1: bad}, lambda q: 0.0)
    alone = aggregation.update(iterate, {0: good}, lambda q: 0.0)
    assert list(pair.refusals) == [1]
    np.testing.assert_array_equal(flat(pair.iterate.posterior), flat(alone.iterate.posterior))
    np.testing.assert_array_equal(flat(pair.iterate.factors[1].natural), 0)
    assert np.all(flat(alone.iterate.posterior)[1] > 1)


@pytest.mark.parametrize(
    "settings", [{"step": 0.0}, {"step": -1.0}, {"outer": 0.0}, {"outer": 1.5}, {"alpha": 0.0}, {"alpha": 1.5}]
)
def test_steps_and_powers_outside_zero_to_one_are_refused(settings):
    for make in (StochasticLoop, methods.snep):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            make(**settings)
