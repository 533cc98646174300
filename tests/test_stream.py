"""Batches one after another: against closed forms, one-pass methods and the fit of all rows at once."""

import dataclasses

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import partita as pt
from partita.errors import InputError
from partita.server.bound import partition_free_energy
from support import reference
from support.problems import FULL, MODEL, PARTS, SOLVER
from support.trajectories import assert_equal, natural

GENERATOR = np.random.default_rng(3)
X = np.column_stack([np.ones(36), GENERATOR.normal(size=(36, 2))])
BATCHES = [pt.Table(X[k : k + 9], X[k : k + 9] @ [1.0, 2.0, -1.0] + GENERATOR.normal(size=9)) for k in range(0, 36, 9)]
CONJUGATE = pt.Stream(pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(), FULL)
LOGISTIC = pt.Stream(pt.methods.sequential(SOLVER), MODEL, FULL, draws=50)


def rows(parts, name):
    return parts.only(name).shards[0].data


def all_of(stream, parts=PARTS):
    for name in parts.names:
        stream = stream.add(rows(parts, name), name)
    return stream


def apart(first, second):
    """The larger KL of two posteriors."""
    return max(float(first.q.kl(second.q)), float(second.q.kl(first.q)))


@pytest.fixture(scope="module")
def conjugate():
    stream = CONJUGATE
    for batch in BATCHES:
        stream = stream.add(batch)
    return stream


@pytest.fixture(scope="module")
def logistic():
    return all_of(LOGISTIC)


def predictive(k):
    """log p(y_k | y_<k) of the k-th batch, from the density of all responses."""
    x = np.concatenate([batch.x for batch in BATCHES[: k + 1]])
    y = np.concatenate([batch.y for batch in BATCHES[: k + 1]])
    first = 9 * k
    joint = [
        stats.multivariate_normal.logpdf(y[:n], cov=x[:n] @ x[:n].T + np.eye(n)) if n else 0.0
        for n in (first, first + 9)
    ]
    return joint[1] - joint[0]


def test_of_a_conjugate_model_gains_are_conditional_evidences(conjugate):
    """They sum to log p(y), which the free energy reaches."""
    np.testing.assert_allclose(
        [batch.gain for batch in conjugate.batches], [predictive(k) for k in range(4)], rtol=1e-9
    )
    np.testing.assert_allclose(conjugate.free_energy, sum(predictive(k) for k in range(4)), rtol=1e-9)
    assert conjugate.names == ("batch 1", "batch 2", "batch 3", "batch 4")
    assert [batch.rows for batch in conjugate.batches] == [9] * 4
    assert conjugate.without("batch 2").add(BATCHES[0]).names == ("batch 1", "batch 3", "batch 4", "batch 2")


def test_scores_are_predictive_densities_before_a_batch_is_taken_in(conjugate):
    """Of 1,000 draws; the densities of single rows, in closed form."""
    before = CONJUGATE
    for k, batch in enumerate(BATCHES):
        mean, covariance = np.asarray(before.posterior.q.moments()[0]), np.asarray(before.posterior.q.covariance)
        x, y = np.asarray(batch.x), np.asarray(batch.y)
        exact = stats.norm.logpdf(y, x @ mean, np.sqrt(1 + np.einsum("nd,de,ne->n", x, covariance, x))).sum()
        assert abs(conjugate.batches[k].score - exact) < 0.7, k
        before = before.add(batch)


def test_with_powers_of_factors_what_is_long_ago_is_forgotten(conjugate):
    stream = dataclasses.replace(CONJUGATE, remember=0.5)
    for batch in BATCHES:
        stream = stream.add(batch)
    powers = [0.5**age for age in (3, 2, 1, 0)]
    precision = np.eye(3) + sum(power * batch.x.T @ batch.x for power, batch in zip(powers, BATCHES, strict=True))
    np.testing.assert_allclose(stream.posterior.q.covariance, np.linalg.inv(precision), rtol=1e-9)
    shift = sum(power * batch.x.T @ batch.y for power, batch in zip(powers, BATCHES, strict=True))
    np.testing.assert_allclose(stream.posterior.mean, np.linalg.solve(precision, shift), rtol=1e-9)


