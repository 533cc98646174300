"""A step is compiled once per shape: retracing is a regression that no result would show."""

import jax
import numpy as np
import pytest

import partita as pt
from partita.data import Partition, federate
from partita.engines.local import shard_ell
from partita.local.client import answer
from partita.server.aggregation.product import take
from partita.storage.checkpoint import Checkpoint
from support.problems import MODEL, PARTS, PRIOR, SOLVER, STOCHASTIC

PROGRAMS = {"client update": answer, "taking in": take, "expectation": shard_ell}
COMPILED = []
"""An entry for every program that JAX compiles, eager operations included."""


@jax.monitoring.register_event_duration_secs_listener
def _count(event, seconds, **about):
    if event.endswith("backend_compile_duration"):
        COMPILED.append(about)


def traces_of(function):
    """How often each program is traced while the function runs."""
    before = {name: program.traces for name, program in PROGRAMS.items()}
    function()
    return {name: program.traces - before[name] for name, program in PROGRAMS.items()}


def run(
    solver=SOLVER, schedule=None, aggregation=None, trust_region=1.0, model=MODEL, prior=PRIOR, parts=PARTS, **settings
):
    method = pt.Method(solver, schedule or pt.Synchronous(), aggregation or pt.Damped(0.01), trust_region=trust_region)
    speeds = settings.pop("speeds", None)
    return pt.run(method, model, prior, engine=pt.LocalEngine(parts, speeds), **{"rounds": 1} | settings)


def test_clients_of_two_sizes_make_two_programs_for_any_number_of_rounds():
    # sizes that no other test has, so that nothing is compiled yet
    rows = np.random.default_rng(0).normal(size=(99, 3))
    parts = federate([pt.Table(x, (x[:, 0] > 0).astype(float)) for x in np.split(rows, [31, 62])])
    first = traces_of(lambda: run(parts=parts))
    assert (first["client update"], first["expectation"]) == (2, 2)
    assert first["taking in"] <= 1
    results = []
    assert set(traces_of(lambda: results.append(run(parts=parts, rounds=100))).values()) == {0}
    assert len(results[0].history) == 100


other_values = Partition(
    tuple(jax.tree.map(lambda leaf: leaf[::-1] if leaf.ndim else leaf, shard) for shard in PARTS.shards),
    ("a", "b", "c"),
    PARTS.sizes,
)
CHANGES = {
    "damping": {"aggregation": pt.Damped(0.3)},
    "damping by 1/M": {"aggregation": pt.Damped(None)},
    "backtracking": {"aggregation": pt.Backtracking(0.7, monitor_free_energy=True)},
    "sequential": {"schedule": pt.Sequential("random")},
    "asynchronous": {"schedule": pt.Asynchronous(), "speeds": (1.0, 10.0, 3.0)},
    "subset": {"schedule": pt.schedules.RandomSubset(2)},
    "trust region": {"trust_region": 0.1},
    "seed": {"seed": 7},
    "values of the data, and names": {"parts": other_values},
    "values of the prior": {"prior": PRIOR**0.5},
    "solver's limits": {"solver": pt.solvers.FixedPoint(0.5, max_steps=7, tolerance=1e-3)},
    "learning rate": {"solver": pt.Gradient(learning_rate=0.01, max_steps=10, batch_size=5)},
    "steps and window": {"solver": pt.Gradient(max_steps=3, window=2, patience=3, tolerance=0.1, batch_size=5)},
    "Newton's limits": {"solver": pt.Newton(max_steps=3, tolerance=1e-2)},
    "noise": {"model": pt.LinearRegression(2.0)},
}


@pytest.fixture(scope="module")
def compiled():
    """One round with each solver, and with another model."""
    for solver in (SOLVER, STOCHASTIC, pt.Newton()):
        run(solver)
    run(model=pt.LinearRegression(1.0))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("change", CHANGES)
def test_changing_a_number_compiles_nothing(change):
    assert set(traces_of(lambda: run(**CHANGES[change])).values()) == {0}


@pytest.mark.usefixtures("compiled")
def test_resuming_compiles_nothing(tmp_path):
    assert set(traces_of(lambda: run(store=Checkpoint(tmp_path / "run"))).values()) == {0}
    assert set(traces_of(lambda: run(rounds=2, store=Checkpoint(tmp_path / "run"))).values()) == {0}


@pytest.mark.parametrize(
    ("make", "programs"),
    [
        (lambda rows: federate([pt.Table(np.ones((rows, 2)), np.ones(rows))]), 0),
        (lambda size: pt.FullGaussian.standard_normal(size), 0),
        (lambda size: pt.MeanFieldGaussian.from_mean_sd(np.zeros(size), np.ones(size)), 1),
    ],
    ids=["rows", "full covariance", "mean field"],
)
def test_a_new_shape_compiles_next_to_nothing(make, programs):
    make(171)  # sizes that no other test has
    before = len(COMPILED)
    make(173)
    assert len(COMPILED) - before == programs
