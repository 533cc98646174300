"""Standard deviations of independent coefficients, beside those of full covariance: when it is said, and when not."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.models import UnknownNoiseRegression
from partita.results.mean_field import MAX_COLUMNS, MeanFieldCheck, independence, ratios

SAYS = "with full covariance"
RNG = np.random.default_rng(3)


def correlated(r, rows=120):
    """Two columns with mean square 1 whose correlation is exactly r, and a third that is orthogonal to both."""
    basis = np.linalg.qr(RNG.normal(size=(rows, 3)))[0] * np.sqrt(rows)
    return np.c_[basis[:, 0], r * basis[:, 0] + np.sqrt(1 - r**2) * basis[:, 1], basis[:, 2]]


def fit(x, y, model, family=pt.MeanFieldGaussian, scale=1.0, method=None, clients=3, prior=None, **options):
    parts = pt.split(pt.Table(x, y), np.array_split(np.arange(len(x)), clients))
    prior = prior or family.standard_normal(x.shape[1], scale)
    return pt.run(method or pt.methods.sequential(), model, prior, parts, monitor=pt.Monitor(every=0), **options)


def binary(x, coefficients):
    return (RNG.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ coefficients))).astype(float)


@pytest.mark.parametrize(("ratio", "said"), [(1.19, False), (1.21, True)])
def test_it_is_said_from_a_fifth_on(ratio, said):
    """Linear regression with a flat prior: the ratio of the two standard deviations is 1/√(1 − r²)."""
    x = correlated(np.sqrt(1 - 1 / ratio**2))
    y = x @ [1.0, 0.0, -1.0] + RNG.normal(size=len(x))
    result = fit(x, y, pt.LinearRegression(), scale=1e4, rounds=500)
    assert result.status is pt.Status.CONVERGED
    exact = np.sqrt(np.diag(np.linalg.inv(x.T @ x + 1e-8 * np.eye(3))))
    np.testing.assert_allclose(exact / result.posterior.sd, [ratio, ratio, 1], rtol=1e-6)
    np.testing.assert_allclose(result.posterior.mean_field.found, [ratio, ratio, 1] if said else 1, rtol=1e-6)
    for text in (repr(result), str(result.posterior.summary())):
        assert (SAYS in text) == said
        for name, named in {"theta[0]": said, "theta[1]": said, "theta[2]": False}.items():
            assert (f"that of {name} is 1.21 times as large" in text) == named
        assert text.endswith(": use a FullGaussian as the prior.") == said


def test_a_column_that_is_there_twice_is_named():
    """Each copy is known only to the prior's precision; mean field says that it is known as well as by itself."""
    x = np.repeat(RNG.normal(size=(400, 1)), 2, axis=1)
    x = np.c_[x, RNG.normal(size=400)]
    result = fit(x, x @ [1.0, 0.0, 1.0] + RNG.normal(size=400), pt.LinearRegression(), rounds=1)
    precision = np.eye(3) + x.T @ x
    factor = np.sqrt(np.diag(np.linalg.inv(precision)) * np.diag(precision))
    text = str(result.posterior.summary(["dose", "dose again", "age"]))
    assert factor[0] > 10
    assert f"that of dose is {factor[0]:.3g} times as large, that of dose again is {factor[1]:.3g} times" in text
    assert "age is" not in text


def test_more_than_three_are_counted():
    found = MeanFieldCheck(lambda: np.array([1.0, 2.0, 0.5, 3.0, 1.5, 1.1])).sentence(
        list("abcdef"), "do so", independence(6, 6)
    )
    assert found.endswith(
        "that of d is 3 times as large, that of b is 2 times as large, that of c is 0.5 times as large, "
        "and 1 more differ by over 20%: do so."
    )


@pytest.mark.parametrize(
    "model",
    [
        pt.LogisticRegression(),
        pt.PoissonRegression(),
        pytest.param(pt.models.ProbitRegression(), marks=pytest.mark.slow),
    ],
    ids=lambda model: type(model).__name__,
)
def test_it_is_what_a_run_with_full_covariance_finds(model):
    x = correlated(0.9, 300) / 2
    y = RNG.poisson(np.exp(x @ [0.5, -0.5, 0.5])) if isinstance(model, pt.PoissonRegression) else binary(x, [1, -1, 1])
    result, full = (fit(x, y, model, family, clients=1) for family in (pt.MeanFieldGaussian, pt.FullGaussian))
    assert result.status is full.status is pt.Status.CONVERGED
    expected = full.posterior.sd / result.posterior.sd
    assert expected[0] > 1.5
    np.testing.assert_allclose(result.posterior.mean_field.found[:2], expected[:2], rtol=0.03)
    assert result.posterior.mean_field.found[2] == 1
    assert SAYS in repr(result)
    assert SAYS not in repr(full)


def wider(precision):
    """How many times as large standard deviations are with this precision as with its diagonal."""
    return np.sqrt(np.diag(np.linalg.inv(precision)) * np.diag(precision))


def test_it_is_that_of_a_tempered_posterior():
    x = correlated(0.8)
    method = pt.methods.sequential(temperature=50.0)
    result = fit(x, x @ [1.0, 0.0, -1.0], pt.LinearRegression(), method=method, rounds=300)
    expected = wider(np.eye(3) + x.T @ x / 50)
    np.testing.assert_allclose(result.posterior.mean_field.found[:2], expected[:2], rtol=1e-4)


