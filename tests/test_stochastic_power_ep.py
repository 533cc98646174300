"""Stochastic power EP (`alg:spep`) beside one written in NumPy, its limit, and what it keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr

from partita import (
    Asynchronous,
    FullGaussian,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    MeanFieldGaussian,
    Method,
    Sequential,
    Table,
    federate,
    methods,
    run,
)
from partita.errors import InputError
from partita.expectations import GaussHermite, GridQuadrature
from partita.local.context import Prior
from partita.local.solvers import FixedPoint, MomentMatching, PowerEP
from partita.models import ProbitRegression
from partita.results.history import History
from partita.server.aggregation import Shared
from partita.server.membership import retire
from partita.server.monitor import Monitor
from partita.server.state import init
from partita.server.step import dispatch
from partita.storage.checkpoint import load, save
from partita.storage.ledger import Ledger

_generator = np.random.default_rng(1)
X = _generator.normal(size=(30, 2))
Y = (_generator.uniform(size=30) < 0.5 + 0.4 * np.tanh(X @ [2.0, -1.0])).astype(float)
SIZES = np.cumsum([6, 10])
CLIENTS = [Table(x, y) for x, y in zip(np.split(X, SIZES), np.split(Y, SIZES), strict=True)]
PARTS = federate(CLIENTS)


def plain_sep(clients, order, damping):
    """EP with one average site t for all N rows: q = p · t^N; a client's rows are matched against q / t."""
    rows = sum(len(client.y) for client in clients)
    shift, precision = np.zeros(2), np.eye(2)
    for k in order:
        average_shift, average = shift / rows, (precision - np.eye(2)) / rows
        covariance = np.linalg.inv(precision - average)
        mean = covariance @ (shift - average_shift)
        total_shift, total = np.zeros(2), np.zeros((2, 2))
        for x, y in zip(*clients[k], strict=True):
            sign = 2 * y - 1
            m, v = x @ mean, x @ covariance @ x
            z = sign * m / np.sqrt(1 + v)
            ratio = np.exp(-(z**2) / 2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
            new_mean = m + sign * v * ratio / np.sqrt(1 + v)
            new_variance = v - v**2 * ratio * (z + ratio) / (1 + v)
            tau = 1 / new_variance - 1 / v
            total += tau * np.outer(x, x)
            total_shift += (new_mean / new_variance - m / v) * x
        times = rows / len(clients[k].y)
        shift = (1 - damping) * shift + damping * times * total_shift
        precision = (1 - damping) * precision + damping * (np.eye(2) + times * total)
    return shift, precision


def test_its_steps_are_those_of_a_plain_implementation():
    prior = FullGaussian.standard_normal(2)
    method = methods.stochastic_power_ep(1.0, 0.3, order="fixed")
    result = run(method, ProbitRegression(), prior, PARTS, rounds=3)
    shift, precision = plain_sep(CLIENTS, [0, 1, 2] * 3, 0.3)
    np.testing.assert_allclose(result.state.posterior.precision_mean, shift, rtol=1e-9)
    np.testing.assert_allclose(result.state.posterior.precision, precision, rtol=1e-9)


@pytest.mark.parametrize("family", [pytest.param(MeanFieldGaussian, marks=pytest.mark.slow), FullGaussian])
def test_as_alpha_vanishes_it_is_mini_batch_global_vi(family):
    """`prop:sep`, step by step: the difference is a multiple of α over four decades.

    Below, the two rules of quadrature are what differs.
    """
    prior, model = family.standard_normal(2), LogisticRegression(GaussHermite(64))
    plain = FixedPoint(max_steps=1, backtrack=False)
    stochastic = Method(plain, Sequential(), Shared(0.3), Prior(rescaled=True))
    limit = run(stochastic, model, prior, PARTS, rounds=2).state.posterior
    alphas = 10.0 ** -np.arange(2, 7)
    apart = []
    for alpha in alphas:
        method = methods.stochastic_power_ep(alpha, 0.3, order="fixed")
        q = run(method, model, prior, PARTS, rounds=2).state.posterior
        apart.append(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs(q, limit))))
    slopes = np.diff(np.log10(apart)) / np.diff(np.log10(alphas))
    np.testing.assert_allclose(slopes, 1, atol=0.01)


