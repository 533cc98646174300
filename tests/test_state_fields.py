"""A field of the state is declared in one place: files and membership follow from its kind."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.results.history import History
from partita.server import state as module
from partita.server.membership import join
from partita.server.state import State, described, init, number, per_client, tree
from partita.storage.checkpoint import load, save
from partita.storage.ledger import Ledger
from support.problems import PRIOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class Longer(State):
    """A state with one more field of each kind."""

    visits: np.ndarray = per_client(7)
    share: float = number(default=0.0)
    remark: tuple[str, ...] = described(list, tuple, default=())
    weights: dict = tree(default_factory=lambda: {"a": jnp.zeros(2)})


CHANGED = {"visits": np.array([1, 2]), "share": 0.25, "remark": ("x", "y"), "weights": {"a": jnp.array([3.0, 4.0])}}


@pytest.fixture
def fresh(monkeypatch):
    """The state of a new run, where `State` is declared with more fields and nothing else is changed."""
    monkeypatch.setattr(module, "State", Longer)
    return init(PRIOR, ["here", "there"])


def assert_kept(state):
    assert isinstance(state, Longer)
    assert (state.visits.tolist(), state.share, state.remark) == ([1, 2], 0.25, ("x", "y"))
    assert state.visits.dtype == CHANGED["visits"].dtype
    assert state.weights["a"].tolist() == [3.0, 4.0]


def test_a_field_starts_at_its_declared_default(fresh):
    assert (fresh.visits.tolist(), fresh.share, fresh.remark) == ([7, 7], 0.0, ())


def test_a_checkpoint_saves_the_field(fresh, tmp_path):
    save(tmp_path / "run.npz", dataclasses.replace(fresh, **CHANGED), History())
    assert_kept(load(tmp_path / "run.npz", fresh)[0])


def test_a_ledger_saves_the_field(fresh, tmp_path):
    ledger = Ledger(tmp_path / "run.sqlite")
    ledger.load(fresh)
    ledger.keep(dataclasses.replace(fresh, **CHANGED))
    assert_kept(Ledger(tmp_path / "run.sqlite").load(fresh)[0])


def test_a_client_that_joins_gets_the_fields_default(fresh):
    state = join(dataclasses.replace(fresh, **CHANGED), "late", pt.Damped())
    assert state.visits.tolist() == [1, 2, 7]
    assert (state.share, state.remark) == (0.25, ("x", "y"))