def test_unknown_noise_has_independent_coefficients_too():
    x = correlated(0.8)
    y = x @ [1.0, 0.0, -1.0] + 0.5 * RNG.normal(size=len(x))
    gamma = pt.families.Gamma(jnp.asarray(1.0), jnp.asarray(1.0))
    prior = pt.families.Product(coefficients=pt.MeanFieldGaussian.standard_normal(3), precision=gamma)
    method = pt.methods.sequential(pt.solvers.FixedPoint())
    result = fit(x, y, UnknownNoiseRegression(), prior=prior, method=method, clients=1, rounds=1)
    precision = np.eye(3) + float(result.posterior.mean["precision"]) * x.T @ x
    expected = np.sqrt(np.diag(np.linalg.inv(precision))) / result.posterior.sd["coefficients"]
    np.testing.assert_allclose(result.posterior.mean_field.found[:2], expected[:2], rtol=1e-4)
    text = str(result.posterior.summary(["a", "b", "c", "noise precision"]))
    assert "that of a is" in text
    assert "noise precision is" not in text


def test_the_factor_of_a_client_that_left_stands_for_its_rows():
    x = correlated(0.99)
    tables = [pt.Table(part, part @ [1.0, 0.0, -1.0]) for part in np.split(x, 3)]
    prior, model, method = pt.MeanFieldGaussian.standard_normal(3), pt.LinearRegression(), pt.methods.sequential()
    here = pt.run(method, model, prior, pt.federate(tables, names=["a", "b", "c"]), rounds=200)
    left = pt.run(method, model, prior, pt.federate(tables[:2], names=["a", "b"]), rounds=200, state=here.state)
    factor = np.diag(left.state.factors[2].natural.precision)
    expected = wider(np.eye(3) + x[:80].T @ x[:80] + factor)
    assert left.posterior.mean_field.found[:2] == pytest.approx(expected[:2], rel=1e-3)


@pytest.mark.parametrize("precision", [np.diag([-1.0, 1.0]), [[1.0, 2.0], [2.0, 1.0]], np.full((2, 2), np.nan)])
def test_what_is_no_precision_gives_no_ratios(precision):
    assert ratios(np.asarray(precision), np.ones(2)) is None


class Counting(LocalEngine):
    """Counts how often its rows were looked at for the check."""

    looked = 0

    def curvature(self, model, q, without=()):
        self.looked += 1
        return super().curvature(model, q, without)


def test_it_is_made_once_when_asked_for_and_its_rows_stay():
    x = correlated(0.9)
    engine = Counting(pt.federate([pt.Table(x, x @ [1.0, 0.0, -1.0])]))
    prior = pt.MeanFieldGaussian.standard_normal(3)
    result = pt.run(pt.methods.sequential(), pt.LinearRegression(), prior, engine=engine)
    rows = result.posterior.summary()
    assert engine.looked == 0
    first, again = repr(result), repr(result)
    assert first == again
    assert SAYS in str(rows)
    assert engine.looked == 1
    assert pickle.loads(pickle.dumps(rows)) == rows
    kept = pickle.dumps(result.posterior.mean_field)
    assert len(kept) < 500
    assert pickle.loads(kept).sentence("abc", "do so", "these") == result.posterior.mean_field.sentence(
        "abc", "do so", "these"
    )


class Elsewhere(LocalEngine):
    """Clients whose rows are out of sight."""

    def curvature(self, model, q, without=()):
        return None


def test_what_could_not_be_checked_is_said():
    x = correlated(0.0)
    parts, prior = pt.federate([pt.Table(x, x @ [1.0, 0.0, -1.0])]), pt.MeanFieldGaussian.standard_normal(3)
    far = pt.run(pt.methods.sequential(), pt.LinearRegression(), prior, engine=Elsewhere(parts), rounds=1)
    near = pt.run(pt.methods.sequential(), pt.LinearRegression(), prior, parts, rounds=1)
    assert "could not be checked here: use a FullGaussian" in repr(far)
    assert near.posterior.caveat() == ""
    loaded = pt.Posterior(near.posterior.model, near.posterior.q)
    assert "could not be checked here" in str(loaded.summary())
    wide = RNG.normal(size=(3, MAX_COLUMNS + 1))
    many = fit(wide, np.ones(3), pt.LinearRegression(), method=pt.methods.sequential(pt.solvers.FixedPoint()), rounds=1)
    assert "could not be checked here" in repr(many)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (pt.LogDensity(lambda theta, row: -((row.y - row.x @ theta) ** 2) / 2), pt.MeanFieldGaussian),
        (pt.LinearRegression(), pt.FullGaussian),
    ],
)
def test_nothing_is_said_of_what_has_no_such_standard_deviations(model, family):
    x = correlated(0.9)
    method = pt.methods.sequential(pt.solvers.FixedPoint(max_steps=1))
    result = fit(x, x @ [1.0, 0.0, -1.0], model, family, method=method, rounds=1)
    assert result.posterior.caveat() == ""
    assert repr(result).endswith(result.message)
