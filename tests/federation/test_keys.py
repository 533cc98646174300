"""A running server learns of keys and certificates that change, whatever carries the messages."""

import shutil
import ssl

import numpy as np
import pytest

pytest.importorskip("flwr")
from partita.errors import FederationError
from partita.federation import certificates, config
from partita.federation.credentials import accept, own_key, revoke
from partita.federation.flower.office import Office
from partita.federation.initialise import initialise
from partita.federation.link import UnreachableError
from partita.federation.links import dial, listen
from partita.io import watched
from partita.io.watched import Watched
from partita.io.wire import Message
from partita.storage.ledger import Ledger
from support.clinic_files import ILL
from support.processes import free_port

TASK = Message({"kind": "update", "task": "1.0"}, {"x": np.arange(4.0)})


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(watched, "_LOOK", 0.0)


@pytest.fixture(params=["port", "folder"])
def study(request, tmp_path):
    """A federation's folder at its server, and the folder of east."""
    (tmp_path / "share").mkdir()
    address = f"127.0.0.1:{free_port()}" if request.param == "port" else f"folder:{tmp_path / 'share'}"
    initialise(tmp_path / "study", ("east", "west"), ILL, [], address)
    shutil.move(tmp_path / "study" / "clients" / "east", tmp_path / "east")
    return tmp_path


def asked(server, place):
    """What a client is given of a task, and whether its answer arrives."""
    with dial(place / "east", config.load(place / "east"), "east") as link:
        try:
            link.connect()
        except UnreachableError as error:
            if "does not accept its key" not in str(error):
                raise
            return False
        server.post("east", TASK)
        letter = link.pull(2.0)
        if letter is None:
            return False
        link.push(letter, Message({"kind": "update", "task": "1.0"}, {}))
        return server.poll(5.0).message is not None


def test_a_running_server_learns_of_revoked_and_of_new_keys(study):
    server_folder, own = study / "study", study / "east"
    with listen(server_folder, config.load(server_folder), Ledger(study / "ledger")) as server:
        assert asked(server, study)
        revoke(server_folder, "east")
        assert not asked(server, study)
        while server.poll(0.0) is not None:
            pass
        (own / "keys" / "east").unlink()
        (own / "letters-east.json").unlink(missing_ok=True)
        accept(server_folder, "east", own_key(own, "east")[0])
        assert asked(server, study)


def test_a_key_that_cannot_be_read_keeps_no_other_from_being_revoked(study):
    server_folder = study / "study"
    with listen(server_folder, config.load(server_folder), Ledger(study / "ledger")) as server:
        (server_folder / "keys" / "west.pub").write_text("half")
        revoke(server_folder, "east")
        assert not asked(server, study)


def test_what_was_sent_for_another_key_is_void():
    keys = {"east": b"one"}
    office = Office(keys)
    office.enter("east", "s")
    office.post("east", TASK)
    office.knows("east", b"one")
    assert office.poll(0.0) is None
    office.knows("east", b"two")
    assert office.poll(0.0).reason == "has another key than before"
    assert (office.next("east"), list(office.present())) == (None, [])
    office.post("west", TASK)
    assert office.poll(0.0).reason == "has no key here"


def test_a_renewed_certificate_is_shown_to_who_connects_next(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    study = tmp_path / "study"
    initialise(study, ("east",), ILL, [], address)
    host, port = address.split(":")
    with listen(study, config.load(study), Ledger(tmp_path / "ledger")):
        first = ssl.get_server_certificate((host, int(port)))
        certificates.renew(study, host)
        assert ssl.get_server_certificate((host, int(port))) == (study / "server.pem").read_text() != first
        (study / "server.key").write_text("half")
        assert ssl.get_server_certificate((host, int(port))) != first


def test_what_cannot_be_read_any_more_stays_as_it_was(tmp_path, caplog):
    path = tmp_path / "file"
    path.write_text("1")

    def read():
        if not path.read_text().isdigit():
            raise FederationError(f"{path} is damaged.")
        return int(path.read_text())

    value = Watched(read, [path])
    assert value() == 1
    path.write_text("22")
    assert value() == 22
    path.write_text("none")
    assert (value(), value()) == (22, 22)
    assert caplog.text.count("is damaged. The server goes on") == 1