@pytest.mark.parametrize(
    "method", [pt.methods.sequential(SOLVER), pt.methods.streaming_vb(SOLVER), pt.methods.vcl(SOLVER)]
)
def test_without_revisits_it_is_streaming_vb(method):
    once = pt.run(pt.methods.streaming_vb(SOLVER), MODEL, FULL, PARTS, rounds=1)
    found = all_of(pt.Stream(method, MODEL, FULL, draws=0)).posterior
    np.testing.assert_allclose(*(ravel_pytree(each.q)[0] for each in (found, once.posterior)), rtol=1e-6, atol=1e-7)


def test_the_free_energy_stands_for_rows_that_are_gone(logistic):
    """Of a likelihood that factors only approximate: near that of the rows, and equal once all were revisited."""
    exact = partition_free_energy(MODEL, PARTS, FULL, logistic.posterior.q, 0)
    assert 0 < abs(logistic.free_energy - exact) < 0.05
    assert logistic.free_energy == pytest.approx(sum(batch.gain for batch in logistic.batches), rel=1e-12)
    settled = logistic.revisit(PARTS, tolerance=1e-12)
    assert settled.free_energy == pytest.approx(partition_free_energy(MODEL, PARTS, FULL, settled.posterior.q, 0))
    assert settled.free_energy == pytest.approx(settled.result.free_energy)
    pooled = pt.run(pt.methods.sequential(SOLVER), MODEL, FULL, PARTS.pooled(), tolerance=1e-12)
    assert abs(settled.free_energy - pooled.free_energy) < 1e-9
    assert apart(settled.posterior, pooled.posterior) < 1e-9
    one = logistic.revisit(PARTS, rounds=1)
    assert apart(one.posterior, pooled.posterior) < 1e-4 < 1e-2


def test_without_a_batch_it_is_the_stream_that_never_had_it(logistic):
    rest = PARTS.without("client 1")
    fewer = logistic.without("client 1", rest, tolerance=1e-12)
    never = all_of(LOGISTIC, rest).revisit(rest, tolerance=1e-12)
    assert apart(fewer.posterior, never.posterior) < 1e-9
    assert abs(fewer.free_energy - never.free_energy) < 1e-9
    divided = logistic.without("client 1")
    assert divided.names == fewer.names == ("client 0", "client 2")
    np.testing.assert_allclose(
        divided.posterior.q.precision, (logistic.posterior.q / logistic.factor("client 1").natural).precision
    )
    again = fewer.add(rows(PARTS, "client 1"), "client 1").revisit(PARTS, tolerance=1e-12)
    assert apart(again.posterior, logistic.revisit(PARTS, tolerance=1e-12).posterior) < 1e-9


def test_learned_noise_stays_until_all_rows_are_seen():
    stream = pt.Stream(pt.methods.sequential(learn=["noise"]), pt.LinearRegression(), FULL, draws=0)
    first = stream.add(BATCHES[0], "a")
    second = first.add(BATCHES[1], "b")
    assert float(first.state.hyper["noise"]) != 1.0
    assert float(second.state.hyper["noise"]) == float(first.state.hyper["noise"])
    parts = pt.federate(BATCHES[:2], names=["a", "b"])
    both = pt.run(pt.methods.sequential(learn=["noise"]), pt.LinearRegression(), FULL, parts)
    again = second.revisit(parts)
    np.testing.assert_allclose(again.state.hyper["noise"], both.state.hyper["noise"], rtol=1e-3)
    assert again.free_energy == pytest.approx(both.free_energy, abs=1e-5)


def test_a_stream_goes_on_from_its_file(tmp_path, logistic):
    path = tmp_path / "stream.npz"
    logistic.save(path)
    found = LOGISTIC.load(path)
    assert found.batches == logistic.batches
    assert found.free_energy == logistic.free_energy
    more = BATCHES[0]._replace(y=(BATCHES[0].y > 0).astype(float))
    first, second = (stream.add(more, "more") for stream in (found, logistic))
    np.testing.assert_array_equal(*(ravel_pytree(stream.posterior.q)[0] for stream in (first, second)))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="corrupt"):
        LOGISTIC.load(path)


def test_a_stream_goes_on_from_a_run():
    result = pt.run(LOGISTIC.method, MODEL, FULL, PARTS)
    stream = pt.Stream.of(LOGISTIC.method, MODEL, FULL, result, PARTS)
    assert stream.names == PARTS.names
    assert stream.free_energy == pytest.approx(result.free_energy)


