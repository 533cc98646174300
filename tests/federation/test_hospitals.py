"""The four hospitals over an in-memory link: of the Heart Disease data where it is at hand, and otherwise made up."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest
import typer

from partita.data import Partition
from partita.federation import config
from partita.federation.client import Client
from partita.federation.rehearse import Rehearsal
from partita.federation.serve import LEDGER_FILE, serve
from partita.storage.ledger import Ledger
from support.weather import FaultyLink

FOLDER = Path(__file__).parents[2] / "examples" / "hospitals"
_spec = importlib.util.spec_from_file_location("hospitals", FOLDER / "run.py")
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    frames = example.heart_disease() or example.synthetic_hospitals()
    folder = tmp_path_factory.mktemp("rows")
    for name, frame in frames.items():
        example.write(folder / f"{name}.csv", frame)
    return {name: folder / f"{name}.csv" for name in frames}


def test_the_example_leaves_a_folder_that_is_there_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.csv").write_text("my own\n")
    monkeypatch.setattr(example, "write", None)
    with pytest.raises(typer.Exit):
        example.main(tmp_path)
    assert "is there already: choose another folder" in " ".join(capsys.readouterr().out.split())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def settings(method="sequential", rounds=20):
    text = (
        (FOLDER / config.CONFIG_FILE)
        .read_text()
        .replace("sequential", method)
        .replace("rounds = 20", f"rounds = {rounds}")
    )
    return config.read(text.encode(), config.CONFIG_FILE)


def test_answers_in_any_order_end_at_the_same_free_energy(files, tmp_path):
    """Within 0.1 nats with covariances, where messages take one to dozens of seconds."""
    federation = settings("asynchronous", rounds=60)
    link = FaultyLink({name: Client(name, federation, path) for name, path in files.items()}, delay=10.0)
    serve(tmp_path, federation, link)
    rehearsal = Rehearsal.read(settings(), files)
    there, here = rehearsal.posterior(tmp_path), rehearsal.run().posterior.q
    assert rehearsal.free_energy(there) == pytest.approx(rehearsal.free_energy(here), abs=0.1)


def test_after_retiring_the_result_is_as_if_the_hospital_had_never_joined(files, tmp_path):
    """The others keep the scale of columns on which all had agreed."""
    federation = settings(rounds=3)
    clients = {name: Client(name, federation, path) for name, path in files.items()}
    serve(tmp_path, federation, FaultyLink(clients))
    Ledger(tmp_path / LEDGER_FILE).request("va", "retire")
    serve(tmp_path, settings(rounds=40), FaultyLink(clients))
    whole = Rehearsal.read(settings(), files)
    parts = Partition(whole.partition.shards[:3], whole.partition.names[:3], whole.partition.sizes[:3])
    never = dataclasses.replace(whole, partition=parts)
    there, here = whole.posterior(tmp_path), never.run().posterior.q
    apart = never.free_energy(whole.run().posterior.q) - never.free_energy(here)
    assert apart < -0.1
    assert never.free_energy(there) == pytest.approx(never.free_energy(here), abs=0.1)
