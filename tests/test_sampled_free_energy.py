"""A free energy that is estimated by draws has a standard error, uses draws of its own, and says what it is."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import partita as pt
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import RemoteEngine
from partita.expectations import Expectation, LocalReparameterisation, MonteCarlo
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.server.aggregation.base import divergence
from partita.server.bound import Evaluation, evaluated, global_free_energy
from partita.server.state import init
from partita.server.stopping import Budget, Stopping
from support.weather import FaultyLink

GENERATOR = np.random.default_rng(3)
ROWS, DIMENSIONS, NOISE = 60, 4, 0.8
X = GENERATOR.normal(size=(ROWS, DIMENSIONS))
Y = X @ GENERATOR.normal(size=DIMENSIONS) + NOISE * GENERATOR.normal(size=ROWS)
# sorted by the response, so that clients differ, and their likelihoods pull q in different ways
ORDER = np.argsort(Y)
PARTS = pt.split(pt.Table(X[ORDER], Y[ORDER]), np.array_split(np.arange(ROWS), 3))
PRIOR = pt.FullGaussian.standard_normal(DIMENSIONS)
EVIDENCE = float(stats.multivariate_normal(np.zeros(ROWS), X @ X.T + NOISE**2 * np.eye(ROWS)).logpdf(Y))
SEEDS = 200


@functools.cache
def exact():
    """The posterior, at which the free energy is log p(y)."""
    method, model = pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(NOISE)
    return pt.run(method, model, PRIOR, PARTS.pooled(), rounds=2).posterior.q


class Jittered(Expectation):
    """An expectation of a user, which says no more than that it is drawn."""

    deterministic = False

    def rows(self, model, q, data, key):
        return MonteCarlo(3).rows(model, q, data, key)


SAMPLED = {
    "ten draws": MonteCarlo(10),
    "one draw": MonteCarlo(1),
    "forty draws": MonteCarlo(40),
    "ten local draws": LocalReparameterisation(10),
    "one local draw": LocalReparameterisation(1),
    "a user's own": Jittered(),
}


def model_of(expectation):
    return pt.LinearRegression(NOISE, expectation=expectation)


def engine_of(expectation, parts=PARTS, solver=None):
    engine = pt.LocalEngine(parts)
    engine.bind(pt.methods.sequential(solver or pt.Conjugate()).recipe(model_of(expectation)), PRIOR)
    return engine


@pytest.mark.parametrize("name", SAMPLED)
def test_the_error_is_the_spread_over_seeds_and_the_mean_is_the_evidence(name):
    """Of 200 seeds the mean has an error of sd/√200, and the sd one of 5%; draws of a χ² have heavier tails.

    A mean over its own standard error of n draws is like Student's t, with variance (n − 1)/(n − 3): 15/13 of sixteen.
    """
    engine = engine_of(SAMPLED[name])
    found = [evaluated(engine, init(PRIOR, PARTS.names, seed), PRIOR, exact()) for seed in range(SEEDS)]
    values, errors = (np.array([getattr(each, field) for each in found]) for field in ("value", "error"))
    assert (errors > 0).all()
    assert len(set(values)) == SEEDS
    assert abs(values.mean() - EVIDENCE) < 4 * values.std(ddof=1) / np.sqrt(SEEDS)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(ddof=1), rel=0.2)
    # the variance of 200 squares of mean 1 has a standard error of 10%, of heavier tails somewhat more
    assert 0.65 < np.mean(((values - EVIDENCE) / errors) ** 2) < 1.7


def test_draws_that_a_solver_climbed_on_lie_above_the_evidence_and_fresh_ones_do_not():
    """With two draws q is fitted to them, as every parameter can be; the solver's own number is no bound."""
    model, key, seed = model_of(MonteCarlo(2)), jax.random.key(0), 0
    shard, one = PARTS.pooled().shards[0], jnp.asarray(1.0)
    problem = Problem(model, shard, Factor.of(PRIOR), one, PRIOR, one)
    climbed = jax.jit(pt.solvers.LBFGS().solve)(problem, key).q
    engine, state = engine_of(MonteCarlo(2), PARTS.pooled()), init(PRIOR, ["all"], seed)
    assert global_free_energy(engine, state, PRIOR, climbed) > EVIDENCE + 0.5
    value, error = evaluated(engine, state, PRIOR, climbed)
    assert value < EVIDENCE
    assert 0 < error < EVIDENCE - value


SOLVER = pt.solvers.FixedPoint(0.3, max_steps=5, tolerance=None)
ABOVE = 7
"""A seed with which ten draws, fewer than for an error, gave a "bound" 0.49 above log p(y)."""


def run(expectation, **options):
    options = {"partition": PARTS, "rounds": 4, "seed": ABOVE} | options
    return pt.run(pt.methods.sequential(SOLVER), model_of(expectation), PRIOR, **options)


def test_a_run_by_draws_reports_no_bound_above_the_evidence():
    result = run(MonteCarlo(10), rounds=10)
    assert result.free_energy - 3 * result.free_energy_error < EVIDENCE
    assert 0 < result.free_energy_error < 3
    assert result.history["free_energy_error"].shape == result.history["free_energy"].shape
    assert result.history["free_energy_error"][-1] == result.free_energy_error
    assert re.search(r"free energy -\d+\.\d+ ± \d\.\d+ so far \(estimated with 16 fresh draws\)", repr(result))
    assert "bound" not in repr(result)


