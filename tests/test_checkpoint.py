"""State to and from disk."""

import io
import json
import os
import pickle
import re

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.data import Partition
from partita.engines import LocalEngine, local
from partita.io.archive import write
from partita.results.history import History
from partita.results.posterior_file import load_posterior, save_posterior
from partita.server.monitor import Monitor
from partita.server.state import init
from partita.storage.checkpoint import Checkpoint, load, save
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, SOLVER, STOCHASTIC, faulty, not_finite
from support.steps import step


class Interruption(Exception):
    pass


def same(first, second):
    """Whether two states are equal to the last bit, tasks under way included."""
    return all(eqx.tree_equal(value, vars(second)[name]) for name, value in vars(first).items())


def without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_resumed_from_any_step_ends_with_the_same_result(schedule, tmp_path):
    turns, speeds = SCHEDULES[schedule]
    method, engine = pt.Method(STOCHASTIC, turns, pt.Damped(0.5)), LocalEngine(PARTS, speeds)
    states = [init(PRIOR, 3, seed=5)]
    for _ in range(6):
        states.append(step(method, MODEL, engine, states[-1])[0])
    for start, saved in enumerate(states):
        save(tmp_path / "state", saved, History())
        state, _ = load(tmp_path / "state", states[0])
        assert same(state, saved)
        for _ in range(start, 6):
            state, _ = step(method, MODEL, engine, state)
        assert same(state, states[-1])
    assert bool(states[3].in_flight) == (schedule == "asynchronous")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", [None, not_finite])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(schedule, fault, tmp_path, monkeypatch):
    if fault:
        monkeypatch.setattr(local, "client_update", faulty(fault))
    turns, speeds = SCHEDULES[schedule]

    def run(interrupt_at=(), checkpoint=None):
        def metrics(posterior):
            calls.append(posterior)
            if len(calls) in interrupt_at:
                raise Interruption
            return {"mean": posterior.mean[0]}

        method = pt.Method(STOCHASTIC, turns, pt.Damped(0.5))
        return pt.run(
            method,
            MODEL,
            PRIOR,
            communications=12,
            seed=3,
            monitor=Monitor(metrics=metrics),
            store=checkpoint and Checkpoint(checkpoint, 2),
            engine=LocalEngine(PARTS, speeds),
        )

    calls = []
    whole = run()
    calls = []
    # the second interruption is in the first step after resuming at 2
    for _ in range(2):
        with pytest.raises(Interruption):
            run((4, 5), tmp_path / "run")
    resumed = run((), tmp_path / "run")
    assert same(resumed.state, whole.state)
    assert without_seconds(resumed.history) == without_seconds(whole.history)
    assert (resumed.status, resumed.message) == (whole.status, whole.message)
    assert np.diff(resumed.history["seconds"]).min() > 0
    assert bool(whole.history.refusals) == bool(fault)
    # a run that has ended is not run again
    finished = len(calls)
    assert same(run((), tmp_path / "run").state, whole.state)
    assert len(calls) == finished


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a short run with seed 0."""
    path = tmp_path / "run"
    pt.run(pt.methods.asynchronous(SOLVER), MODEL, PRIOR, PARTS, communications=4, store=Checkpoint(path))
    return path


@pytest.mark.parametrize("function", ["savez", "fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(saved, function, failure, monkeypatch):
    before = saved.read_bytes()

    def breaks(*arguments, **_):
        if function == "savez":
            arguments[0].write(b"half a file")
        raise failure

    monkeypatch.setattr(np if function == "savez" else os, function, breaks)
    with pytest.raises(failure):
        save(saved, init(PRIOR, 3), History())
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_checkpoint_holds_plain_arrays_and_json(saved):
    with np.load(saved, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    assert all(array.dtype.kind in "fibU" for array in arrays.values())
    about = json.loads(str(arrays["about"]))
    assert (about["state"]["communications"], about["state"]["names"]) == (4, list(PARTS.names))
    assert len(about["in_flight"]) == 2


def test_a_finished_run_can_be_resumed_with_a_larger_budget(saved):
    method = pt.methods.asynchronous(SOLVER)
    longer = pt.run(method, MODEL, PRIOR, PARTS, communications=9, store=Checkpoint(saved))
    assert same(longer.state, pt.run(method, MODEL, PRIOR, PARTS, communications=9).state)


class Trap:
    """Unpickling it is noticed."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


