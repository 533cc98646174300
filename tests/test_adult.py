"""Adult at full size: global VI against an independent optimum, and how fast the schedules approach it."""

import numpy as np
import pytest
from scipy.optimize import minimize

import partita as pt
from partita.engines import LocalEngine
from partita.server.monitor import Monitor

BETA_KAPPA = {"A": (0.0, 0.0), "B": (0.7, -3.0)}


@pytest.fixture(scope="module")
def adult():
    return pt.datasets.adult()


def clients(adult, name, deal=None):
    """The split of the paper; its rows are dealt as they come, or in another random order."""
    rows = (
        np.arange(len(adult.train.y)) if deal is None else np.random.default_rng(deal).permutation(len(adult.train.y))
    )
    table = pt.Table(adult.train.x[rows], adult.train.y[rows])
    return pt.split(table, pt.partitioners.beta_kappa(table.y, 10, *BETA_KAPPA[name]), drop=True)


def independent_optimum(x, y):
    """The maximum of the quadrature ELBO of mean-field logistic regression with prior N(0, I), in plain NumPy."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(20)
    masses = masses / masses.sum()
    sign, squares, size = 2 * y - 1, x**2, x.shape[1]

    def negative(parameters):
        mean, log_sd = parameters[:size], parameters[size:]
        variance = np.exp(2 * log_sd)
        sd = np.sqrt(squares @ variance)
        f = sign[:, None] * ((x @ mean)[:, None] + sd[:, None] * nodes)
        ell = -np.logaddexp(0, -f) @ masses
        slope = sign[:, None] / (1 + np.exp(np.minimum(f, 700)))
        by_variance = slope @ (masses * nodes) / (2 * sd)
        value = ell.sum() - 0.5 * np.sum(mean**2 + variance - 1 - 2 * log_sd)
        by_mean = x.T @ (slope @ masses) - mean
        by_log_sd = 2 * variance * (squares.T @ by_variance) - variance + 1
        return -value, -np.concatenate([by_mean, by_log_sd])

    start = np.concatenate([np.zeros(size), np.full(size, np.log(0.02))])
    options = {"maxiter": 3000, "maxfun": 3000, "maxcor": 50, "ftol": 1e-13, "gtol": 1e-4}
    return -minimize(negative, start, jac=True, method="L-BFGS-B", options=options).fun


def gaps(adult, name, method, communications, family, every, deal=None, speeds=None):
    """Communications and the nats by which the free energy still lies below global VI's."""
    parts = clients(adult, name, deal)
    model, prior = pt.LogisticRegression(), family.standard_normal(109)
    best = pt.run(pt.methods.sequential(), model, prior, parts.pooled(), rounds=1).free_energy
    result = pt.run(
        method,
        model,
        prior,
        engine=LocalEngine(parts, speeds),
        communications=communications,
        tolerance=0.0,
        monitor=Monitor(every=every),
    )
    rows = [row for row in result.history if "free_energy" in row]
    curve = {row["communications"]: best - row["free_energy"] for row in rows}
    shown = sorted(curve)[:: max(1, len(curve) // 12)]
    print(f"\n{family.__name__}, split {name}:", {c: round(curve[c], 3) for c in [*shown, max(curve)]})
    return curve


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A", "B"])
def test_global_vi_reaches_an_independent_optimum(adult, name):
    pooled = clients(adult, name).pooled()
    result = pt.run(pt.methods.sequential(), pt.LogisticRegression(), pt.MeanFieldGaussian.standard_normal(109), pooled)
    shard = pooled.shards[0]
    reference = independent_optimum(np.asarray(shard.data.x), np.asarray(shard.data.y))
    print(f"\nsplit {name}: global VI {result.free_energy:.4f}, independent {reference:.4f}")
    assert abs(result.free_energy - reference) < 1e-2


@pytest.mark.slow
def test_sequential_on_b(adult):
    curve = gaps(adult, "B", pt.methods.sequential(), 600, pt.MeanFieldGaussian, 10)
    assert curve[60] < 20
    assert curve[600] < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "deal",
    [
        pytest.param(
            None, marks=pytest.mark.xfail(strict=True, reason="1.38 nats are left after 1,000 communications")
        ),
        1,
        2,
    ],
)
def test_synchronous_on_b(adult, deal):
    curve = gaps(adult, "B", pt.methods.synchronous(damping=0.2), 1000, pt.MeanFieldGaussian, 1, deal)
    assert curve[350] < 20
    assert curve[1000] < 1


@pytest.mark.slow
def test_synchronous_on_b_as_the_rows_come(adult):
    curve = gaps(adult, "B", pt.methods.synchronous(damping=0.2), 350, pt.MeanFieldGaussian, 1)
    assert curve[350] < 20


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [None, [1.0, 2.0] * 5], ids=["equal speeds", "every other twice as fast"])
def test_asynchronous_on_b(adult, speeds):
    curve = gaps(adult, "B", pt.methods.asynchronous(damping=0.2), 350, pt.MeanFieldGaussian, 10, speeds=speeds)
    assert curve[350] < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "communications", "every"),
    [
        (pt.methods.sequential(), 100, 5),
        (pt.methods.synchronous(damping=0.2), 350, 1),
        (pt.methods.asynchronous(damping=0.2), 350, 10),
    ],
    ids=["sequential", "synchronous", "asynchronous"],
)
def test_full_covariance_on_b(adult, method, communications, every):
    """With covariances there are no collinear columns to agree about: what is left is damping."""
    curve = gaps(adult, "B", method, communications, pt.FullGaussian, every)
    assert curve[communications] < 1


def test_global_vi_reaches_an_independent_optimum_on_some_rows(adult):
    x, y = adult.train.x[:2000, :30], adult.train.y[:2000]
    parts = pt.split(pt.Table(x, y), [np.arange(2000)])
    prior = pt.MeanFieldGaussian.standard_normal(30)
    result = pt.run(pt.methods.sequential(), pt.LogisticRegression(), prior, parts)
    assert abs(result.free_energy - independent_optimum(x, y)) < 1e-3
