"""A full disk ends a run with one sentence, and what was saved before it stays."""

import errno
import os
import shutil

import numpy as np
import pytest

import partita as pt
from partita.io import atomic
from support.problems import MODEL, PARTS, PRIOR, SOLVER

SENTENCE = "cannot be written .*: free some space or choose another place, then run again"
SILENT = pt.Monitor(every=0)


def run(store, rounds):
    return pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, rounds=rounds, store=store, monitor=SILENT)


@pytest.fixture
def full(monkeypatch):
    """A disk on which nothing more can be written."""

    def fsync(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fsync)


def test_a_checkpoint_survives(tmp_path, full, monkeypatch):
    store = pt.Checkpoint(tmp_path / "run.npz", every=1)
    run(store, 1)
    before = store.path.read_bytes()
    full()
    with pytest.raises(pt.errors.DiskError, match=f"run.npz {SENTENCE}"):
        run(store, 3)
    assert store.path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.npz"]
    monkeypatch.undo()
    np.testing.assert_array_equal(run(store, 3).posterior.mean, run(None, 3).posterior.mean)


def test_a_ledger_survives(tmp_path):
    path = tmp_path / "run.sqlite"
    kept = pt.Ledger(path)
    run(kept, 1)
    before = kept.load(kept._kept)[0]
    limited = pt.Ledger(path)
    (pages,) = limited._db.execute("PRAGMA page_count").fetchone()
    limited._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(pt.errors.DiskError, match=f"run.sqlite {SENTENCE}"):
        limited.say("large", "x" * 200_000)
    with pytest.raises(pt.errors.DiskError, match="the disk is full"):
        limited.say("large", "x" * 200_000)
    assert limited.said("large") is None
    limited.note("client 0", "late")  # it goes on where there is room
    again = pt.Ledger(path)
    np.testing.assert_array_equal(again.load(before)[0].posterior.mean, before.posterior.mean)
    np.testing.assert_array_equal(run(again, 3).posterior.mean, run(None, 3).posterior.mean)


@pytest.mark.parametrize("write", ["posterior", "text", "table"])
def test_a_result_survives(tmp_path, full, write):
    path = tmp_path / "result"
    writes = {
        "posterior": lambda: pt.Posterior(MODEL, PRIOR).save(path),
        "text": lambda: atomic.write_text(path, "{}"),
        "table": lambda: atomic.write_csv(path, [{"name": "x"}]),
    }
    writes[write]()
    before = path.read_bytes()
    full()
    with pytest.raises(pt.InputError, match=f"result {SENTENCE}"):
        writes[write]()
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_the_same(tmp_path):
    shutil.copy(__file__, tmp_path / "file")
    with pytest.raises(pt.errors.DiskError, match="cannot be written"):
        pt.Posterior(MODEL, PRIOR).save(tmp_path / "file" / "posterior.npz")