MISTAKES = {
    "batch named 'client 0' already": lambda stream: stream.add(BATCHES[0], "client 0"),
    "no batch named 'x'": lambda stream: stream.without("x"),
    "labels are 0 or 1": lambda stream: stream.add(BATCHES[0], "x"),
    "columns of shape|columns and the prior|do not fit": lambda stream: stream.add(
        pt.Table(np.ones((2, 5)), np.ones(2)), "x"
    ),
    "empty": lambda stream: stream.add(pt.Table(np.ones((0, 3)), np.ones(0)), "x"),
    "real numbers": lambda stream: stream.add(pt.Table(np.full((2, 3), "a"), np.ones(2)), "x"),
    "only batch": lambda stream: stream.without("client 0").without("client 1").without("client 2"),
    "no batch yet": lambda stream: LOGISTIC.save("nowhere.npz"),
    "no file": lambda stream: LOGISTIC.load("nowhere.npz"),
    "no batch named 'all'": lambda stream: stream.revisit(PARTS.pooled()),
    "counts rows again": lambda stream: dataclasses.replace(stream, method=pt.methods.streaming_vb()).revisit(PARTS),
    "does not keep a factor": lambda stream: pt.Stream(pt.methods.global_vi(learning_rate=0.01), MODEL, FULL),
    "remembered": lambda stream: pt.Stream(pt.methods.sequential(), MODEL, FULL, remember=0),
    "belong together": lambda stream: pt.Stream(pt.methods.sequential(), MODEL, FULL, state=stream.state),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said, logistic):
    with pytest.raises(InputError, match=said) as refused:
        MISTAKES[said](logistic)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("remember", [1.0, pytest.param(0.7, marks=pytest.mark.slow)])
def test_a_stream_without_factors_has_the_posterior_and_the_evidence_of_one_with_them(remember, tmp_path):
    """`vcl` is this with one visit to each client: q is the next prior, and what is kept does not grow."""
    rows = [pt.Table(*part) for part in reference.divide(*reference.logistic_data(), [8, 10, 12])]
    prior, model = pt.FullGaussian.standard_normal(3), pt.LogisticRegression()
    method = pt.methods.sequential(pt.Newton(tolerance=1e-16))
    kept, gone = (pt.Stream(method, model, prior, remember=remember, draws=0, keep=keep) for keep in (True, False))
    for batch in rows:
        kept, gone = kept.add(batch, rounds=1, tolerance=None), gone.add(batch, rounds=1, tolerance=None)
    assert_equal(gone.posterior.q, natural(kept.posterior.q), 1e-6)
    assert len(gone.state.factors) == 1
    assert gone.names == kept.names
    if remember == 1:
        once = pt.run(pt.methods.vcl(pt.Newton(tolerance=1e-16)), model, prior, pt.federate(rows))
        assert_equal(gone.posterior.q, natural(once.state.posterior), 1e-6)
        assert gone.free_energy == pytest.approx(kept.free_energy, abs=1e-6)
    gone.save(tmp_path / "stream.npz")
    read = pt.Stream(method, model, prior, remember=remember, draws=0, keep=False).load(tmp_path / "stream.npz")
    assert read.batches == gone.batches or all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(read.batches[-1][1:], gone.batches[-1][1:], strict=True)
    )
    again = [stream.add(rows[0], "again", rounds=1, tolerance=None).posterior.q for stream in (read, gone)]
    np.testing.assert_array_equal(again[0].precision, again[1].precision)
    with pytest.raises(pt.InputError, match="keeps no factors"):
        gone.revisit(pt.federate(rows[:1], names=["batch 1"]))


@pytest.mark.slow
def test_streaming_vb_is_a_stream_that_counts_rows_again():
    rows = [pt.Table(*part) for part in reference.divide(*reference.logistic_data(), [14, 16])]
    prior, model, solver = pt.FullGaussian.standard_normal(3), pt.LogisticRegression(), pt.Newton(tolerance=1e-16)
    method = pt.methods.streaming_vb(solver)
    twice = pt.run(method, model, prior, pt.federate(rows), rounds=2, tolerance=None)
    stream = pt.Stream(method, model, prior, draws=0, keep=False)
    for place, batch in enumerate(rows * 2):
        stream = stream.add(batch, f"batch {place}")
    assert_equal(stream.posterior.q, natural(twice.state.posterior), 1e-6)
