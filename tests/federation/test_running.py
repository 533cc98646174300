"""A server and its clients as `partita server` and `partita client` run them, in one process."""

import contextlib
import re
import socket
import threading

import numpy as np
import pytest

pytest.importorskip("flwr")
import partita as pt
from partita.federation import config, running
from partita.federation.initialise import initialise
from partita.federation.rehearse import Rehearsal
from partita.federation.running import run_client, run_server
from partita.federation.serve import LEDGER_FILE, SERVER_LOCK
from partita.io.lock import hold
from partita.storage.ledger import Ledger
from support.clinic_files import ILL, clinic, write
from support.clinics import stopped
from support.processes import free_port

NAMES = ("east", "west")


@pytest.fixture
def study(tmp_path):
    """The folder of a federation, with its clients' files beside it."""
    for seed, name in enumerate(NAMES):
        write(tmp_path / f"{name}.csv", clinic(seed))
    initialise(tmp_path / "study", NAMES, ILL, address=f"127.0.0.1:{free_port()}")
    return tmp_path / "study"


class Stopped(Exception):
    """A client is to end."""


@contextlib.contextmanager
def attending(study, monkeypatch):
    """Both clients at work in threads, until the block ends."""
    ended, attend = threading.Event(), running.attend

    def bounded(handle, link, *others):
        pull = link.pull

        def until_ended(timeout):
            if ended.is_set():
                raise Stopped
            return pull(min(timeout, 0.5))

        link.pull = until_ended
        attend(handle, link, *others, rest=ended.wait)

    monkeypatch.setattr(running, "attend", bounded)

    def client(name):
        folder = study / "clients" / name
        with contextlib.suppress(Stopped):
            run_client(folder, config.load(folder), name, study.parent / f"{name}.csv")

    threads = [threading.Thread(target=client, args=[name]) for name in NAMES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_a_federation_over_tls_equals_one_process_to_the_last_bit(study, monkeypatch, capfd):
    with attending(study, monkeypatch):
        message = run_server(study, config.load(study))
    assert "lies within" in message
    files = {name: study.parent / f"{name}.csv" for name in NAMES}
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = rehearsal.posterior(study), rehearsal.run().posterior.q
    for far, near in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_array_equal(far, near)
    said = capfd.readouterr()
    assert "Waiting for" in said.out
    assert "PRIVATE KEY" not in said.out + said.err


def test_a_second_server_is_refused_and_changes_nothing(study):
    with hold(study / SERVER_LOCK), pytest.raises(pt.InputError, match="is running already: `partita status"):
        run_server(study, config.load(study))
    assert not (study / LEDGER_FILE).exists()


def test_a_second_client_in_one_folder_is_told(study):
    folder = study / "clients" / "east"
    with hold(folder / ".client-east"), pytest.raises(pt.InputError, match="east is running already"):
        run_client(folder, config.load(folder), "east", study.parent / "east.csv")


def test_a_client_that_is_nobody_is_told(study):
    with pytest.raises(pt.InputError, match="'north' is not among the clients of study: east, west"):
        run_client(study, config.load(study), "north", study.parent / "east.csv")


@pytest.mark.parametrize("missing", ["keys/east", "ca.crt"])
def test_a_client_without_its_key_or_certificate_is_told_what_to_use(missing, study):
    folder = study / "clients" / "east"
    (folder / missing).unlink()
    with pytest.raises(pt.InputError, match=f"{missing}.* use the folder that `partita federation credentials` wrote"):
        run_client(folder, config.load(folder), "east", study.parent / "east.csv")


@pytest.mark.parametrize("missing", ["keys/east.pub", "server.pem"])
def test_a_server_without_keys_is_told_to_make_them(missing, study):
    (study / missing).unlink()
    with pytest.raises(pt.InputError, match="`partita federation credentials`"):
        run_server(study, config.load(study))


def test_a_server_says_when_its_port_is_in_use(study, monkeypatch):
    from partita.federation.flower import hosting

    monkeypatch.setattr(hosting.listening, "__defaults__", (0.3,))
    host, port = config.load(study).server.address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(pt.InputError, match=rf"port {port} \(Address already in use\): .*another .*server.address"),
    ):
        run_server(study, config.load(study))


def test_a_server_that_failed_says_how_to_go_on_and_remembers_it(study, monkeypatch):
    def serve(*_):
        raise pt.InputError("The disk is full: free some space.")

    monkeypatch.setattr(running, "serve", serve)
    with pytest.raises(pt.InputError, match=r"free some space. Continue with `partita resume"):
        run_server(study, config.load(study))
    assert Ledger(study / LEDGER_FILE).said("ended")["status"] == "failed"


def test_a_server_says_whose_answer_it_waits_for(tmp_path, capfd):
    stopped(tmp_path)
    with running._narrated(tmp_path, config.load(tmp_path)):
        pass
    (said,) = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\.\d rounds, .*: waiting for the answers? of [\w-]+( and [\w-]+)?\..*", said)
