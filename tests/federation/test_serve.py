"""A federation from its file and its clients' files to its posterior."""

import csv
import dataclasses
import json

import jax
import numpy as np
import pytest

import partita as pt
import partita.federation
from partita.data.frame import Frame
from partita.data.preprocess import federated
from partita.federation import config
from partita.federation.client import Client
from partita.federation.enrolment import Enrolment
from partita.federation.rehearse import Rehearsal
from partita.federation.rows import read
from partita.federation.serve import LEDGER_FILE, serve
from partita.io import wire
from partita.server.monitor import Monitor
from partita.storage.ledger import Ledger
from support.clinic_files import COLUMNS, TOML, clinic, write
from support.weather import FaultyLink


@pytest.fixture
def clinics(tmp_path):
    """A federation and its clients, by name."""
    federation = config.read(TOML.encode(), "federation.toml")
    for seed, name in enumerate(federation.clients):
        write(tmp_path / f"{name}.csv", clinic(seed))
    return federation, {name: Client(name, federation, tmp_path / f"{name}.csv") for name in federation.clients}


def in_one_process(federation):
    """The same without a file, a message or `rehearse`."""
    frames = []
    for seed, _ in enumerate(federation.clients):
        age, pressure, pain, site, ill, _ = zip(*clinic(seed), strict=True)
        columns = {"age": np.array(age), "pressure": np.array(pressure), "pain": np.array(pain), "site": np.array(site)}
        frames.append(Frame.build(columns, np.array(ill) == "yes", {"pain": ("none", "some", "much")}))
    agreed = federated(frames)
    parts = pt.federate([agreed.encode(frame) for frame in frames], names=federation.clients)
    model = federation.built_model(len(agreed.names))
    prior = federation.built_prior(model, len(agreed.names))
    return pt.run(federation.built_method(), model, prior, parts, rounds=8, monitor=Monitor(every=0))


