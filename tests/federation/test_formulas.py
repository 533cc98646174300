"""Federations of a formula: its design is agreed on in stages, whatever happens to messages, server and clients."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import InputError
from partita.federation import config, fitted
from partita.federation.beginning import agreed, beginning
from partita.federation.client import Client
from partita.federation.enrolment import Enrolment
from partita.federation.loop import Loop
from partita.federation.serve import LEDGER_FILE, serve
from partita.io import wire
from partita.storage.ledger import Ledger
from partita.tables.likelihoods import LIKELIHOODS
from support.clinic_files import COLUMNS, clinic, write
from support.weather import CrashAfter, CrashingLedger, FaultyLink, ServerKilled

NAMES = ("east", "north", "west")
FORMULA = "ill ~ bs(age, df=4) + pressure + pain"
TOML = """
name = "clinics"
clients = ["east", "north", "west"]

[fit]
formula = "{formula}"
family = "{family}"

[run]
assemble = 20
"""


def asked(formula=FORMULA, family="bernoulli", more=""):
    return config.read((TOML.format(formula=formula, family=family) + more).encode(), "federation.toml")


def written(folder, rows=None, columns=COLUMNS):
    """The clients' files; `rows` are those of clients that differ."""
    files = {name: folder / f"{name}.csv" for name in NAMES}
    for seed, (name, path) in enumerate(files.items()):
        write(path, (rows or {}).get(name, clinic(seed)), columns)
    return files


def clients(federation, files):
    return {name: Client(name, federation, path) for name, path in files.items()}


def assembled(federation, folder, link):
    reception = Enrolment(federation, link, Ledger(folder / LEDGER_FILE))
    return reception, reception.assemble().to_dict()


def alone(federation, files, names=NAMES):
    """The design that these clients agree on, without a message."""
    begun = beginning(federation)
    return agreed(begun, [begun.read(files[name], name) for name in names]).to_dict()


def events(folder, kind="incompatible"):
    found = Ledger(folder / LEDGER_FILE)._db.execute("SELECT name, text FROM events WHERE event = ?", (kind,))
    return found.fetchall()


FAMILIES = {
    "gaussian": "pressure ~ age + pain",
    "bernoulli": "ill ~ age + pressure + pain",
    "probit": "ill ~ age + pain",
    "poisson": "visits ~ age + pain + offset(log(pressure))",
}
assert set(FAMILIES) == set(LIKELIHOODS)
QUICK = ("gaussian", "poisson")
"""With what others do not have: learned noise and row weights, and an offset."""


