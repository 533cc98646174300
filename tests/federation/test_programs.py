"""How Flower's programs are started and watched, with other programs in their place."""

import contextlib
import re
import socket
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
from support.clinic_files import clinic, write
from support.clinics import stopped


@pytest.fixture
def study(tmp_path):
    """The folder of a federation with keys."""
    write(tmp_path / "east.csv", clinic(0))
    folder = tmp_path / "study"
    initialise(folder, ["east"], "ill", tmp_path / "east.csv", "127.0.0.1:9092", "logistic", "sequential", True)
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


def test_a_client_whose_server_answers_says_nothing(study, commands, capfd):
    folder = study / "clients" / "east"
    path = folder / config.CONFIG_FILE
    with socket.create_server(("127.0.0.1", 0)) as there:
        path.write_text(path.read_text().replace("9092", str(there.getsockname()[1])))
        with pytest.raises(Started):
            processes.run_client(folder, config.load(folder), "east", study / "east.csv")
    assert not capfd.readouterr().err


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
        processes._echo(process, log, "east: ")
    assert capfd.readouterr().err == "east: an answer was refused: it is not finite\neast: half a line\n"
    assert "Flower says much" in log.read_text()