def numpy_bytes(write, array):
    file = io.BytesIO()
    write(file, array)
    return file.getvalue()


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(path.read_bytes().replace(PRIOR.precision.tobytes(), b"\0" * 24)),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("communications: 4"),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Trap())),
    "pickled arrays": lambda path: path.write_bytes(numpy_bytes(np.savez, np.array([Trap()], object))),
    "a single array": lambda path: path.write_bytes(numpy_bytes(np.save, np.zeros(3))),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a posterior": lambda path: save_posterior(path, PRIOR, {}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_not_executed(saved, damage, monkeypatch):
    monkeypatch.chdir(saved.parent)
    DAMAGE[damage](saved)
    with pytest.raises(pt.InputError, match=r"is not a partita file, or it is corrupt|has format None") as caught:
        pt.run(pt.methods.asynchronous(SOLVER), MODEL, PRIOR, PARTS, store=Checkpoint(saved))
    assert str(saved) in str(caught.value)
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 1}, "belongs to a run with other clients or another seed"),
        ({"names": ("a", "b", "c")}, "belongs to a run with other clients or another seed"),
        ({"prior": PRIOR**2}, "belongs to a run with another prior"),
        ({"prior": pt.FullGaussian.standard_normal(3)}, "a run with another prior"),
        ({"prior": pt.MeanFieldGaussian.standard_normal(jnp.zeros(3, "float32"))}, "a run with another prior"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused_and_stays_as_it_is(saved, change, sentence):
    before = saved.read_bytes()
    parts = Partition(PARTS.shards, change.get("names", PARTS.names), PARTS.sizes)
    with pytest.raises(pt.InputError, match=re.escape(sentence)):
        pt.run(
            pt.methods.asynchronous(SOLVER),
            MODEL,
            change.get("prior", PRIOR),
            parts,
            seed=change.get("seed", 0),
            store=Checkpoint(saved),
        )
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    "q",
    [
        PRIOR,
        pt.FullGaussian.from_mean_covariance(jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.3], [0.3, 1.0]])),
        pt.families.Product(
            a=PRIOR, b=pt.MeanFieldGaussian.standard_normal({"c": jnp.zeros((2, 2)), "d": jnp.zeros(())})
        ),
    ],
    ids=lambda q: type(q).__name__,
)
def test_a_posterior_and_its_metadata_are_restored_bitwise(q, tmp_path):
    q = q ** (1 / 3)
    about = {"columns": ["intercept", "age"], "rows": 60}
    save_posterior(tmp_path / "new folder" / "posterior", q, about)
    loaded, known = load_posterior(tmp_path / "new folder" / "posterior", q.one())
    assert eqx.tree_equal(loaded, q)
    assert known == about


@pytest.mark.parametrize(
    ("like", "sentence"),
    [
        (pt.MeanFieldGaussian.standard_normal(4), "holds float64[3] at .precision_mean where float64[4] is needed"),
        (pt.families.Product(a=PRIOR), "holds nothing at .components['a'].precision_mean where float64[3] is needed"),
    ],
)
def test_a_posterior_of_another_shape_is_refused(like, sentence, tmp_path):
    save_posterior(tmp_path / "posterior", PRIOR, {})
    with pytest.raises(pt.InputError, match=re.escape(sentence)):
        load_posterior(tmp_path / "posterior", like)
    with pytest.raises(pt.InputError, match="There is no file"):
        load_posterior(tmp_path / "elsewhere", like)


SAVED = {
    "mean-field": PRIOR ** (1 / 3),
    "full": pt.FullGaussian.standard_normal({"a": jnp.zeros(2), "b": (jnp.zeros((2, 1)), jnp.zeros(()))}, 0.7),
    "gamma": pt.families.Gamma.from_shape_rate([2.0, 3.0], 1.5),
    "inverse gamma": pt.families.InverseGamma.from_shape_scale([2.0, 3.0], 1.5),
    "log-normal": pt.families.LogNormal.from_median_sd(jnp.array([1.0, 2.0]), 0.3),
    "Dirichlet": pt.families.Dirichlet.from_concentration([1.0, 2.0, 3.0]),
    "normal-gamma": pt.families.NormalGamma.from_parameters(np.zeros(2), np.eye(2), 4.0, 2.5),
    "product": pt.families.Product(a=PRIOR, b=pt.families.Product(c=pt.families.Gamma.from_shape_rate(2.0, 3.0))),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_posterior_is_loaded_without_a_template(name, tmp_path):
    q = SAVED[name]
    pt.Posterior(pt.LinearRegression(0.5), q, {"noise": jnp.asarray(0.25)}).save(tmp_path / "posterior.npz", ["x"])
    loaded = pt.Posterior.load(tmp_path / "posterior.npz", pt.LinearRegression(0.5))
    assert eqx.tree_equal(loaded.q, q)
    assert float(loaded.model.noise) == float(loaded.hyper["noise"]) == 0.25
    assert loaded.q.kl(q) == 0


def test_a_posterior_keeps_the_names_of_its_parameters(tmp_path):
    posterior = pt.Posterior(pt.LogisticRegression(), pt.MeanFieldGaussian.standard_normal(2))
    posterior.save(tmp_path / "posterior.npz", ["age", "dose"])
    loaded = pt.Posterior.load(tmp_path / "posterior.npz", pt.LogisticRegression())
    assert [row["name"] for row in loaded.summary()] == ["age", "dose"]
    loaded.save(tmp_path / "again.npz")
    assert pt.Posterior.load(tmp_path / "again.npz", pt.LogisticRegression()).names == ("age", "dose")


def test_a_file_that_describes_no_family_is_refused(tmp_path):
    for family in ({}, {"family": "Method", "fields": {}}, {"family": "Gamma"}, {"shape": [3], "dtype": "<f8"}):
        write(tmp_path / "posterior", {"x": np.zeros(3)}, {"family": family})
        with pytest.raises(pt.errors.DamagedFileError):
            pt.Posterior.load(tmp_path / "posterior", MODEL)