@pytest.mark.parametrize("expectation", [MonteCarlo(1), LocalReparameterisation(1)])
def test_one_draw_suffices_for_a_standard_error(expectation):
    result = run(expectation, rounds=1)
    assert np.isfinite(result.free_energy_error)
    assert result.free_energy_error > 0


def test_draws_of_one_theta_for_all_clients_cancel_what_pulls_them_apart():
    """Clients' gradients at q sum to the prior's, which is small; with draws of their own their errors would add."""
    together, apart = (engine_of(MonteCarlo(100), parts) for parts in (PARTS.pooled(), PARTS))
    state = init(PRIOR, PARTS.names)
    whole = evaluated(together, init(PRIOR, ["all"]), PRIOR, exact())
    assert evaluated(apart, state, PRIOR, exact()) == pytest.approx(whole, rel=1e-10)


def test_a_computed_free_energy_has_no_error_and_is_a_lower_bound():
    result = pt.run(pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(NOISE), PRIOR, PARTS, rounds=2)
    assert result.free_energy_error == 0
    assert "free_energy_error" not in result.history.columns
    engine, state = engine_of(None), init(PRIOR, PARTS.names)
    known = global_free_energy(engine, state, PRIOR, result.posterior.q)
    assert result.free_energy == known
    assert f"free energy {known:.6g} (a lower bound)" in repr(result).replace(" so far", "")


@pytest.mark.parametrize("expectation", [MonteCarlo(10), LocalReparameterisation(1)])
def test_messages_carry_the_same_estimate(expectation):
    method = pt.methods.sequential(SOLVER)
    named = zip(PARTS.names, PARTS.shards, strict=True)
    recipe = method.recipe(model_of(expectation))
    link = FaultyLink({name: ClientEndpoint(name, recipe, PRIOR, shard) for name, shard in named})
    engine = RemoteEngine(link, dict(zip(PARTS.names, PARTS.sizes, strict=True)))
    there, here = run(expectation, partition=None, engine=engine), run(expectation)
    for column in ("free_energy", "free_energy_error"):
        np.testing.assert_array_equal(there.history[column], here.history[column])


@pytest.mark.parametrize("every", [0, 1])
def test_a_resumed_run_reports_the_same_numbers(tmp_path, every):
    column = "free_energy" if every else "reported_free_energy"
    options = {"monitor": pt.Monitor(every=every)}
    whole = run(MonteCarlo(10), **options).history
    for rounds in (2, 4):
        resumed = run(MonteCarlo(10), rounds=rounds, store=pt.Checkpoint(tmp_path / "run.npz"), **options).history
    np.testing.assert_array_equal(resumed[column], whole[column])
    np.testing.assert_array_equal(resumed[f"{column}_error"], whole[f"{column}_error"])


@pytest.mark.parametrize("expectation", [MonteCarlo(10), LocalReparameterisation(1)])
def test_what_clients_report_has_an_error_too(expectation):
    """Each client's draws are its own, so that the variances of what all report of one q add up."""
    engine, values, errors = engine_of(expectation, solver=SOLVER), [], []
    for seed in range(SEEDS):
        state = dataclasses.replace(init(PRIOR, PARTS.names, seed), posterior=exact())
        said = [engine.answer(state.task(k, str(k))).info for k in range(len(PARTS))]
        values.append(sum(float(info.ell) for info in said) - float(divergence(exact(), PRIOR)))
        errors.append(np.sqrt(sum(float(info.ell_variance) for info in said)))
    assert abs(np.mean(values) - EVIDENCE) < 4 * np.std(values) / np.sqrt(SEEDS)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values, ddof=1), rel=0.2)


def test_a_run_adds_up_what_clients_report():
    result = run(MonteCarlo(10), monitor=pt.Monitor(every=0))
    row, state = result.history.rows[-1], result.state
    assert row["reported_free_energy_error"] == np.sqrt(state.ell_variance.sum()) > 0
    assert "free_energy" not in result.history.columns
    assert np.isnan(result.free_energy_error)


def test_what_clients_report_of_computed_expectations_has_no_error():
    options = {"rounds": 2, "monitor": pt.Monitor(every=0)}
    result = pt.run(pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(NOISE), PRIOR, PARTS, **options)
    assert "reported_free_energy" in result.history.columns
    assert "reported_free_energy_error" not in result.history.columns


@pytest.mark.parametrize(("error", "status"), [(None, "diverged"), (0.1, "diverged"), (1.0, "budget spent")])
def test_a_free_energy_that_fell_by_no_more_than_its_error_has_not_fallen(error, status):
    """From 2 to 0.5 where the prior has 0; of two values with error 1, three standard errors are 4.2."""
    errors = {} if error is None else {"free_energy_error": error}
    history = pt.History([{"free_energy": value, "refused": {}} | errors for value in (2.0, 0.5)])
    stopping = Stopping(Budget(np.inf, 0, np.inf), 1e-6, Evaluation(0.0, error or 0.0), history)
    assert stopping.ending(init(PRIOR, PARTS.names)).status.value == status
