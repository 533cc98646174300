"""How Flower's programs are started and watched, with other programs in their place."""

import contextlib
import http.server
import re
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
import partita as pt
from partita.federation import config, processes
from partita.federation.initialise import initialise
from partita.federation.serve import LEDGER_FILE, SERVER_LOCK
from partita.io.lock import hold
from partita.storage.ledger import Ledger
from support.clinic_files import ILL, clinic, write
from support.clinics import stopped


@pytest.fixture
def study(tmp_path):
    """The folder of a federation with keys."""
    write(tmp_path / "east.csv", clinic(0))
    folder = tmp_path / "study"
    initialise(folder, ["east"], ILL, secure=True)
    return folder


class Started(Exception):
    """A program would have been started."""


class Ended:
    """A program that has ended."""

    def poll(self):
        return 0

    wait = poll


@pytest.fixture
def commands(monkeypatch):
    """What is started in place of programs, of which the third is one too many."""
    found = []

    @contextlib.contextmanager
    def running(command, env, log):
        found.append(command)
        if len(found) == 3:
            raise Started
        log.touch()
        yield Ended()

    monkeypatch.setattr(processes, "running", running)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)
    return found


def test_a_client_gets_a_new_port_at_every_start(study, commands):
    folder = study / "clients" / "east"
    with pytest.raises(Started):
        processes.run_client(folder, config.load(folder), "east", study / "east.csv")
    ports = [command[command.index("--port") + 1] for command in commands]
    assert len(set(ports)) > 1


def test_a_client_says_when_nothing_answers_at_the_servers_address(study, commands, capfd):
    """It waited in silence, at a wrong port too."""
    folder = study / "clients" / "east"
    path = folder / config.CONFIG_FILE
    path.write_text(path.read_text().replace("9092", str(processes.free_port())))
    federation = config.load(folder)
    with pytest.raises(Started):
        processes.run_client(folder, federation, "east", study / "east.csv")
    said = capfd.readouterr().err
    assert f"east: nothing answers at {federation.server.address}" in said
    assert "server.address" in said
    assert said.count("nothing answers") == 1


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as Flower's server does; anything else does not exist."""

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


class Home(Health):
    """The page of some other program."""

    def do_GET(self):
        self.send_error(404)


class Web(http.server.ThreadingHTTPServer):
    """Says nothing of those who do not trust it."""

    def handle_error(self, *_):
        pass


@contextlib.contextmanager
def listening(handler, folder=None):
    """The port of a web server on this machine, with the certificate in a folder, if there is one."""
    with Web(("127.0.0.1", 0), handler) as there:
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            there.socket = context.wrap_socket(there.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=there.serve_forever, args=[0.05])
        thread.start()
        try:
            yield there.server_port
        finally:
            there.shutdown()
            thread.join()


def starts(folder, port):
    """Runs the client of a folder whose server is at another port, until its third start."""
    path = folder / config.CONFIG_FILE
    path.write_text(path.read_text().replace("9092", str(port)))
    with pytest.raises(Started):
        processes.run_client(folder, config.load(folder), "east", folder / "east.csv")


def test_a_client_whose_server_answers_says_nothing(study, commands, capfd):
    with listening(Health, study) as port:
        starts(study / "clients" / "east", port)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("stranger", ["another program", "another web server", "another federation"])
def test_a_client_says_when_something_else_answers_at_the_servers_address(
    stranger, study, commands, capfd, monkeypatch
):
    """It went on in silence."""
    monkeypatch.setattr(processes, "_PATIENCE", 0.5)
    if stranger == "another program":
        there = socket.create_server(("127.0.0.1", 0))
        port = there.getsockname()[1]
        context = contextlib.closing(there)
    elif stranger == "another web server":
        context = listening(Home, study)
    else:
        other = study.parent / "other"
        initialise(other, ["east"], ILL, secure=True)
        context = listening(Health, other)
    with context as found:
        port = found if isinstance(found, int) else port
        starts(study / "clients" / "east", port)
    said = capfd.readouterr().err
    assert said.startswith(f"east: what answers at 127.0.0.1:{port} is not the server of this federation (")
    assert "server.address" in said
    assert said.count("\n") == 1