@pytest.mark.parametrize(
    "family", [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def test_a_federation_equals_the_fit_of_one_table(family, tmp_path):
    """Coefficients in own units, for every likelihood; one has offsets, and another row weights."""
    weights = 'weights = "age"\n' if family == "gaussian" else ""
    rows = {name: [(*row, k % 3) for k, row in enumerate(clinic(seed))] for seed, name in enumerate(NAMES)}
    files = written(tmp_path, rows, (*COLUMNS, "visits"))
    federation = asked(FAMILIES[family], family)
    federation = dataclasses.replace(federation, fit=dataclasses.replace(federation.fit, weights="age" * bool(weights)))
    (tmp_path / config.CONFIG_FILE).write_text(TOML.format(formula=FAMILIES[family], family=family).replace(
        "\n[run]", f"{weights}\n[run]"))  # fmt: skip
    assert config.load(tmp_path) == federation
    serve(tmp_path, federation, Loop(clients(federation, files)))
    there = fitted(tmp_path)
    table = {column: [row[k] for name in NAMES for row in rows[name]] for k, column in enumerate((*COLUMNS, "visits"))}
    table["clinic"] = np.repeat(NAMES, 30)
    here = pt.fit(FAMILIES[family], table, family=family, sites="clinic", weights="age" if weights else None)
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(there.covariance, here.covariance, rtol=1e-7, atol=1e-12)
    assert there.table() == here.table()
    for part, numbers in there.by_site("age")["north"].items():
        assert numbers == pytest.approx(here.by_site("age")["north"][part], rel=1e-6)
    np.testing.assert_allclose(there.predict(files["east"]), here.predict(files["east"]), rtol=1e-7)
    with pytest.raises(InputError, match="partita federation retire"):
        there.without("north")


def test_a_rehearsal_equals_a_run_over_a_bad_network_to_the_last_bit(tmp_path):
    """Sequential, so that the order of answers is that of the tasks, however long they take."""
    files, federation = written(tmp_path), asked()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = serve(tmp_path / "here", federation, Loop(clients(federation, files)))
    link = FaultyLink(clients(federation, files), repeat=0.3, delay=3.0)
    there = serve(tmp_path / "there", dataclasses.replace(
        federation, run=dataclasses.replace(federation.run, assemble=600.0, deadline=60.0)), link)  # fmt: skip
    assert here.status is there.status is pt.Status.CONVERGED
    np.testing.assert_array_equal(here.posterior.q.precision, there.posterior.q.precision)
    np.testing.assert_array_equal(here.posterior.q.precision_mean, there.posterior.q.precision_mean)
    assert (tmp_path / "here" / "summary.csv").read_text() == (tmp_path / "there" / "summary.csv").read_text()
    summary = list(csv.DictReader((tmp_path / "here" / "summary.csv").read_text().splitlines()))
    assert summary[0].keys() == {
        "name", "mean", "sd", "low", "high", "standardised", "ratio", "ratio_low", "ratio_high",
    }  # fmt: skip
    assert [row["name"] for row in summary][-2:] == ["pain[T.much]", "pain[T.none]"]


@pytest.mark.parametrize("seed", range(4))
def test_stages_are_agreed_on_over_a_bad_network(seed, tmp_path):
    """Three stages; what is lost is asked again, and what comes twice or late changes nothing."""
    files, federation = written(tmp_path), asked()
    patient = dataclasses.replace(federation, run=dataclasses.replace(federation.run, assemble=6000.0))
    link = FaultyLink(clients(federation, files), seed, loss=0.3, repeat=0.5, delay=20.0, crash=0.1)
    reception, found = assembled(patient, tmp_path, link)
    assert found == alone(federation, files)
    assert reception.rows == dict.fromkeys(NAMES, 30)


def test_a_server_killed_anywhere_in_round_0_goes_on_to_the_same_design(tmp_path):
    files, federation = written(tmp_path), asked()
    expected, kills = alone(federation, files), 0
    for place in range(2, 40, 4):
        link = FaultyLink(clients(federation, files), crash_after=CrashAfter(place))
        folder = tmp_path / f"{place}"
        folder.mkdir()
        try:
            Enrolment(federation, link, CrashingLedger(folder / LEDGER_FILE, link.crash_after)).assemble()
        except ServerKilled:
            kills += 1
        link.crash_after = CrashAfter()
        _, found = assembled(federation, folder, link)
        assert found == expected
    assert kills > 5


class Leaving(FaultyLink):
    """A client that is gone after its first answer, and comes back."""

    back = np.inf

    def present(self):
        away = sum(b'"answer"' in message and b'"name": "north"' in message for message in self.sent) > 0
        return [name for name in self.endpoints if name != "north" or not away or self.time >= self.back]

    def post(self, name, message):
        if name in self.present():
            super().post(name, message)


def test_who_is_gone_between_stages_has_no_part_in_the_design_and_may_come_back(tmp_path):
    rows = [(*row[:2], "awful" if row[2] == "much" else row[2], *row[3:]) for row in clinic(1)]
    files, federation = written(tmp_path, {"north": rows}), asked()
    link = Leaving(clients(federation, files))
    reception, found = assembled(federation, tmp_path, link)
    assert found == alone(federation, files, ("east", "west"))
    assert list(reception.rows) == ["east", "west"]
    assert "did not answer" in reception.unfit["north"]
    link.back = 0.0
    write(files["north"], clinic(1))
    link.endpoints["north"] = Client("north", federation, files["north"])
    for _ in range(30):
        reception.greet()
        letter = link.poll(1.0)
        if letter is not None:
            reception.welcome(letter)
    assert list(reception.rows) == ["east", "west", "north"]
    assert reception.scheme.to_dict() == found


def test_a_server_is_told_when_everybody_leaves(tmp_path):
    files, federation = written(tmp_path), asked()

    class Empty(FaultyLink):
        def present(self):
            return [] if sum(b'"answer"' in message for message in self.sent) > 2 else super().present()

    with pytest.raises(InputError, match="Every client left in round 0"):
        assembled(federation, tmp_path, Empty(clients(federation, files)))


TEXTS = "Column 'pressure' holds texts, but pressure needs numbers: use C(pressure), or recode it."


class Late(FaultyLink):
    """One client comes when the design is fixed."""

    def present(self):
        return [name for name in self.endpoints if name != "north" or self.time >= 23.0]


@pytest.mark.parametrize("change", ["level", "label", "kind", "none"])
def test_a_late_client_is_held_to_the_design_and_tells_no_value(change, tmp_path):
    place, value, public = {
        "level": (2, "awful", "pain has a level that was not agreed on."),
        "label": (4, "maybe", "The response 'ill' has a label that was not agreed on."),
        "kind": (1, "steep", TEXTS),
        "none": (2, "some", ""),
    }[change]  # fmt: skip
    rows = [(*row[:place], value, *row[place + 1 :]) for row in clinic(1)]
    files, federation = written(tmp_path, {"north": rows}), asked()
    federation = dataclasses.replace(federation, run=dataclasses.replace(federation.run, rounds=2.0))
    link = Late(clients(federation, files))
    there = serve(tmp_path, federation, link)
    assert there.state.names == (("east", "west", "north") if change == "none" else ("east", "west"))
    assert events(tmp_path) == ([] if change == "none" else [("north", public)])
    if change != "none":
        assert public.rstrip(".") in there.message
        assert not any(value.encode() in message for message in link.sent)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(*row[:1], "high", *row[2:]) for row in clinic(1)], "Column 'pressure' holds texts"),
        ([(*row[:2], 3.0, *row[3:]) for row in clinic(1)], "pain is numeric here and categorical at most clients"),
        ([(*row[:4], row[4].upper(), row[5]) for row in clinic(1)], "has other labels than at most clients"),
        ([(*row[:4], "", row[5]) for row in clinic(1)], "Every row has a missing value."),
    ],
    ids=["text", "kind", "labels", "missing"],
)
def test_a_client_that_differs_from_most_stays_out_and_is_told(rows, told, tmp_path, caplog):
    files, federation = written(tmp_path, {"north": rows}), asked("ill ~ age + I(pressure) + pain")
    reception, found = assembled(federation, tmp_path, FaultyLink(clients(federation, files)))
    assert list(reception.rows) == ["east", "west"]
    assert found == alone(federation, files, ("east", "west"))
    ((name, reason),) = events(tmp_path)
    assert name == "north"
    assert told in reason
    assert any(message.startswith("north: ") for message in caplog.messages)