def mixture(theta, y):
    """log of a density with two bumps, of which the data do not say which they come from."""
    return jnp.logaddexp(-((y - theta[0]) ** 2) / 2, -((y + 1 - theta[0] / 2) ** 2) - 0.3)


HEIGHTS = np.random.default_rng(2).normal(0.8, 1.2, 9)


def test_for_a_mixture_its_step_is_that_of_the_paper():
    """`alg:spep` on a fine grid: q · (p(y_k) / t)^α is matched, and q moves by M·ρ/α of the way in its parameters."""
    alpha, damping, parts = 0.5, 0.1, federate(np.split(HEIGHTS, 3))
    method = methods.stochastic_power_ep(alpha, damping, "fixed", rows=False)
    model, prior = LogDensity(mixture, expectation=GridQuadrature()), MeanFieldGaussian.standard_normal(1)
    before, after = (run(method, model, prior, parts, communications=n).state.posterior for n in (1, 2))
    theta = np.linspace(-12, 12, 20_001)
    mean, precision = float(before.mean[0]), float(before.precision[0])
    log_q, log_prior = -precision * (theta - mean) ** 2 / 2, -(theta**2) / 2
    likelihood = sum(np.asarray(jax.vmap(lambda one, y=y: mixture(one[None], y))(theta)) for y in HEIGHTS[3:6])
    log_tilted = log_q + alpha * (likelihood - (log_q - log_prior) / 3)
    mass = np.exp(log_tilted - log_tilted.max())
    mass /= mass.sum()
    centre = mass @ theta
    matched = np.array([centre, 1.0]) / (mass @ (theta - centre) ** 2)
    natural = np.array([mean * precision, precision])
    expected = natural + 3 * damping / alpha * (matched - natural)
    np.testing.assert_allclose([after.precision_mean[0], after.precision[0]], expected, rtol=1e-9)


def test_as_alpha_vanishes_it_is_mini_batch_global_vi_for_a_mixture():
    """`prop:sep`, step by step with damping, over four decades, with grids so fine that these differ by less."""
    model, prior = LogDensity(mixture, expectation=GridQuadrature(96)), MeanFieldGaussian.standard_normal(1)
    parts = federate([HEIGHTS[:4], HEIGHTS[4:]])

    def posterior(solver):
        method = Method(solver, Sequential(), Shared(0.1), Prior(rescaled=True))
        return run(method, model, prior, parts, rounds=2).state.posterior

    limit = posterior(FixedPoint(max_steps=1, backtrack=False))
    alphas = 10.0 ** -np.arange(2, 7)
    found = [posterior(MomentMatching(alpha, GridQuadrature(96))) for alpha in alphas]
    apart = [np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs(q, limit))) for q in found]
    np.testing.assert_allclose(np.diff(np.log10(apart)) / np.diff(np.log10(alphas)), 1, atol=0.02)


@pytest.mark.parametrize("participants", [1, 2])
def test_the_posterior_is_the_prior_times_one_shared_factor_per_client(participants):
    prior = FullGaussian.standard_normal(2)
    method = methods.stochastic_power_ep(participants=participants)
    state = run(method, LogisticRegression(), prior, PARTS, rounds=4).state
    assert all(a is b for a in state.factors for b in state.factors)
    for found, expected in pairs(state.posterior, prior * state.memory.factor.natural**3):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(InputError, match="Shared"):
        retire(state, state.names[0], method.aggregation)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("rows", [True, False])
