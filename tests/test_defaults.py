"""Every method with its defaults, on what comes along: it arrives, or says what to change and by how much."""

import re

import numpy as np
import pytest

import partita as pt

pytestmark = pytest.mark.slow
QUIET = pt.Monitor(every=0, progress=False)
REMEDY = re.compile(
    r"allow about [\d,]+ more rounds|(raise|lower) \w+ from [\d.e+-]+ to about [\d.e+-]+|allow many more rounds"
    r"|Use more damping|Lower it|Use another start|Raise samples or points tenfold"
)


def breast_cancer():
    data = pt.datasets.breast_cancer().train
    parts = pt.split(data, pt.partitioners.equal_random(len(data.y), 10))
    return pt.LogisticRegression(), data.x.shape[1], parts


def counts():
    generator = np.random.default_rng(0)
    x = np.c_[np.ones(300), generator.normal(size=(300, 4)) * [0.1, 1.0, 1.0, 3.0]]
    data = pt.Table(x, generator.poisson(np.exp(x @ [2.0, 1.0, -0.5, 0.3, 0.2])).astype(float))
    return pt.PoissonRegression(), 5, pt.split(data, pt.partitioners.equal_random(300, 6))


PROBLEMS = {"breast cancer": breast_cancer, "counts": counts}
FAMILIES = (pt.FullGaussian, pt.MeanFieldGaussian, pt.NearestMeanField)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", pt.methods.NAMED)
def test_a_method_arrives_or_says_what_to_change(name, problem, family):
    model, columns, parts = PROBLEMS[problem]()
    method, prior = pt.methods.named(name), family.standard_normal(columns)
    if name == "double_loop":  # moments on a grid
        with pytest.raises(pt.InputError, match="parameters"):
            pt.run(method, model, prior, parts, monitor=QUIET)
        return
    result = pt.run(method, model, prior, parts, monitor=QUIET)
    said = result.status.arrived or result.status is pt.Status.COMPLETE or REMEDY.search(result.message)
    assert said, f"{result.status.value}: {result.message}"
    assert result.posterior.q.is_proper()


ARRIVE = ("sequential", "synchronous", "asynchronous", "global_vi", "incremental_vi")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ARRIVE)
def test_with_full_covariance_these_arrive_at_one_optimum(name, problem):
    model, columns, parts = PROBLEMS[problem]()
    prior = pt.FullGaussian.standard_normal(columns)
    result = pt.run(pt.methods.named(name), model, prior, parts, monitor=QUIET)
    best = pt.run(pt.methods.sequential(), model, prior, parts.pooled(), rounds=3, tolerance=None, monitor=QUIET)
    assert result.status is pt.Status.CONVERGED
    assert result.posterior.q.kl(best.posterior.q) < 1e-3


@pytest.mark.parametrize("name", ["sequential", "synchronous", "global_vi", "incremental_vi", "stochastic_global_vi"])
def test_a_network_on_digits_says_what_is_left(name):
    data = pt.datasets.digits().train
    network = pt.models.NetworkClassifier((64, 20, 10))
    start = pt.MeanFieldGaussian.tight(network.template(), seed=0)
    solver = {"solver": pt.Gradient(max_steps=50)} if "solver" in pt.methods.settings_of(name) else {}
    prior = pt.MeanFieldGaussian.standard_normal(network.template())
    parts = pt.split(data, pt.partitioners.equal_random(len(data.y), 5))
    result = pt.run(pt.methods.named(name, start=start, **solver), network, prior, parts, rounds=5, monitor=QUIET)
    assert result.status.arrived or "residual" in result.message or REMEDY.search(result.message)
