import jax
import numpy as np
import optax
import pytest

import partita as pt
from partita.engines import local
from partita.io import wire
from partita.local.client import client_update
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita_experiments import first_visits
from partita_experiments.first_visits import FirstVisits

NETWORK = pt.models.NetworkClassifier((2, 3, 2))
LIKE = jax.tree.map(lambda leaf: leaf.astype("float32"), NETWORK.template())
PRIOR = pt.MeanFieldGaussian.standard_normal(LIKE)
START = pt.MeanFieldGaussian.tight(LIKE, 0)
SOLVER = pt.Gradient(optax.adam, 0.01, batch_size=8, max_steps=20)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype("float32")
CLIENTS = pt.split(pt.Table(X, (X[:, 0] > 0).astype("float32")), pt.partitioners.equal_random(30, 3))


@pytest.fixture
def visits(monkeypatch, tmp_path):
    """For every visit really made, whether the client had a factor already; every visit is worth keeping."""
    seen = []

    def counted(recipe, visit):
        seen.append(bool(np.any(np.asarray(visit.factor.natural.precision[0]["bias"]))))
        return client_update(recipe, visit)

    monkeypatch.setattr(local, "client_update", counted)
    monkeypatch.setattr(first_visits, "MIN_CACHED_SECONDS", 0.0)
    return seen


def run(engine, method, seed=0):
    return pt.run(method, NETWORK, PRIOR, engine=engine, rules=Rules(), rounds=2, seed=seed, monitor=Monitor(every=0))


def numbers(result):
    return result.state.posterior, result.state.factors


def kept(folder, about="these rows"):
    return FirstVisits(CLIENTS, None, folder, about)


def synchronous(damping):
    return pt.methods.synchronous(SOLVER, damping, start=START)


def test_runs_with_different_damping_share_cached_first_visits(visits, tmp_path):
    for damping, made in ((0.2, 6), (0.5, 3)):
        visits.clear()
        found = run(kept(tmp_path), synchronous(damping))
        assert len(visits) == made
        assert sum(not touched for touched in visits) == made - 3
        expected = run(local.LocalEngine(CLIENTS), synchronous(damping))
        assert wire.equal(numbers(found), numbers(expected))
        assert found.state.gradient_steps == expected.state.gradient_steps


def test_the_committee_with_the_whole_prior_reuses_synchronous_first_visits(visits, tmp_path):
    run(kept(tmp_path), synchronous(0.2))
    visits.clear()
    run(kept(tmp_path), pt.methods.bcm_same(SOLVER, START))
    assert not visits


@pytest.mark.parametrize(
    ("method", "about", "seed"),
    [
        (pt.methods.bcm_split(SOLVER, START), "these rows", 0),
        (pt.methods.synchronous(SOLVER, 0.2, start=pt.MeanFieldGaussian.tight(LIKE, 1)), "these rows", 0),
        (
            pt.methods.synchronous(pt.Gradient(optax.adam, 0.02, batch_size=8, max_steps=20), 0.2, start=START),
            "these rows",
            0,
        ),
        (pt.methods.global_vi(start=START), "these rows", 0),
        (synchronous(0.2), "other rows", 0),
        (synchronous(0.2), "these rows", 1),
    ],
    ids=["context", "start", "rate", "solver", "rows", "seed"],
)
def test_first_visits_with_other_inputs_are_computed(visits, tmp_path, method, about, seed):
    run(kept(tmp_path), synchronous(0.2))
    visits.clear()
    run(kept(tmp_path, about), method, seed)
    assert len(visits) == min(6, 3 * (method.passes or 2))


def test_a_corrupt_cached_answer_is_recomputed(visits, tmp_path):
    run(kept(tmp_path), synchronous(0.2))
    one = sorted(tmp_path.iterdir())[0]
    one.write_bytes(one.read_bytes()[:-4])
    visits.clear()
    run(kept(tmp_path), synchronous(0.2))
    assert len(visits) == 4
