"""Algorithm 1 (`alg:vmp`): what holds after every step, and how runs end."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.client import update
from partita.engines import LocalEngine, local
from partita.families import product
from partita.partition import partition
from partita.pvi import global_free_energy, init, step

_generator = np.random.default_rng(0)
_x = np.column_stack([np.ones(60), _generator.normal(size=(60, 2))])
_y = (_x[:, 1] + _generator.logistic(size=60) > 0).astype(float)

# One small problem for all the files about runs: its shapes, and so its compiled programs, are shared.
PARTS = pt.split(pt.Table(_x, _y), pt.equal_random(60, 3))
MODEL, PRIOR = pt.LogisticRegression(), pt.MeanFieldGaussian.standard_normal(3)
SOLVER = pt.FixedPoint(tolerance=1e-16)
SCHEDULES = {
    "fixed": (pt.Sequential(), None),
    "random": (pt.Sequential("random"), None),
    "residual": (pt.Sequential("residual"), None),
    "synchronous": (pt.Synchronous(), None),
    "subset": (pt.RandomSubset(2), None),
    "asynchronous": (pt.Asynchronous(), (1.0, 10.0, 4.0)),
}
AGGREGATIONS = {
    "undamped": pt.Damped(),
    "damped": pt.Damped(0.3),
    "1/M": pt.Damped(None),
    "backtracking": pt.Backtracking(),
    "watching": pt.Backtracking(watch_free_energy=True),
}


class Repelled(pt.LinearRegression):
    """A likelihood exp(0.3 θ²) of one row with x = 1, whose factor has the precision −0.6."""

    def expected_log_density(self, mean, variance, data):
        return 0.3 * (mean**2 + variance)


def correlated():
    """Six clients and four columns that are almost the same.

    With M clients and D equal columns an exact undamped synchronous round of a mean-field q multiplies the error of
    the mean along (1, …, 1) by 1 − MD/(M + D − 1), here −5/3: it diverges, and every precision stays positive.
    """
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 1)) + 0.1 * generator.normal(size=(60, 4))
    data = pt.Table(x, x.sum(axis=1) + generator.normal(size=60))
    return pt.LinearRegression(), pt.MeanFieldGaussian.standard_normal(4), pt.split(data, pt.equal_random(60, 6))


def answering(change):
    """A client update whose replies are put through `change(reply, index of the client in PARTS)`."""

    def changed(*arguments):
        index = next(k for k, shard in enumerate(PARTS.shards) if shard is arguments[4])
        return change(update(*arguments), index)

    return changed


def from_client_1(change):
    """The same, where only the answers of client 1 are changed."""
    return answering(lambda reply, index: change(reply) if index == 1 else reply)


def not_finite(reply):
    """The reply of a client whose arithmetic broke down."""
    natural = eqx.tree_at(lambda q: q.precision, reply.delta.natural, replace_fn=lambda leaf: leaf.at[0].set(jnp.nan))
    return eqx.tree_at(lambda r: (r.delta.natural, r.info.finite), reply, (natural, jnp.asarray(False)))


def improper(reply):
    """A reply that takes far more precision away than there is."""
    return eqx.tree_at(lambda r: r.delta.natural.precision, reply, replace_fn=lambda leaf: leaf - 1e6)


def assert_product(state):
    # a handful of sums of numbers of order 10: rounding leaves 1e-14
    whole = product(state.prior, *[factor.natural for factor in state.factors])
    np.testing.assert_allclose(ravel_pytree(state.posterior)[0], ravel_pytree(whole)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_posterior_is_prior_times_factors_after_every_step(schedule, aggregation):
    """`eq:approx`."""
    turns, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, turns, AGGREGATIONS[aggregation])
    engine, state = LocalEngine(PARTS, speeds), init(PRIOR, 3)
    for _ in range(9):
        state, _ = step(method, MODEL, engine, state)
        assert_product(state)
    assert sum(state.versions) >= 3
    assert state.posterior.kl(PRIOR) > 1


@pytest.mark.parametrize("fault", [not_finite, improper])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_refused_answers_are_recorded_and_change_nothing(schedule, fault, monkeypatch):
    turns, speeds = SCHEDULES[schedule]
    monkeypatch.setattr(local, "update", from_client_1(fault))
    method = pt.Method(SOLVER, turns, pt.Damped(0.5))
    engine, state = LocalEngine(PARTS, speeds), init(PRIOR, 3)
    refused = 0
    for _ in range(9):
        before = state
        state, event = step(method, MODEL, engine, before)
        assert_product(state)
        assert set(event.refusals) == {1} & set(event.clients)
        if event.refusals:
            refused += 1
            others = set(event.clients) - {1} if fault is not_finite else set()
            assert event.refusals[1].startswith("is not finite" if fault is not_finite else "would make the posterior")
            assert state.residual[1] == np.inf
            assert bool(others) or eqx.tree_equal(state.posterior, before.posterior)
            same = [eqx.tree_equal(a, b) for a, b in zip(state.factors, before.factors, strict=True)]
            assert same == [k not in others for k in range(3)]
            assert state.versions == tuple(v + (k in others) for k, v in enumerate(before.versions))
    assert refused > 1
    assert eqx.tree_equal(state.factors[1], init(PRIOR, 3).factors[1])


def test_a_step_leaves_the_state_it_was_given():
    state = init(PRIOR, 3)
    copies = {field.name: np.copy(getattr(state, field.name)) for field in dataclasses.fields(state) if field.name in ("residual", "age")}
    step(pt.methods.synchronous(SOLVER), MODEL, LocalEngine(PARTS), state)
    assert eqx.tree_equal(state.posterior, PRIOR)
    assert state.versions == (0, 0, 0)
    for name, copy in copies.items():
        np.testing.assert_array_equal(getattr(state, name), copy)
