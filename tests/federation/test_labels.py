"""Labels of a response are agreed on in round 0, as levels are: a site that codes them otherwise stays out by name."""

import dataclasses
import logging

import numpy as np
import pytest

import partita as pt
from partita.federation import config
from partita.federation.client import Client
from partita.federation.enrolment import Enrolment
from partita.federation.rehearse import Rehearsal
from partita.federation.rows import read
from partita.federation.serve import LEDGER_FILE, serve
from partita.io import wire
from partita.storage.ledger import Ledger
from support.clinic_files import TOML, clinic, write
from support.weather import FaultyLink


def coded(rows, **codes):
    """A clinic's rows with other words for its labels."""
    return [(*row[:4], codes.get(row[4], row[4]), row[5]) for row in rows]


@pytest.fixture
def federation():
    about = config.read(TOML.encode(), "federation.toml")
    return dataclasses.replace(about, run=dataclasses.replace(about.run, assemble=20.0))


def clients(folder, federation, north):
    for seed, name in enumerate(federation.clients):
        write(folder / f"{name}.csv", north if name == "north" else clinic(seed))
    return {name: Client(name, federation, folder / f"{name}.csv") for name in federation.clients}


def incompatible(folder):
    events = Ledger(folder / LEDGER_FILE)._db.execute("SELECT name, text FROM events WHERE event = 'incompatible'")
    return events.fetchall()


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ({"yes": 1, "no": 0}, "'ill' has 2 labels besides the positive ones"),
        ({"yes": "Yes"}, "'ill' has 2 labels besides the positive ones"),
        ({"yes": 0, "no": 0}, "counts as 0 is '0' at one client and 'no' at another"),  # whoever comes first
    ],
    ids=["numbers", "capitals", "one label only"],
)
def test_a_site_that_codes_its_labels_otherwise_stays_out_and_both_sides_are_told(
    codes, told, federation, tmp_path, caplog
):
    """All its rows counted as zeros before, and the run *converged*."""
    caplog.set_level(logging.WARNING)
    there = clients(tmp_path, federation, coded(clinic(1), **codes))
    reception = Enrolment(federation, FaultyLink(there), Ledger(tmp_path / LEDGER_FILE))
    reception.assemble()
    reception.link.poll(5.0)
    assert list(reception.rows) == ["east", "west"]
    ((name, text),) = incompatible(tmp_path)
    assert name == "north"
    assert told in text
    assert any(message.startswith("north: ") and told in message for message in caplog.messages)


def test_a_late_site_is_held_to_the_labels_agreed_on(federation, tmp_path):
    there = clients(tmp_path, federation, coded(clinic(1), yes="no", no="no"))
    reception = Enrolment(federation, FaultyLink(there), Ledger(tmp_path / LEDGER_FILE))
    agreed = reception.assemble()
    assert list(reception.rows) == ["east", "north", "west"]
    write(tmp_path / "north.csv", coded(clinic(1), yes="none", no="none"))
    late = Client("north", federation, tmp_path / "north.csv")
    about = {"kind": "update", "digest": federation.digest, "agreed": agreed.to_dict()}
    assert "cannot use its data" in late.handle(wire.Message(about, {})).header["reason"]
    again = Enrolment(federation, FaultyLink({"north": late}), Ledger(tmp_path / LEDGER_FILE))
    del again.rows["north"]
    again.greet()
    again.welcome(again.link.poll(5.0))
    assert list(again.rows) == ["east", "west"]
    assert "counts as 0 is 'no' at one client and 'none' at another" in incompatible(tmp_path)[0][1]


def test_declared_labels_are_all_there_are(tmp_path):
    text = TOML.replace('positive = ["yes"]', 'positive = ["yes"]\nnegative = ["no", "never"]')
    data = config.read(text.encode(), "federation.toml").data
    write(tmp_path / "east.csv", coded(clinic(0), no="never"))
    assert set(read(tmp_path / "east.csv", data).y) == {0.0, 1.0}
    write(tmp_path / "east.csv", coded(clinic(0), no="maybe"))
    with pytest.raises(pt.InputError, match=r"neither positive nor negative, such as 'maybe'") as caught:
        read(tmp_path / "east.csv", data)
    assert "maybe" not in caught.value.public


def test_the_same_labels_of_everybody_give_the_run_of_one_process(federation, tmp_path):
    there = clients(tmp_path, federation, clinic(1))
    result = serve(tmp_path, federation, FaultyLink(there))
    here = Rehearsal.read(federation, {name: client.path for name, client in there.items()}).run()
    np.testing.assert_allclose(result.posterior.mean, here.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('positive = ["yes"]', 'positive = ["yes"]\nnegative = ["yes"]', "both positive and negative"),
        ('positive = ["yes"]', 'negative = ["no"]', "negative labels without positive ones"),
    ],
)
def test_a_mistake_in_the_labels_is_told(old, new, message):
    with pytest.raises(pt.InputError, match=message):
        config.read(TOML.replace(old, new).encode(), "federation.toml")


@pytest.mark.parametrize(
    ("kind", "responses", "told"),
    [("logistic", [0.5, 0.5], "labels are 0 or 1"), ("poisson", [0.5, 2], "counts are whole numbers")],
)
def test_a_response_that_the_model_does_not_take_is_told_when_a_client_introduces_itself(
    kind, responses, told, federation, tmp_path, caplog
):
    """The server asked it in vain for a day."""
    data = dataclasses.replace(federation.data, positive=())
    about = dataclasses.replace(federation, data=data, model=dataclasses.replace(federation.model, kind=kind))
    write(tmp_path / "north.csv", coded(clinic(1), yes=responses[1], no=responses[0]))
    client = Client("north", about, tmp_path / "north.csv")
    answer = client.handle(wire.Message({"kind": "hello", "digest": about.digest}, {}))
    assert answer.header["kind"] == "error"
    assert told in answer.header["reason"]
    assert "0.5" not in answer.header["reason"]
    assert any("0.5" in message for message in caplog.messages)
