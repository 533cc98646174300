"""The commands of a federation, but for those that call over a network."""

import json
import re

import pytest
from typer.testing import CliRunner

from partita.cli import app
from partita.errors import InputError
from partita.federation import config, running
from partita.federation.client import Client
from partita.federation.serve import LEDGER_FILE, serve
from partita.storage.ledger import Ledger
from partita.tables.spec import Settings
from support.clinic_files import clinic, write
from support.weather import FaultyLink

ASKED = (
    "ill ~ age + pressure + pain + site", "--family", "bernoulli", "--client", "east", "--client", "west",
)  # fmt: skip


def partita(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def study(tmp_path):
    """A federation that `init` made, with its clients' files beside it."""
    for seed, name in enumerate(("east", "west")):
        write(tmp_path / f"{name}.csv", [row[:5] for row in clinic(seed)], ("age", "pressure", "pain", "site", "ill"))
    folder = tmp_path / "study"
    done = partita("federation", "init", folder, *ASKED, "--example", tmp_path / "east.csv")
    assert done.exit_code == 0
    return folder


def clients(study):
    federation = config.load(study)
    return federation, {name: Client(name, federation, study.parent / f"{name}.csv") for name in federation.clients}


def test_init_writes_a_readable_configuration_and_copies_it_to_every_client(study):
    federation = config.load(study)
    assert federation.fit == Settings("ill ~ age + pressure + pain + site", "bernoulli")
    assert (study / "server.key").exists()
    for name in federation.clients:
        assert config.load(study / "clients" / name).digest == federation.digest
    text = (study / "federation.toml").read_text()
    assert "# in nats" in text
    assert not re.search("yes|much|right", text), "nothing of the example's values is written"


@pytest.mark.parametrize("address", ["data.example.org:9092", "127.0.0.1:9092"])
def test_a_federation_gets_certificates_and_one_key_per_client(address, study):
    """On loopback too, where other accounts of the machine are."""
    folder = study.parent / "far"
    partita("federation", "init", folder, *ASKED, "--address", address)
    handed = {
        path.relative_to(folder / "clients").as_posix() for path in (folder / "clients").rglob("*") if path.is_file()
    }
    files = ("federation.toml", "ca.crt", "server.pub")
    assert handed == {f"{n}/{file}" for n in ("east", "west") for file in (*files, f"keys/{n}")}
    for secret in (folder / "server.key", folder / "clients" / "east" / "keys" / "east"):
        assert secret.stat().st_mode & 0o077 == 0


def test_a_folder_written_by_hand_gets_certificates_and_keys_by_a_command(study):
    folder = study.parent / "mine"
    folder.mkdir()
    (folder / "federation.toml").write_text((study / "federation.toml").read_text())
    partita("federation", "credentials", folder)
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert made == {path.relative_to(study).as_posix() for path in study.rglob("*") if path.is_file()}
    secrets = (folder / "server.key", folder / "clients" / "east" / "keys" / "east")
    before = [path.read_text() for path in secrets]
    partita("federation", "credentials", folder)
    assert before == [path.read_text() for path in secrets]


def test_status_and_result_show_what_the_ledger_and_the_run_left(study):
    federation, there = clients(study)
    result = serve(study, federation, FaultyLink(there))
    shown = json.loads(partita("status", study, "--json").output)
    assert shown["ended"] == result.message
    assert shown["communications"] == result.state.communications
    assert [(member["name"], member["rows"], member["refused"]) for member in shown["members"]] == [
        ("east", 30, 0),
        ("west", 30, 0),
    ]
    assert sum(member["accepted"] for member in shown["members"]) == result.state.answers
    assert "converged" in result.status.value
    assert shown["free_energy"] == pytest.approx(result.history["reported_free_energy"][-1])
    assert "east" in partita("status", study).output
    summary = json.loads(partita("result", study, "--json").output)["summary"]
    assert [row["name"] for row in summary][:2] == ["Intercept", "age"]
    assert (study / "result.png").stat().st_size > 10_000


def test_the_retire_command_divides_the_clients_factor_out(study):
    federation, there = clients(study)
    serve(study, federation, FaultyLink(there))
    assert partita("federation", "retire", study, "west").exit_code == 0
    after = serve(study, federation, FaultyLink(there))
    assert after.state.inactive.tolist() == [False, True]
    assert not after.state.factors[1].natural.precision.any()
    events = Ledger(study / LEDGER_FILE)._db.execute("SELECT event FROM events WHERE name = 'west'").fetchall()
    assert ("retire",) in events


def test_the_status_shows_requests_that_failed(study):
    federation, there = clients(study)
    serve(study, federation, FaultyLink(there))
    Ledger(study / LEDGER_FILE).note("west", "could not retire", "Without west the posterior would be improper.")
    assert "west: it could not retire: Without west" in partita("status", study).output


def test_a_client_added_to_the_configuration_gets_credentials_and_joins_on_resume(study):
    federation, there = clients(study)
    serve(study, federation, FaultyLink(there))
    text = (study / "federation.toml").read_text()
    changed = text.replace('clients = ["east", "west"]', 'clients = ["east", "west", "south"]')
    (study / "federation.toml").write_text(changed.replace("rounds = 20", "rounds = 60"))
    write(study.parent / "south.csv", [row[:5] for row in clinic(2)], ("age", "pressure", "pain", "site", "ill"))
    assert str(study / "clients" / "south") in partita("federation", "credentials", study).output
    assert config.load(study / "clients" / "east").clients == ("east", "west", "south")
    assert partita("federation", "join", study, "south").exit_code == 0
    federation, there = clients(study)
    after = serve(study, federation, FaultyLink(there))
    assert after.state.names == ("east", "west", "south")
    assert after.status.value == "converged"
    assert after.state.versions[2] > 0


UNFIT = {
    "no rows": (lambda rows: [], "has no rows", "The table has no rows"),
    "a column is missing": (lambda rows: [row[1:] for row in rows], "no column 'age': it has", "no column 'age'"),
    "a continuous response": (
        lambda rows: [(*row[:4], 0.123) for row in rows],
        "0.123",
        "column 'ill' does not fit the model, whose labels are 0 or 1",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_client_whose_rows_do_not_fit_stays_to_tell_the_server(case, study, monkeypatch, capfd):
    """It ended, and the server saw somebody who never came."""
    change, private, public = UNFIT[case]
    path = study / "federation.toml"
    path.write_text(path.read_text().replace("assemble = 600", "assemble = 20"))
    partita("federation", "credentials", study)
    columns = ("age", "pressure", "pain", "site", "ill")
    for seed, name in enumerate(("east", "west")):
        rows = [(*row[:4], int(row[4] == "yes")) for row in clinic(seed)]
        write(study.parent / f"{name}.csv", rows, columns)
    changed = change(rows)
    write(study.parent / "west.csv", changed, columns[-len(changed[0]) :] if changed else columns)
    started = []
    monkeypatch.setattr(running, "run_client", lambda *arguments: started.append(arguments))
    done = partita("client", study / "clients" / "west", "--name", "west", "--data", study.parent / "west.csv")
    assert done.exit_code == 0
    assert private in done.output
    assert "correct the file" in done.output
    (about,) = started
    federation, there = clients(study)
    result = serve(study, federation, FaultyLink(there | {"west": Client(about[2], about[1], about[3])}))
    assert "west does not fit: " in result.message
    assert public in result.message
    assert "0.123" not in result.message
    shown = json.loads(partita("status", study, "--json").output)["members"]
    assert public in next(member for member in shown if member["name"] == "west")["last_error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status", "nowhere"), "There is no nowhere/federation.toml"),
        (("resume", "{study}"), "There is nothing to resume"),
        (("status", "{study}"), "start the run"),
        (("result", "{study}"), "There is no result"),
        (("federation", "retire", "{study}", "nobody"), "no client named 'nobody'"),
        (("client", "{study}", "--name", "east", "--data", "nothing.csv"), "There is no file nothing.csv"),
    ],
)
def test_invalid_arguments_raise_an_error_message(study, arguments, message):
    with pytest.raises(InputError, match=message):
        partita(*(argument.format(study=study) for argument in arguments))
