"""Whatever a public function is given, it works or says in a sentence what is wrong."""

import contextlib
import inspect
import signal
import types
import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import partita as pt
from support.public_calls import CALLS, EXCEPT, METHOD, MODEL, PRIOR, TABLE, X, call

SECONDS = 60
"""After which a call is taken to hang."""

ODD = {
    "nothing": None,
    "a bool": True,
    "a huge whole number": 10**18,
    "its negative": -(10**18),
    "more than any float": 10**400,
    "a huge number": 1e300,
    "a tiny one": 1e-300,
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "a complex number": 1j,
    "bytes": b"bytes",
    "an object": object(),
    "a list": [1, "a"],
    "lists of two lengths": [[1.0], [1.0, 2.0]],
    "a dict": {"a": 1},
    "an empty tuple": (),
    "a matrix without columns": np.zeros((2, 0)),
    "a vector of texts": np.array(["a", "b"]),
    "a vector of objects": np.array([object()]),
    "a matrix as objects": X.astype(object),
    "complex numbers": X + 1j,
    "infinite rows": X * np.inf,
    "a cube": np.ones((3, 2, 2)),
    "a date": np.datetime64("2020-01-01"),
    "a sparse matrix": scipy.sparse.csr_array(X),
    "a scalar array": np.array(0.5),
    "a class": pt.Table,
    "a function": min,
    "a module": pt,
    "a table": TABLE,
    "a prior": PRIOR,
    "a model": MODEL,
    "a method": METHOD,
    "a solver": pt.Newton(),
}
TEXTS = st.text("ab1 .", max_size=3)
VALUES = st.one_of(
    st.sampled_from(list(ODD)).map(ODD.__getitem__),
    st.integers(-3, 20),
    st.floats(-10, 10),
    TEXTS,
    st.lists(st.one_of(st.none(), st.integers(-3, 20), st.floats(-3, 3), TEXTS), max_size=3),
    st.dictionaries(TEXTS, st.floats(-3, 3), max_size=2),
    arrays.arrays(st.sampled_from([bool, np.int8, np.float32, float]), arrays.array_shapes(max_dims=2, max_side=3)),
)


def names():
    """Everything public that can be called: of the package, and of its modules."""
    modules = {f"{name}.": getattr(pt, name) for name in pt.__all__ if inspect.ismodule(getattr(pt, name))}
    found, seen = [], set()
    for prefix, module in {"": pt, **modules}.items():
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, types.ModuleType) and id(value) not in seen:
                seen.add(id(value))
                found.append(prefix + name)
    return found


@contextlib.contextmanager
def limited():
    """Ends what takes too long."""

    def stop(*_):
        raise TimeoutError("This call hangs.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refusal(call):
    """The sentence with which a call is refused, if it is."""
    try:
        call()
    except pt.InputError as error:
        return str(error)
    return None


def throws(name, examples):
    """Calls with one argument replaced by anything."""
    valid = CALLS[name][1]

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(list(valid)), VALUES)
    def property_of_one(argument, value):
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arrays in static fields, and of overflows in what is then refused
            sentence = refusal(lambda: call(name, **{argument: value}))
        assert sentence is None or sentence.strip(), "An error without a sentence."
        assert sentence is None or ("\n" not in sentence and len(sentence) < 500), f"More than a sentence: {sentence}"

    property_of_one()


def test_the_table_is_complete():
    """Everything public is called with anything, or it is said why not."""
    called = set(CALLS) | {name.rpartition(".")[0] for name in CALLS}
    assert not [name for name in names() if name not in called and name not in EXCEPT]
    assert not [name for name in EXCEPT if name in CALLS], "in both lists"
    assert not set(EXCEPT) - set(names()) - {"methods.Start"}, "what is no longer public"


@pytest.mark.parametrize("name", [name for name in CALLS if inspect.isclass(CALLS[name][0])])
def test_every_argument_is_in_the_table(name):
    function, valid = CALLS[name]
    parameters = inspect.signature(function).parameters.values()
    assert {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} == set(valid)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_valid_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call(name)


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][1]])
def test_anything_is_taken_or_refused_in_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    throws(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][1]])
def test_anything_is_refused_in_many_ways(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    throws(name, 300)