def test_a_server_says_when_its_port_is_in_use(study, monkeypatch):
    """It waited, and asked whether the port was in use."""
    monkeypatch.setattr(processes, "running", None)
    monkeypatch.setattr(processes, "_FREED", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = at_port(study, there)
        with pytest.raises(pt.InputError, match=rf"port {port} \(Address already in use\): .*another .*server.address"):
            processes.serve(study, config.load(study))


def test_a_server_waits_until_an_earlier_one_has_left_its_port(study, monkeypatch):
    """One that was killed takes some seconds to end with all its programs."""

    def running(command, env, log):
        raise Started

    monkeypatch.setattr(processes, "running", running)
    with socket.create_server(("127.0.0.1", 0)) as there:
        at_port(study, there)
        timer = threading.Timer(0.7, there.close)
        timer.start()
        with pytest.raises(Started):
            processes.serve(study, config.load(study))
    timer.join()


def at_port(folder, there):
    """Gives a federation the address of a socket; returns its port."""
    port, path = there.getsockname()[1], folder / config.CONFIG_FILE
    path.write_text(path.read_text().replace("9092", str(port)))
    return port


def test_a_second_client_in_one_folder_is_told(study, commands):
    folder = study / "clients" / "east"
    with hold(folder / ".client-east"), pytest.raises(pt.InputError, match="east is running already"):
        processes.run_client(folder, config.load(folder), "east", study / "east.csv")
    assert not commands


class Alive:
    """A program that goes on."""

    def poll(self):
        return None


def test_a_server_says_whom_it_waits_for(study, monkeypatch, capfd):
    """It printed nothing for minutes."""
    path = study / config.CONFIG_FILE
    path.write_text(path.read_text().replace('["east"]', '["east", "north", "west"]'))
    ledger = Ledger(study / LEDGER_FILE)
    now = [0.0]
    events = iter(
        [
            lambda: None,
            lambda: ledger.note("east", "joined", "30 rows"),
            lambda: ledger.note("north", "incompatible", "Its file has no rows."),
            lambda: ledger.note("west", "joined", "30 rows"),
            lambda: ledger.say("ended", {"status": "converged", "message": "It has ended."}),
        ]
    )

    def sleep(seconds):
        now[0] += 60.0
        next(events)()

    monkeypatch.setattr(processes.time, "sleep", sleep)
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(processes, "START", np.inf)
    assert processes._await_end(study, ledger, [Alive()], study / "server.log") == "It has ended."
    assert capfd.readouterr().out.splitlines() == [
        "Waiting for east, north and west to enrol.",
        "Enrolled: east. Waiting for north and west to enrol.",
        "Enrolled: east. Waiting for north and west to enrol. north: it does not fit: Its file has no rows.",
        "Enrolled: east and west. Waiting for north to enrol. north: it does not fit: Its file has no rows.",
    ]


def test_a_server_says_whose_answer_it_waits_for(tmp_path, monkeypatch, capfd):
    stopped(tmp_path)
    ledger = Ledger(tmp_path / LEDGER_FILE)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: ledger.say("ended", {"status": "x", "message": "."}))
    processes._await_end(tmp_path, ledger, [Alive()], tmp_path / "server.log")
    (said,) = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\.\d rounds, .*: waiting for the answers? of [\w-]+( and [\w-]+)?\..*", said)


def test_when_the_server_app_could_not_write_its_ending_the_full_disk_is_told(study, monkeypatch):
    """It pointed to a log that could not be written either."""
    ledger = Ledger(study / LEDGER_FILE)

    def full(key, value):
        raise pt.errors.DiskError(ledger.path, "the disk is full")

    monkeypatch.setattr(ledger, "say", full)
    with pytest.raises(
        pt.errors.DiskError, match=r"ledger.sqlite cannot be written \(the disk is full\): free some space"
    ):
        processes._await_end(study, ledger, [Ended()], study / "server.log")


def test_a_second_server_is_refused_and_does_not_change_the_firsts_files(study):
    about = study / ".flower" / "config.toml"
    about.parent.mkdir()
    about.write_text("the first's")
    with hold(study / ".server"), pytest.raises(pt.InputError, match="running already"):
        processes.serve(study, config.load(study))
    assert about.read_text() == "the first's"
    assert list(about.parent.iterdir()) == [about]


def test_a_server_waits_for_the_previous_servers_processes_to_end(study, monkeypatch):
    """Flower gives it a session of its own, which may outlast the server's."""
    began, ended = threading.Event(), []

    def last():
        with hold(study / SERVER_LOCK):
            began.set()
            time.sleep(1.0)
            ended.append(True)

    def running(command, env, log):
        raise Started if ended else AssertionError("it did not wait")

    monkeypatch.setattr(processes, "running", running)
    thread = threading.Thread(target=last)
    thread.start()
    began.wait()
    with pytest.raises(Started):
        processes.serve(study, config.load(study))
    thread.join()


def test_waiting_for_the_previous_server_times_out(study, monkeypatch):
    monkeypatch.setattr(processes, "START", 0.3)
    monkeypatch.setattr(processes, "running", None)
    with hold(study / SERVER_LOCK), pytest.raises(pt.InputError, match="has not ended"):
        processes.serve(study, config.load(study))


SAYS = """
import logging, sys, time
time.sleep(1.0)
print("INFO :      Flower says much", flush=True)
logging.getLogger("partita").warning("%s: %s", "east", "an answer was refused: it is not finite")
print("INFO :      of east: and others", flush=True)
sys.stderr.write("east: half")
sys.stderr.flush()
time.sleep(1.0)
sys.stderr.write(" a line\\n")
"""


def test_partitas_own_lines_in_a_clients_log_are_printed(tmp_path, capfd):
    log = tmp_path / "client-east.log"
    log.write_text("east: said on another day\n")
    with processes.running([sys.executable, "-c", SAYS], processes.environment(Path(tmp_path)), log) as process:
        processes._echo(process, log, "east: ", set())
    assert capfd.readouterr().err == "east: an answer was refused: it is not finite\neast: half a line\n"
    assert "Flower says much" in log.read_text()


REFUSED = """
import sys, time
time.sleep(0.6)
print("ERROR :     Exit Code: 305")
print("Failed to initialize the connection to the SuperLink.")
print("[code: 2004] Failed to activate SuperNode.")
print("The SuperNode could not establish a connection to the SuperLink.", flush=True)
sys.exit(1)
"""


def test_a_client_whose_key_is_in_use_says_so_once(study, monkeypatch, capfd):
    """It was started again and again in silence. What Flower writes is seen in `test_processes`."""
    real, begun = processes.running, []

    def running(command, env, log):
        begun.append(command)
        if len(begun) == 3:
            raise Started
        return real([sys.executable, "-c", REFUSED], env, log)

    monkeypatch.setattr(processes, "running", running)
    monkeypatch.setattr(processes, "_RESTART", 0.0)
    with listening(Health, study) as port:
        starts(study / "clients" / "east", port)
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("east: the server does not accept its key: stop another client that uses it, or")
