"""The real apps of server and clients over a stand-in for Flower's link."""

import csv
import errno
import os

import numpy as np
import pytest

from partita.data import beta_kappa
from partita.data.datasets import adult_frames
from partita.errors import DiskError
from partita.federation import config, enrolment
from partita.federation.enrolment import Enrolment
from partita.federation.rehearse import Rehearsal
from partita.federation.serve import LEDGER_FILE
from partita.storage.ledger import Ledger
from support.clinic_files import TOML, clinic, write

pytest.importorskip("flwr")
from support.grid import serve

METHODS = ("sequential", "synchronous")
ADULT = """
name = "adult"
clients = {clients}

[data]
response = "income"
numbers = {numbers}
categories = {categories}

[model]
kind = "logistic"

[method]
name = "{method}"

[run]
rounds = 2
"""


def check(folder, files):
    """The posterior in the folder is that of one process."""
    rehearsal = Rehearsal.read(config.load(folder), files)
    there, here = rehearsal.posterior(folder), rehearsal.run().posterior.q
    for far, near in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_allclose(far, near, rtol=1e-8)


@pytest.fixture
def files(tmp_path):
    found = {name: tmp_path / f"{name}.csv" for name in ("east", "north", "west")}
    for seed, path in enumerate(found.values()):
        write(path, clinic(seed))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_results_equal_those_of_one_process(method, tmp_path, files):
    (tmp_path / config.CONFIG_FILE).write_text(TOML + f'[method]\nname = "{method}"\n')
    serve(tmp_path, files)
    check(tmp_path, files)


def test_arrays_travel_in_flowers_own_records(tmp_path, files):
    """Every array of a message is one of Flower's, of 8 numbers or one, and its header a text."""
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    grid = serve(tmp_path, files)
    tasks = [message.content for message in grid.pushed if message.metadata.message_type == "train.partita"]
    assert tasks
    for content in tasks:
        assert set(content) == {"arrays", "header"}
        assert list(content["header"]) == ["json"]
        assert all(array.shape in ((8,), ()) for array in content["arrays"].values())
    assert {array.dtype for content in tasks for array in content["arrays"].values()} == {"<f8"}


def test_a_file_that_is_corrected_while_its_client_runs_is_read_again(tmp_path, files, monkeypatch):
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    write(files["north"], [])
    refuse, reasons = Enrolment._refuse, []

    def corrected(reception, name, what, reason):
        refuse(reception, name, what, reason)
        reasons.append((name, reason))
        write(files["north"], clinic(1))

    monkeypatch.setattr(Enrolment, "_refuse", corrected)
    monkeypatch.setattr(enrolment, "RETRY_INCOMPATIBLE_SECONDS", 0.0)
    serve(tmp_path, files)
    assert reasons == [("north", "Its file has no rows.")]
    check(tmp_path, files)


def test_on_a_full_disk_the_first_error_is_told_and_the_run_can_go_on(tmp_path, files, monkeypatch):
    """What failed when the app wrote its ending was told instead."""
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    said = Ledger.say

    def fsync(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def say(ledger, key, value):
        if key == "ended":
            raise DiskError(ledger.path, "the disk is full")
        said(ledger, key, value)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fsync)
        with pytest.raises(DiskError, match=r"posterior.npz cannot be written .*free some space"):
            serve(tmp_path, files)
        ended = Ledger(tmp_path / LEDGER_FILE).said("ended")
        assert ended["status"] == "failed"
        assert "posterior.npz cannot be written" in ended["message"]
        full.setattr(Ledger, "say", say)
        with pytest.raises(DiskError, match=r"posterior.npz cannot be written .*free some space"):
            serve(tmp_path, files)
    grid = serve(tmp_path, files)
    assert not any('"update"' in message.content["header"]["json"] for message in grid.pushed)
    check(tmp_path, files)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_results_on_adult_equal_those_of_one_process(method, tmp_path):
    """Ten clients that differ in size and class (B), twenty messages; what is missing in Adult is a category here."""
    frame = adult_frames().train
    levels = frame.levels
    names = [f"client{k}" for k in range(10)]
    numbers = [column for column in frame.columns if column not in levels]
    categories = "{ " + ", ".join(f'"{column}" = {list(some)}' for column, some in levels.items()) + " }"
    text = ADULT.format(clients=names, numbers=numbers, categories=categories, method=method).replace("'", '"')
    (tmp_path / config.CONFIG_FILE).write_text(text.replace('"?"', '"unknown"'))
    files = {name: tmp_path / f"{name}.csv" for name in names}
    for path, indices in zip(files.values(), beta_kappa(frame.y, 10, 0.7, -3.0), strict=True):
        own = frame.rows(indices)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*own.columns, "income"])
            rows = zip(*own.columns.values(), own.y, strict=True)
            writer.writerows(["unknown" if value == "?" else value for value in row] for row in rows)
    serve(tmp_path, files)
    check(tmp_path, files)