def test_its_evidence_is_exact_for_a_conjugate_model(alike, rows):
    """Where clients are alike, one at a time suffices; of one size, they speak for everybody once all have answered."""
    x, y = X[:, :1], X @ [1.0, 0.5]
    apart = [Table(x[k : k + 10], y[k : k + 10]) for k in (0, 10, 20)]
    tables = apart[:1] * 3 if alike else apart
    x, y = (np.concatenate(column) for column in zip(*tables, strict=True))
    marginal = x @ x.T + 0.5**2 * np.eye(30)
    exact = -(y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2
    method = methods.stochastic_power_ep(0.5, 0.5, participants=1 if alike else 3, rows=rows)
    prior, model = FullGaussian.standard_normal(1), LinearRegression(0.5)
    result = run(method, model, prior, federate(tables), rounds=60, tolerance=None, monitor=Monitor(every=0))
    assert result.history.rows[-1]["log_evidence"] == pytest.approx(exact, abs=1e-8)


def test_the_servers_memory_does_not_grow_with_the_number_of_clients():
    def kept(clients):
        parts = federate([Table(X[:2], Y[:2])] * clients)
        state = run(
            methods.stochastic_power_ep(),
            LogisticRegression(),
            FullGaussian.standard_normal(2),
            parts,
            communications=3,
            monitor=Monitor(every=0),
        ).state
        arrays = {id(leaf): leaf.nbytes for leaf in jax.tree.leaves((state.posterior, state.factors, state.memory))}
        return sum(arrays.values())

    assert kept(10) == kept(10_000)


def in_ledger(state, path):
    ledger = Ledger(path, durable=False)
    state, _ = ledger.load(state)
    ledger.close(state, History(), last=True)
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Ledger(path).load(state)[0]


def in_checkpoint(state, path):
    save(path, state, History())
    return load(path, state)[0]


@pytest.mark.parametrize("kept", [in_ledger, in_checkpoint])
@pytest.mark.parametrize("schedule", [Sequential(), Asynchronous()], ids=lambda one: type(one).__name__)
def test_the_saved_state_does_not_grow_with_the_number_of_clients(kept, schedule, tmp_path):
    """But for a client's name, a few counters and its task: a thousand clients more take less than factors would."""
    method = Method(PowerEP(), schedule, Shared())

    def written(clients):
        """The size of the file, and how many arrays there are once it is read."""
        first = init(FullGaussian.standard_normal(60), [f"client {k}" for k in range(clients)], aggregation=Shared())
        read = kept(dispatch(method, first, np.zeros(clients, bool)), tmp_path / f"{clients}")
        assert len(read.factors) == clients
        tasks = [(task.posterior, task.factor) for task in read.in_flight]
        arrays = jax.tree.leaves((read.posterior, read.factors, read.memory, tasks))
        return (tmp_path / f"{clients}").stat().st_size, len({id(leaf) for leaf in arrays})

    one = 60 * 61 * 8
    (few, arrays), (many, same_arrays) = written(10), written(1010)
    assert many - few < 1000 * one / 50
    assert arrays == same_arrays


def test_its_fixed_point_for_small_alpha_is_that_of_global_vi():
    """Clients of one size that all answer stand for themselves; the difference is a multiple of α."""
    prior, model = FullGaussian.standard_normal(2), LogisticRegression(GaussHermite(64))
    parts = federate([Table(x, y) for x, y in zip(np.split(X, 3), np.split(Y, 3), strict=True)])
    best = run(methods.sequential(), model, prior, parts.pooled(), tolerance=1e-12).state.posterior
    apart = []
    for alpha in (1e-2, 1e-4):
        method = methods.stochastic_power_ep(alpha, 0.5, participants=3)
        found = run(method, model, prior, parts, rounds=60, monitor=Monitor(every=0)).state.posterior
        apart.append(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs(found, best))))
    assert apart[0] / apart[1] == pytest.approx(100, rel=0.02)


def pairs(first, second):
    return zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