def test_a_federated_run_equals_the_run_in_one_process(clinics, tmp_path):
    federation, clients = clinics
    there, here = serve(tmp_path, federation, FaultyLink(clients)), in_one_process(federation)
    rehearsal = Rehearsal.read(federation, {name: tmp_path / f"{name}.csv" for name in federation.clients})
    for other in (there, rehearsal.run()):
        np.testing.assert_allclose(other.posterior.q.precision, here.posterior.q.precision, rtol=1e-8)
        np.testing.assert_allclose(other.posterior.mean, here.posterior.mean, rtol=1e-8)
    energy = rehearsal.free_energy(rehearsal.posterior(tmp_path))
    assert energy == pytest.approx(rehearsal.free_energy(here.posterior.q), abs=1e-9)
    with (tmp_path / "summary.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert names[:3] == ["intercept", "age", "pressure"]
    assert json.loads((tmp_path / "result.json").read_text())["status"] == there.status.value


def test_messages_of_a_client_do_not_grow_with_its_rows_and_contain_none_of_them(clinics, tmp_path):
    federation, _ = clinics
    sizes, lengths = [], []
    for rows in (30, 60):
        folder = tmp_path / f"{rows}"
        folder.mkdir()
        for seed, name in enumerate(federation.clients):
            write(folder / f"{name}.csv", clinic(seed, 30) * (rows // 30))
        link = FaultyLink({name: Client(name, federation, folder / f"{name}.csv") for name in federation.clients})
        serve(folder, federation, link)
        tasks = [message for message in link.sent if b'"kind": "update"' in message]
        sizes.append({wire.unpack(message).size for message in tasks})
        lengths.append(max(len(message) for message in tasks))
        assert not any(b"Doe" in message for message in link.sent)
        for message in map(wire.unpack, link.sent):
            # q and a factor, or a change of a factor: nothing has a row's length
            assert all(max(array.shape, default=0) == 8 or array.shape == () for array in message.arrays.values())
    assert sizes[0] == sizes[1]
    # headers have numbers written out, of some digits more or less
    assert abs(lengths[0] - lengths[1]) < 60


def test_the_fitted_posterior_predicts_rows_of_a_file(clinics, tmp_path):
    federation, clients = clinics
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    there = serve(tmp_path, federation, FaultyLink(clients))
    found = pt.federation.fitted(tmp_path)
    table = found.table(tmp_path / "east.csv")
    agreed = federated([read(client.path, federation.data) for client in clients.values()])
    x = agreed.encode(read(tmp_path / "east.csv", federation.data)).x
    np.testing.assert_array_equal(table.x, x)
    np.testing.assert_allclose(found.posterior.predict_proba(table.x), there.posterior.predict_proba(x), rtol=1e-12)
    with jax.enable_x64(False), pytest.raises(pt.InputError, match="double precision"):
        pt.federation.fitted(tmp_path)


@pytest.mark.parametrize("method", [pytest.param("sequential", marks=pytest.mark.slow), "incremental_vi"])
def test_networks_and_methods_without_a_solver_run_too(method, clinics, tmp_path):
    _, clients = clinics
    changed = (
        TOML.replace('kind = "logistic"', 'kind = "classifier"\nhidden = [3]')
        + f"""
[method]
name = "{method}"
[solver]
kind = "adam"
max_steps = 20
"""
    )
    (tmp_path / config.CONFIG_FILE).write_text(changed)
    federation = config.load(tmp_path)
    there = serve(
        tmp_path, federation, FaultyLink({name: Client(name, federation, c.path) for name, c in clients.items()})
    )
    here = Rehearsal.read(federation, {name: client.path for name, client in clients.items()}).run()
    assert there.state.answers == here.state.answers == 24
    for far, near in zip(there.posterior.q.moments(), here.posterior.q.moments(), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12), far, near)
    found = pt.federation.fitted(tmp_path)
    odds = found.posterior.predict_proba(found.table(tmp_path / "east.csv").x, how="monte_carlo")
    assert odds.shape == (30, 2)


def test_an_incompatible_file_is_reported_to_server_and_client_by_column(clinics, tmp_path):
    federation, clients = clinics
    rows = [(age, "high", "some", site, ill, name) for age, _, _, site, ill, name in clinic(1)]
    rows[0] = (*rows[0][:2], "terrible", *rows[0][3:])
    write(tmp_path / "north.csv", [row[1:] for row in rows], COLUMNS[1:])
    answer = clients["north"].handle(wire.Message({"kind": "hello", "digest": federation.digest}, {}))
    for part in ("'age' is missing", "'pressure' has text where numbers are expected", "'pain' has categories"):
        assert part in answer.header["reason"]
    assert "terrible" not in answer.header["reason"]
    with pytest.raises(pt.InputError, match=r"north.csv .* such as 'terrible'"):
        read(tmp_path / "north.csv", federation.data)
    link, ledger = FaultyLink(clients), Ledger(tmp_path / LEDGER_FILE)
    reception = Enrolment(federation, link, ledger)
    reception.assemble()
    assert list(reception.rows) == ["east", "west"]
    events = ledger._db.execute("SELECT text FROM events WHERE name = 'north' AND event = 'incompatible'").fetchall()
    assert "'pressure' has text where numbers are expected" in events[0][0]


@pytest.mark.parametrize("kind", ["hello", "update", "ell"])
def test_a_client_refuses_every_message_of_another_federation(kind, clinics):
    _, clients = clinics
    answer = clients["east"].handle(wire.Message({"kind": kind, "digest": "another"}, {}))
    assert "copy the server's" in answer.header["reason"]


def test_a_run_cannot_be_resumed_with_another_configuration(clinics, tmp_path):
    federation, clients = clinics
    serve(tmp_path, federation, FaultyLink(clients))
    other = dataclasses.replace(federation, prior=config.Prior(scale=2.0))
    with pytest.raises(pt.InputError, match="has changed since"):
        serve(tmp_path, other, FaultyLink(clients))


def test_errors_about_rows_do_not_reveal_their_values(clinics, tmp_path):
    """An outcome of 2 under a logistic model, which only the model finds."""
    federation, _ = clinics
    rows = [(*row[:4], 2 if k == 17 else 1, row[5]) for k, row in enumerate(clinic(0))]
    write(tmp_path / "east.csv", rows)
    federation = dataclasses.replace(federation, data=dataclasses.replace(federation.data, positive=()))
    client = Client("east", federation, tmp_path / "east.csv")
    agreed = federated([read(tmp_path / "east.csv", federation.data)])
    about = {"kind": "update", "digest": federation.digest, "agreed": agreed.to_dict()}
    reason = client.handle(wire.Message(about, {})).header["reason"]
    assert "cannot use its data" in reason
    assert "17" not in reason
    assert "2" not in reason


def changed(name, **contents):
    """A lie about one column."""
    return lambda columns: [column | contents if column["name"] == name else column for column in columns]


AGE = {"present": 30, "mean": 60.0, "rest": 0.0, "squares": 1.0}
LIES = {
    "other columns": (lambda columns: columns[::-1], "columns are not those"),
    "a column that cannot be written": (lambda columns: [{"name": "\ud800" * 10_000, **AGE}], "columns are not those"),
    "another kind": (lambda columns: [*columns[:2], {"name": "pain", **AGE}, columns[3]], "'pain' has another type"),
    "other levels": (changed("pain", declared=["none"]), "'pain' has other levels"),
    "one level more": (changed("pain", counts={"none": 1, "awful": 1}), "'pain' has other levels"),
    "no summary": (lambda columns: "all of them", "not a summary"),
}


class Liar:
    """A client that introduces itself as somebody else."""

    def __init__(self, client, lie):
        self.client, self.lie, self.told = client, lie, []

    def handle(self, message):
        answer = self.client.handle(message)
        if message.header["kind"] == "refused":
            self.told.append(message.header["reason"])
        if message.header["kind"] != "hello":
            return answer
        summary = {"columns": self.lie(answer.header["answer"]["columns"])}
        return answer._replace(header={**answer.header, "answer": summary})


@pytest.mark.parametrize("name", LIES)
def test_a_client_with_an_invalid_introduction_is_refused_and_others_enrol(name, clinics, tmp_path):
    federation, clients = clinics
    federation = dataclasses.replace(federation, run=dataclasses.replace(federation.run, assemble=5.0))
    lie, reason = LIES[name]
    liar = Liar(clients["east"], lie)
    reception = Enrolment(federation, FaultyLink({**clients, "east": liar}), Ledger(tmp_path / LEDGER_FILE))
    reception.assemble()
    assert list(reception.rows) == ["north", "west"]
    ((noted,),) = reception.ledger._db.execute("SELECT text FROM events WHERE name = 'east'").fetchall()
    assert reason in noted
    assert len(liar.told) == 1
    assert reason in liar.told[0]


def test_a_restarted_server_keeps_the_agreed_encoding(clinics, tmp_path):
    federation, clients = clinics
    first = Enrolment(federation, FaultyLink(clients), Ledger(tmp_path / LEDGER_FILE))
    agreed = first.assemble()
    again = Enrolment(federation, FaultyLink({}), Ledger(tmp_path / LEDGER_FILE))
    assert again.assemble().to_dict() == agreed.to_dict()
    assert again.rows == first.rows
    assert agreed.names[-1] == "site=right"


class Late(FaultyLink):
    """One client comes when the run has begun."""

    def __init__(self, endpoints, late, when):
        super().__init__(endpoints)
        self.late, self.when = late, when

    def present(self):
        return [name for name in self.endpoints if name != self.late or self.time >= self.when]


@pytest.mark.parametrize("method", ["sequential", "synchronous"])
def test_a_late_client_is_enrolled_and_the_run_converges_to_the_same_result(method, clinics, tmp_path):
    """With the encoding of those before it; all then end at the same fixed point, to what convergence means."""
    federation, clients = clinics
    run = dataclasses.replace(federation.run, assemble=20.0, rounds=300.0, tolerance=1e-9)
    federation = dataclasses.replace(federation, run=run, method={"name": method})
    clients = {name: Client(name, federation, client.path) for name, client in clients.items()}
    there = serve(tmp_path, federation, Late(clients, "north", 23.0))
    assert there.status is pt.Status.CONVERGED
    assert there.state.names == ("east", "west", "north")
    assert "north" not in there.history.rows[0]["clients"]
    frames = [read(client.path, federation.data) for client in clients.values()]
    agreed = federated([frames[0], frames[2]])
    assert json.loads((tmp_path / "result.json").read_text())["agreed"] == agreed.to_dict()
    parts = pt.federate([agreed.encode(frame) for frame in frames])
    model = federation.built_model(len(agreed.names))
    prior = federation.built_prior(model, len(agreed.names))
    here = pt.run(federation.built_method(), model, prior, parts, rounds=300, tolerance=1e-9, monitor=Monitor(every=0))
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, atol=1e-5)
    np.testing.assert_allclose(there.posterior.sd, here.posterior.sd, rtol=1e-4)


def test_a_late_client_with_an_unknown_category_is_refused_and_the_run_continues(clinics, tmp_path):
    federation, clients = clinics
    federation = dataclasses.replace(federation, run=dataclasses.replace(federation.run, assemble=20.0))
    write(tmp_path / "north.csv", [(*row[:3], "middle", *row[4:]) for row in clinic(1)])
    there = serve(tmp_path, federation, Late(clients, "north", 23.0))
    assert there.state.names == ("east", "west")
    events = (
        Ledger(tmp_path / LEDGER_FILE)._db.execute("SELECT text FROM events WHERE event = 'incompatible'").fetchall()
    )
    assert len(events) == 1
    assert "'site' has the category 'middle'" in events[0][0]


def test_a_join_request_for_an_absent_client_does_not_stop_the_server(clinics, tmp_path):
    federation, clients = clinics
    federation = dataclasses.replace(federation, run=dataclasses.replace(federation.run, assemble=20.0))
    Ledger(tmp_path / LEDGER_FILE).request("north", "join")
    there = serve(tmp_path, federation, Late(clients, "north", np.inf))
    assert there.state.names == ("east", "west", "north")
    assert there.state.versions[2] == 0
    assert there.status is pt.Status.BUDGET_SPENT


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "logistic"', 'kind = "logstic"', "one of linear, logistic"),
        ('kind = "logistic"', "", "without 'kind'"),
        ('clients = ["east", "north", "west"]', 'clients = ["east", "east"]', "unique names"),
        ('clients = ["east", "north", "west"]', 'clients = ["../east"]', "client named '../east'"),
        ('response = "ill"', 'response = "age"', "without duplicates"),
        ("rounds = 8", "round = 8", "no setting of run in federation.toml named 'round'"),
        ("rounds = 8", 'rounds = "many"', "'many' for 'rounds', where a number"),
        ("site = []", "site = [1]", "levels of 'site'"),
        ("[run]", '[method]\nname = "pooled"\n[run]', "no method in federation.toml named 'pooled'"),
        ("[run]", '[method]\nname = "sequential"\ndampening = 1\n[run]', "setting of sequential named 'dampening'"),
        ("[run]", "[admission]\nchange = -1.0\n[run]", "bound on change must be above 0"),
        ("[run]", "[run", "not a TOML file"),
        ("[run]", "[run]\ntimeout = inf", "invalid run.timeout: it must be a number above 0"),
        ('kind = "logistic"', 'kind = "classifier"', 'a network, which needs a solver of kind "adam"'),
    ],
)
def test_an_invalid_configuration_raises_an_error(old, new, message):
    assert old in TOML
    with pytest.raises(pt.InputError, match=message):
        config.read(TOML.replace(old, new).encode(), "federation.toml")


def test_a_file_without_rows_is_blamed_and_no_column(clinics, tmp_path):
    federation, clients = clinics
    write(tmp_path / "east.csv", [])
    with pytest.raises(pt.InputError, match=r"^east.csv has no rows: give it at least one.$"):
        read(tmp_path / "east.csv", federation.data)
    answer = clients["east"].handle(wire.Message({"kind": "hello", "digest": federation.digest}, {}))
    assert answer.header["reason"] == "Its file has no rows."


@pytest.mark.parametrize("damaged", ["", "{", "[]", "1", '{"history": 3}', '{"agreed": {}}', "[" * 100_000, "\0"])
def test_a_damaged_result_is_named_with_the_remedy(damaged, tmp_path):
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    (tmp_path / "result.json").write_text(damaged)
    with pytest.raises(pt.errors.DamagedFileError, match=r"result.json is damaged .* `partita resume"):
        pt.federation.fitted(tmp_path)
