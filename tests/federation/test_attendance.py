"""Who took part in a federation's run, with how many rows, and whose answers were refused for good."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.federation import config
from partita.federation.client import Client
from partita.federation.serve import LEDGER_FILE, serve
from partita.storage.ledger import Ledger
from support.clinic_files import TOML, clinic, write
from support.weather import FaultyLink


class Apart(FaultyLink):
    """Some never come; the answers of others hold NaN."""

    def __init__(self, endpoints, never=(), damaged=()):
        super().__init__(endpoints)
        self.never, self.damaged = never, damaged

    def present(self):
        return [name for name in self.endpoints if name not in self.never]

    def poll(self, timeout):
        letter = super().poll(timeout)
        if letter is None or letter.name not in self.damaged or letter.message.header.get("kind") != "update":
            return letter
        arrays = {name: np.full_like(array, np.nan) for name, array in letter.message.arrays.items()}
        return letter._replace(message=letter.message._replace(arrays=arrays))


@pytest.fixture
def study(tmp_path):
    """A federation's folder, its configuration and its clients; one has rows with missing numbers."""
    (tmp_path / config.CONFIG_FILE).write_text(TOML.replace("rounds = 8", "rounds = 8\nassemble = 20"))
    federation = config.load(tmp_path)
    for seed, name in enumerate(federation.clients):
        rows = clinic(seed)
        if name == "west":
            rows = [("", *row[1:]) if k < 4 else row for k, row in enumerate(rows)]
        write(tmp_path / f"{name}.csv", rows)
    clients = {name: Client(name, federation, tmp_path / f"{name}.csv") for name in federation.clients}
    return tmp_path, federation, clients


def shown(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_who_never_came_is_named_in_the_result(study):
    folder, federation, clients = study
    result = serve(folder, federation, Apart(clients, never=["north"]))
    assert "north never came" in result.message
    about = json.loads((folder / "result.json").read_text())
    assert "north never came" in about["message"]
    members = {member["name"]: member for member in about["clients"]}
    assert members["north"] == members["north"] | {"rows": 0, "answers": 0, "took_part": False}
    assert members["west"] == members["west"] | {"rows": 30, "imputed": {"age": 4}, "took_part": True}
    text = shown("result", folder)
    assert "north never came" in text
    assert "missing numbers, set to the mean: 4 of age" in text


def test_an_answer_refused_for_good_is_said_in_the_result(study):
    folder, federation, clients = study
    result = serve(folder, federation, Apart(clients, damaged=["north"]))
    assert "The last answer of north was refused: it" in result.message
    assert "north has no part in the posterior" in result.message
    members = {member["name"]: member for member in json.loads((folder / "result.json").read_text())["clients"]}
    assert not members["north"]["took_part"]
    assert members["north"]["refused"]


def test_who_does_not_fit_is_named_with_the_reason(study):
    folder, federation, clients = study
    write(folder / "north.csv", [(*row[:2], "awful", *row[3:]) for row in clinic(1)])
    result = serve(folder, federation, FaultyLink(clients))
    assert "north does not fit: " in result.message
    assert "'pain'" in result.message


def test_when_nobody_fits_the_error_says_why(study):
    folder, federation, clients = study
    for name in federation.clients:
        write(folder / f"{name}.csv", [(*row[:2], "awful", *row[3:]) for row in clinic(1)])
    with pytest.raises(pt.InputError, match=r"No client enrolled in time.*east does not fit: .*'pain'"):
        serve(folder, federation, FaultyLink(clients))


def test_a_refusal_for_good_is_said_in_one_process_too():
    rows = [pt.Table(np.ones((4, 1)), np.array([0.0, 1.0, 1.0, 0.0])) for _ in range(2)]
    prior = pt.MeanFieldGaussian.standard_normal(1)

    class Refusing(pt.LocalEngine):
        def next(self, timeout=np.inf):
            answer = super().next(timeout)
            if answer is None or not answer.task.endswith(".1"):
                return answer
            damaged = dataclasses.replace(answer.reply.delta, log_scale=np.nan)
            return answer._replace(reply=dataclasses.replace(answer.reply, delta=damaged))

    engine = Refusing(pt.federate(rows, names=["good", "bad"]))
    result = pt.run(pt.methods.sequential(), pt.LogisticRegression(), prior, engine=engine, rounds=2)
    assert "The last answer of bad was refused: it" in result.message


def test_a_finished_run_is_shown_as_stored_and_asks_nobody(study):
    """Without any client it was printed as *converged*."""
    folder, federation, clients = study
    federation = dataclasses.replace(federation, run=dataclasses.replace(federation.run, rounds=60.0))
    first = serve(folder, federation, FaultyLink(clients))
    assert first.status is pt.Status.CONVERGED
    written = (folder / "result.json").read_text()
    again = serve(folder, federation, FaultyLink({}))
    assert again.message.startswith("This run finished on 20")
    for part in ("stored result", first.message, f"partita result {folder}", "partita resume", "another folder"):
        assert part in again.message
    assert json.loads((folder / "result.json").read_text()) == json.loads(written)
    assert serve(folder, federation, FaultyLink({})).message == again.message


def test_a_finished_run_with_more_to_do_goes_on(study):
    folder, federation, clients = study
    first = serve(folder, federation, FaultyLink(clients))
    Ledger(folder / LEDGER_FILE).request("west", "retire")
    more = dataclasses.replace(federation, run=dataclasses.replace(federation.run, rounds=60.0))
    after = serve(folder, more, FaultyLink(clients))
    assert after.state.answers > first.state.answers
    assert "stored" not in after.message