class Liar:
    """A client that answers one of the stages with something else."""

    def __init__(self, client, stage, answer):
        self.client, self.stage, self.answer, self.asked = client, stage, answer, []

    def handle(self, message):
        found = self.client.handle(message)
        if message.header["kind"] != "hello":
            return found
        self.asked += [message.header["task"]] * (message.header["task"] not in self.asked)
        lies = self.asked.index(message.header["task"]) == self.stage
        return found._replace(header=found.header | {"answer": self.answer}) if lies else found


@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize("answer", [None, [], {}, "all", {"columns": [1]}, {"bs(age, df=4)": [0] * 80}, 3])
def test_a_false_answer_at_any_stage_is_refused_and_the_others_agree(answer, stage, tmp_path):
    files, federation = written(tmp_path), asked()
    there = clients(federation, files)
    _, found = assembled(federation, tmp_path, FaultyLink(there | {"north": Liar(there["north"], stage, answer)}))
    assert found == alone(federation, files, ("east", "west"))
    assert events(tmp_path)[0][0] == "north"


def test_answers_are_counts_and_sums_of_the_formulas_columns(tmp_path):
    """As many numbers of twice the rows, and nothing of other columns."""
    lengths = []
    for rows in (30, 60):
        folder = tmp_path / f"{rows}"
        folder.mkdir()
        doubled = {name: clinic(seed, 30) * (rows // 30) for seed, name in enumerate(NAMES)}
        files, federation = written(folder, doubled), asked()
        link = FaultyLink(clients(federation, files))
        assembled(federation, folder, link)
        answers = [message.header["answer"] for message in map(wire.unpack, link.sent) if "answer" in message.header]
        assert len(answers) == 9
        assert not any(word in message for message in link.sent for word in (b"Doe", b"site", b"left"))
        lengths.append([len(json.dumps(answer).split(",")) for answer in answers])
    assert lengths[0] == lengths[1]


def test_rows_with_missing_values_are_left_out_and_told(tmp_path):
    rows = [("" if k < 4 else row[0], *row[1:]) for k, row in enumerate(clinic(1))]
    files, federation = written(tmp_path, {"north": rows}), asked("ill ~ age + pain")
    (tmp_path / config.CONFIG_FILE).write_text(TOML.format(formula="ill ~ age + pain", family="bernoulli"))
    serve(tmp_path, federation, Loop(clients(federation, files)))
    shown = CliRunner().invoke(app, ["result", str(tmp_path)], catch_exceptions=False).output
    assert "north: 26 rows used, none dropped" in shown
    assert "4 rows with missing values left out" in shown
    assert "86 rows of 3 sites, 4 rows with missing values dropped." in shown
    assert "odds ratio" in shown
    assert "Reference of pain: " in shown
    assert str(fitted(tmp_path).coefficients()[1].mean)[:6] in (tmp_path / "summary.csv").read_text()


CODE = "ill ~ {__import__('pathlib').Path('run').touch() or age}"


def test_code_in_the_formula_of_a_file_or_a_message_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        asked(CODE)
    files, federation = written(tmp_path), asked()
    client = Client("east", federation, files["east"])
    design = alone(federation, files)
    about = {"kind": "hello", "digest": federation.digest, "task": "x"}
    for formula in (CODE, "ill ~ age"):
        sent = design | {"design": design["design"] | {"formula": formula}}
        assert client.handle(wire.Message({**about, "agreed": sent}, {})).header["kind"] == "error"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change", [{"formula": "ill ~ age"}, {"family": "probit"}, {"prior": "normal(0, 1)"}, {"weights": "age"}]
)
def test_a_client_with_another_fit_is_told(change, tmp_path):
    files, federation = written(tmp_path), asked()
    other = dataclasses.replace(federation, fit=dataclasses.replace(federation.fit, **change))
    answer = Client("east", other, files["east"]).handle(
        wire.Message({"kind": "hello", "digest": federation.digest}, {})
    )
    assert "copy the server's" in answer.header["reason"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('family = "bernoulli"', 'family = "bernouli"', "bernouli"),
        (f'formula = "{FORMULA}"\n', "", "without 'formula'"),
        ("[run]", '[model]\nkind = "logistic"\n[run]', r"leave out \[data\], \[model\] and \[prior\]"),
        ("[run]", "[prior]\nscale = 2.0\n[run]", r"leave out \[data\], \[model\] and \[prior\]"),
        ("[fit]", "[admission]\n[old]", "old"),
        (f'[fit]\nformula = "{FORMULA}"\nfamily = "bernoulli"\n', "", r"has no \[fit\] with a formula"),
        ('family = "bernoulli"', 'family = "bernoulli"\nprior = "flat"', "Write the prior as"),
        ('family = "bernoulli"', "weights = 3", "'weights', where a text"),
    ],
)
def test_a_mistake_in_the_file_is_told(old, new, message):
    text = TOML.format(formula=FORMULA, family="bernoulli")
    assert old in text
    with pytest.raises(InputError, match=message):
        config.read(text.replace(old, new).encode(), "federation.toml")


