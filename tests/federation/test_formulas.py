"""Federations of a formula: its design is agreed on in stages, whatever happens to messages, server and clients."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.data.disclosure import Limits
from partita.errors import InputError
from partita.federation import config, fitted
from partita.federation.beginning import agreed, beginning
from partita.federation.client import Client
from partita.federation.enrolment import Enrolment
from partita.federation.loop import Loop
from partita.federation.result import summary as result
from partita.federation.serve import LEDGER_FILE, serve
from partita.federation.status import read_status
from partita.federation.waiting import waiting
from partita.io import wire
from partita.storage.ledger import Ledger
from partita.tables.likelihoods import LIKELIHOODS
from partita.tables.spec import Settings
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
    """Without limits of what is told: they would merge the few counts in bins that clinics of thirty rows have."""
    return {name: Client(name, federation, path, Limits(1, 1)) for name, path in files.items()}


def assembled(federation, folder, link):
    reception = Enrolment(federation, link, Ledger(folder / LEDGER_FILE))
    return reception, reception.assemble().to_dict()


def alone(federation, files, names=NAMES):
    """The design that these clients agree on, without a message."""
    begun = beginning(federation)
    return agreed(begun, [begun.read(files[name], name) for name in names], Limits(1, 1)).to_dict()


def events(folder, kind="incompatible"):
    found = Ledger(folder / LEDGER_FILE)._db.execute("SELECT name, text FROM events WHERE event = ?", (kind,))
    return found.fetchall()


MORE = ("visits", "treated", "cured", "cost", "share", "severity", "days", "died", "ward")
"""Columns of other kinds of response, beside those of the clinics."""


def richer(seed):
    """The rows of a clinic with more columns; times are those of all, so that all have as many episodes."""
    generator, rows = np.random.default_rng(seed + 100), clinic(seed)
    age = np.array([row[0] for row in rows])
    rate = np.exp((age - 60) / 20)
    treated = generator.integers(2, 6, len(rows))
    columns = (
        generator.poisson(rate) * (generator.random(len(rows)) > 0.2),
        treated,
        generator.binomial(treated, 0.4),
        np.round(50 * rate * generator.gamma(2.0, size=len(rows)) + 0.01, 2),
        np.round(generator.beta(2 * rate, 2), 3).clip(0.001, 0.999),
        np.array(["mild", "grave", "dire"])[np.digitize(generator.logistic(size=len(rows)) + rate, [0.8, 2.0])],
        np.round(200 * np.random.default_rng(0).exponential(size=len(rows)) + 1, 1),
        (generator.random(len(rows)) < 0.7).astype(int),
        [f"{seed}{k % 5}w" for k in range(len(rows))],
    )
    return [(*row, *more) for row, more in zip(rows, zip(*columns, strict=True), strict=True)]


CASES = {
    "gaussian": ("pressure ~ age + pain", {"weights": "age"}),
    "gaussian, inferred noise": ("pressure ~ age + pain", {"noise": "inferred"}),
    "gaussian, known noise": ("pressure ~ age + pain", {"noise": "12.5", "weights": "age"}),
    "bernoulli": ("ill ~ age + pressure + pain", {"positive": "no"}),
    "bernoulli, horseshoe": (
        "ill ~ age + pressure + pain",
        {"prior": "horseshoe(0.3); age: student_t(3, 0, 2.5); pain: normal(0, half_normal(1))"},
    ),
    "bernoulli, groups": ("ill ~ age + pain + (1 + age | ward)", {}),
    "bernoulli, groups in groups": ("ill ~ age + (1 | ward/pain)", {}),
    "multinomial, inferred scales": ("pain ~ age + pressure", {"prior": "laplace(0, half_normal(1))"}),
    "probit": ("ill ~ age + pain", {}),
    "binomial": ("cured ~ age + pain", {"trials": "treated", "link": "cloglog"}),
    "binomial, labels": ("ill ~ age + pain", {"link": "probit", "positive": "no"}),
    "poisson": ("visits ~ age + pain + offset(log(pressure))", {}),
    "negative_binomial": ("visits ~ age + pain", {}),
    "zero_inflated_poisson": ("visits ~ age", {}),
    "zero_inflated_negative_binomial": ("visits ~ age", {}),
    "gamma": ("cost ~ age + pain", {}),
    "beta": ("share ~ age + pain", {}),
    "student_t": ("pressure ~ age + pain", {}),
    "ordinal": ("severity ~ age + pain", {"levels": ["mild", "grave", "dire"]}),
    "multinomial": ("pain ~ age + pressure", {"levels": ["some", "none", "much"]}),
    "weibull": ("days ~ age + pain", {"event": "died"}),
    "exponential": ("days ~ age + pain", {"event": "died"}),
    "piecewise_exponential": ("days ~ age + pain", {"event": "died"}),
    "piecewise_exponential, given cuts": ("days ~ age", {"event": "died", "cuts": [50, 150.5]}),
}
FITS = {case: (formula, case) for case, (formula, _) in CASES.items()}
assert {case.partition(",")[0] for case in CASES} == set(LIKELIHOODS)
QUICK = ("multinomial", "piecewise_exponential")
"""With what others do not have: several predictors, and a stage for the cut points."""


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_federation_equals_the_fit_of_one_table(case, tmp_path):
    """Coefficients in own units, for every likelihood and each of its settings."""
    (formula, settings), family = CASES[case], case.partition(",")[0]
    rows = {name: richer(seed) for seed, name in enumerate(NAMES)}
    columns = (*COLUMNS, *MORE)
    files = written(tmp_path, rows, columns)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / config.CONFIG_FILE).write_text(
        TOML.format(formula=formula, family=family).replace("\n[run]", f"{lines}\n[run]")
    )
    federation = config.load(tmp_path)
    serve(tmp_path, federation, Loop(clients(federation, files)))
    there = fitted(tmp_path)
    table = {column: [row[k] for name in NAMES for row in rows[name]] for k, column in enumerate(columns)}
    table["clinic"] = np.repeat(NAMES, 30)
    here = pt.fit(formula, table, family=family, sites="clinic", **settings)
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(there.covariance, here.covariance, rtol=1e-7, atol=1e-12)
    assert set(there.leaving_out()) == set(NAMES)
    assert there.table() == here.table()
    place = here.names[-1]
    for part, numbers in there.by_site(place)["north"].items():
        assert numbers == pytest.approx(here.by_site(place)["north"][part], rel=1e-6)
    # a server knows no effects of groups
    away = dataclasses.replace(here, partition=pt.Partition((), (), ()))
    np.testing.assert_allclose(there.predict(files["east"]), away.predict(files["east"]), rtol=1e-7)
    with pytest.raises(InputError, match="partita federation retire"):
        there.without("north")
    # answers of 1e-6 nats are 0.0014 sds from each other, and what a client reports changes by about a nat an sd
    assert there.free_energy == pytest.approx(here.free_energy, abs=0.0014 * len(NAMES))
    assert repr(there.drift()) == repr(here.drift())
    there.save(tmp_path / "study")
    kept = pt.Fit.load(tmp_path / "study")
    assert kept.free_energy == pytest.approx(there.free_energy, rel=1e-12)
    assert repr(kept.drift()) == repr(here.drift())
    shown = result(tmp_path)
    assert [row["name"] for row in shown] == [row.name for row in here.coefficients()]
    assert [row["mean"] for row in shown] == pytest.approx([row.mean for row in here.coefficients()], rel=1e-6)
    saved = pt.Posterior.load(tmp_path / "posterior.npz", there.result.posterior.model)
    assert saved.names == here.units.parameters


@pytest.mark.parametrize(
    "case",
    [
        ("ill ~ bs(age, df=4)", "bernoulli", {}),
        pytest.param(("days ~ age", "piecewise_exponential", {"event": "died"}), marks=pytest.mark.slow),
    ],
)
def test_with_limits_a_federation_equals_the_fit_of_one_table_with_them(case, tmp_path):
    """Small counts are merged by default, so that knots, or ends of intervals, are others than without limits."""
    formula, family, settings = case
    rows, columns = {name: richer(seed) for seed, name in enumerate(NAMES)}, (*COLUMNS, *MORE)
    files = written(tmp_path, rows, columns)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    text = TOML.format(formula=formula, family=family).replace("\n[run]", f"{lines}\n[run]")
    federation = config.read(text.encode(), "federation.toml")
    here = {name: Client(name, federation, path) for name, path in files.items()}
    _, found = assembled(federation, tmp_path, Loop(here))
    table = {column: [row[k] for name in NAMES for row in rows[name]] for k, column in enumerate(columns)}
    table["clinic"] = np.repeat(NAMES, 30)
    with_limits = pt.fit(formula, table, family=family, sites="clinic", limits=pt.Limits(), rounds=1, **settings)
    same, other = (json.loads(json.dumps(each)) for each in (with_limits.spec.agreement.to_dict(), found))
    assert same == other
    assert found != alone(federation, files)


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


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
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


def test_a_server_is_told_when_nobody_comes(tmp_path):
    """It failed with an error of Python."""
    with pytest.raises(InputError, match="No client enrolled in time: start the clients"):
        assembled(asked(), tmp_path, FaultyLink({}))


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


@pytest.mark.parametrize(
    ("family", "settings", "column", "value", "told"),
    [
        ("piecewise_exponential", {"event": "died"}, "pain", 3.0, "pain is numeric here and categorical at most"),
        ("piecewise_exponential", {"event": "died"}, "died", 2, "Column 'died' holds events: give 0 and 1"),
        ("piecewise_exponential", {"event": "died"}, "days", -1.0, "holds times: give finite numbers above 0"),
        ("weibull", {"event": "died"}, "days", -1.0, "column 'days' does not fit the model"),
        ("gamma", {}, "cost", -1.0, "column 'cost' does not fit the model"),
        ("beta", {}, "share", 1.5, "column 'share' does not fit the model"),
        ("binomial", {"trials": "treated"}, "cured", 99, "column 'cured' does not fit the model"),
        ("ordinal", {"levels": ("mild", "grave", "dire")}, "severity", "bad", "has other labels than the levels"),
    ],
)
def test_a_client_that_does_not_fit_its_likelihood_stays_out(family, settings, column, value, told, tmp_path):
    """At whatever stage that is found; the others begin again, and the server goes on."""
    rows = {name: richer(seed) for seed, name in enumerate(NAMES)}
    place = (*COLUMNS, *MORE).index(column)
    rows["north"] = [(*row[:place], value, *row[place + 1 :]) for row in rows["north"]]
    files, federation = written(tmp_path, rows, (*COLUMNS, *MORE)), asked(*FITS[family])
    federation = dataclasses.replace(federation, fit=dataclasses.replace(federation.fit, **settings))
    reception, found = assembled(federation, tmp_path, FaultyLink(clients(federation, files)))
    assert list(reception.rows) == ["east", "west"]
    assert found == alone(federation, files, ("east", "west"))
    ((name, reason),) = events(tmp_path)
    assert name == "north"
    assert told in reason


class Watched(Leaving):
    """Keeps what the server prints meanwhile."""

    def __init__(self, endpoints, look):
        super().__init__(endpoints)
        self.look, self.said = look, []

    def poll(self, timeout):
        found = super().poll(timeout)
        self.said += [said for said in [self.look()] if said not in self.said]
        return found


def test_a_server_says_that_clients_agree_and_who_is_gone(tmp_path):
    """It said that the first round begins, and that who is gone does not fit."""
    files, federation = written(tmp_path), asked()

    def look():
        return waiting(read_status(tmp_path, federation.name, federation.clients))

    link = Watched(clients(federation, files), look)
    reception, _ = assembled(federation, tmp_path, link)
    gone = "did not answer while clients agreed on the design, so that the others went on without it"
    agreeing = "They agree on the design."
    assert {said.partition(". ")[2] for said in link.said if said.startswith("Enrolled: east, north and west")} == {
        agreeing
    }
    assert link.said[-1] == f"Enrolled: east and west. {agreeing} Not enrolled: north. north: it {gone}"
    assert look() == f"Enrolled: east and west. The first round begins. Not enrolled: north. north: it {gone}"
    assert reception.unfit == {"north": gone}


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


FALSE = [None, [], {}, "all", {"columns": [1]}, {"bs(age, df=4)": [0] * 80}, 3]


@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize(
    "answer", [*FALSE[4:6], *(pytest.param(each, marks=pytest.mark.slow) for each in FALSE[:4] + FALSE[6:])]
)
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
    rows = [("" if k < 4 else row[0], *row[1:]) for k, row in enumerate(clinic(1, 34))]
    files, federation = written(tmp_path, {"north": rows}), asked()
    (tmp_path / config.CONFIG_FILE).write_text(TOML.format(formula=FORMULA, family="bernoulli"))
    serve(tmp_path, federation, Loop(clients(federation, files)))
    shown = CliRunner().invoke(app, ["result", str(tmp_path)], catch_exceptions=False).output
    assert "north: 30 rows used, none dropped" in shown
    assert "4 rows with missing values left out" in shown
    assert "90 rows of 3 sites, 4 rows with missing values dropped." in shown
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


def test_missing_numbers_become_the_mean_of_all_and_are_marked(tmp_path):
    """In a rehearsal, which sends the messages of a run, as in the fit of one table."""
    rows = {name: clinic(seed) for seed, name in enumerate(NAMES)}
    rows["north"] = [("" if k < 4 else row[0], *row[1:]) for k, row in enumerate(rows["north"])]
    rows["west"] = [(*row[:2], "" if k < 6 else row[2], *row[3:]) for k, row in enumerate(rows["west"])]
    files = written(tmp_path, rows)
    formula, table = "ill ~ age + pressure + pain + site", tmp_path / "all.csv"  # as many columns as others have
    text = TOML.format(formula=formula, family="bernoulli")
    (tmp_path / config.CONFIG_FILE).write_text(text.replace("\n[run]", 'missing = "mean"\n\n[run]'))
    told = json.loads(rehearse(tmp_path, *(f"{name}={path}" for name, path in files.items()), "--json").output)
    write(table, [(*row, name) for name in NAMES for row in rows[name]], (*COLUMNS, "clinic"))
    here = pt.fit(formula, table, family="bernoulli", sites="clinic", missing="mean")
    assert {"missing(age)", "pain[T.(missing)]"} < set(here.names)
    assert [row["name"] for row in told["summary"]] == list(here.names)
    for part in ("mean", "sd"):
        found, expected = [row[part] for row in told["summary"]], [getattr(row, part) for row in here.coefficients()]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    east, north, west = told["account"][1:]
    assert "missing numbers, set to the mean: 4 of age" in north
    assert "missing" not in east + west  # of a category it is a level


ASKED = {
    "binomial": (["--trials", "treated", "--link", "cloglog"], {"trials": "treated", "link": "cloglog"}),
    "gaussian": (["--noise", "2.5", "--missing", "mean"], {"noise": "2.5", "missing": "mean"}),
    "ordinal": (["--levels", "mild, grave,dire"], {"levels": ("mild", "grave", "dire")}),
    "piecewise_exponential": (["--event", "died", "--cuts", "30,90.5"], {"event": "died", "cuts": (30.0, 90.5)}),
    "poisson": ([], {}),
}


@pytest.mark.parametrize("family", ASKED)
def test_a_federation_is_set_up_with_further_settings_where_they_are_given(family, tmp_path):
    options, settings = ASKED[family]
    made = ["federation", "init", str(tmp_path / "study"), FITS[family][0], "--family", family, "--client", "east"]
    done = CliRunner().invoke(app, [*made, *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert config.load(tmp_path / "study").fit == Settings(FITS[family][0], family, **settings)
    text = (tmp_path / "study" / config.CONFIG_FILE).read_text()
    named = {line.partition(" =")[0] for line in text.partition("[fit]")[2].partition("[method]")[0].splitlines()[1:]}
    assert named - {""} == {"formula", "family", "prior", "covariance", "weights", "positive"} | set(settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cuts", "a,b"], "Give the cuts as a list of numbers"),
        (["--trials", "treated"], "takes no trials"),
        (["--missing", "guess"], "guess"),
        (["--missing", "multiple"], 'in a federation use missing = "mean"'),
    ],
)
def test_a_mistake_in_a_further_setting_leaves_nothing_behind(options, message, tmp_path):
    made = ["federation", "init", str(tmp_path / "study"), "days ~ age", "--family", "piecewise_exponential"]
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, [*made, "--client", "east", *options], catch_exceptions=False)
    assert not (tmp_path / "study").exists()


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