def rehearse(*arguments):
    return CliRunner().invoke(app, ["rehearse", *map(str, arguments)], catch_exceptions=False)


def test_the_rehearsal_shows_the_table_and_what_each_client_would_send(tmp_path):
    files = written(tmp_path)
    study = tmp_path / "study"
    study.mkdir()
    (study / config.CONFIG_FILE).write_text(TOML.format(formula=FORMULA, family="bernoulli"))
    pairs = [f"{name}={path}" for name, path in files.items()]
    shown = rehearse(study, *pairs).output
    assert "odds ratio" in shown
    assert "90 rows of 3 sites." in shown
    assert "north: 3 summaries of its columns (" in shown
    assert "A real run with these files sends the same messages" in shown
    assert [path.name for path in study.iterdir()] == [config.CONFIG_FILE]
    told = json.loads(rehearse(study, *pairs, "--json", "--output", tmp_path / "kept").output)
    assert fitted(tmp_path / "kept").names[0] == "Intercept"
    with pytest.raises(InputError, match="kept already exists: choose another folder"):
        rehearse(study, *pairs, "--output", tmp_path / "kept")
    assert told["status"] == "converged"
    assert told["sent"]["north"]["messages"]["hello"] == 3
    assert told["summary"][0]["name"] == "Intercept"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["east"], "'east' is not a client and its file"),
        (["south={}/east.csv"], "no client named 'south'"),
        (["east={0}/east.csv", "east={0}/east.csv"], "east has two files"),
        (["east={}/none.csv"], "There is no file .*none.csv"),
        (["east={}/bad.csv"], "bad.csv: The table has no column 'age'"),
    ],
)
def test_a_mistake_in_a_rehearsal_names_the_file(pairs, message, tmp_path):
    written(tmp_path)
    write(tmp_path / "bad.csv", [row[1:] for row in clinic(0)], COLUMNS[1:])
    (tmp_path / config.CONFIG_FILE).write_text(TOML.format(formula=FORMULA, family="bernoulli"))
    with pytest.raises(InputError, match=message):
        rehearse(tmp_path, *(pair.format(tmp_path) for pair in pairs))
