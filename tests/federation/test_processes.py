"""Federations of real processes on this machine, over Flower's own programs: with keys, and killed at work."""

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from partita.federation import config
from partita.federation.certificates import make_key
from partita.federation.rehearse import Rehearsal
from support import processes
from support.clinic_files import clinic, write
from support.processes import clients, member, partita, until

pytest.importorskip("flwr")
NAMES = ("east", "west")
EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals" / "run.py"


def rows(path, name):
    columns = ("age", "pressure", "pain", "ill")
    write(path, [(*row[:3], row[4]) for row in clinic(NAMES.index(name))], columns)


@pytest.fixture
def none_left(tmp_path):
    """Whatever a test starts is gone after it."""
    yield
    until(lambda: not processes.of(tmp_path), 60.0)


def check(study, files):
    """The posterior is that of the same federation in one process."""
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = rehearsal.posterior(study), rehearsal.run().posterior.q
    for far, near in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_allclose(far, near, rtol=1e-8)


def check_the_end(study, files, tolerance=1e-3):
    """Free energies are those of one process, to the nats that are left when it has converged."""
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = (rehearsal.free_energy(q) for q in (rehearsal.posterior(study), rehearsal.run().posterior.q))
    assert there == pytest.approx(here, abs=tolerance)


def test_with_keys_only_registered_clients_can_connect(tmp_path, none_left):
    study, files = processes.federation(tmp_path, NAMES, rows, secure=True, rounds=1)
    (study / "clients" / "west" / "keys" / "west").rename(study / "clients" / "west" / "keys" / "own")
    make_key(study / "clients" / "west" / "keys", "west")
    with partita("server", study, log=study / "server.txt") as server, clients(study, files):
        until(lambda: member(study, "east") and member(study, "east").last_seen is not None)
        assert member(study, "west").state == "expected"
        address, trust = config.load(study).server.address, ssl.create_default_context(cafile=str(study / "ca.crt"))
        for path, code in (("/v1/control/list-runs", 404), ("/v1/fleet/..", 404), ("/v1/fleet/pull-messages", 401)):
            request = urllib.request.Request(f"https://{address}{path}", b"", {"Content-Type": "application/protobuf"})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, context=trust)
            assert refused.value.code == code
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"https://{address}/health", context=ssl.create_default_context())
        until(lambda: "west: the server does not accept its key: " in (study / "west.txt").read_text())
        (study / "clients" / "west" / "keys" / "own").replace(study / "clients" / "west" / "keys" / "west")
        assert server.wait(240) == 0
    check(study, files)
    said = (study / "server.txt").read_text() + (study / "server.log").read_text()
    assert "PRIVATE KEY" not in said


@pytest.mark.slow
def test_a_server_killed_together_with_its_link_can_be_resumed(tmp_path, none_left):
    study, files = processes.federation(tmp_path, NAMES, rows, rounds=3)
    with clients(study, files):
        with partita("server", study, log=study / "server.txt") as server:
            until(lambda: member(study, "west") and member(study, "west").state == "working")
            processes.kill([server.pid, *processes.of(study / ".flower")])
        with partita("resume", study, log=study / "server.txt") as server:
            assert server.wait(300) == 0
    check(study, files)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["working", "waiting"])
def test_a_client_killed_while_working_or_idle_reconnects(state, tmp_path, none_left):
    """Its turns pass while it is away, so that only the end is the same."""
    study, files = processes.federation(tmp_path, NAMES, rows)
    with partita("server", study, log=study / "server.txt") as server, clients(study, files):
        until(lambda: member(study, "east") and member(study, "east").accepted == 1)
        until(lambda: member(study, "west").state == state)
        processes.kill(processes.of(study / "clients" / "west" / ".flower-west"))
        assert server.wait(600) == 0
    check_the_end(study, files)
    assert member(study, "west").accepted > 1


@pytest.mark.slow
def test_a_server_app_that_is_killed_is_noticed(tmp_path, none_left):
    study, files = processes.federation(tmp_path, NAMES, rows, rounds=3)
    with clients(study, files):
        with partita("server", study, log=study / "server.txt") as server:
            until(lambda: member(study, "west") and member(study, "west").state == "working")
            processes.kill(processes.of(study / ".flower", doing="serverapp"))
            assert server.wait(60) == 2
            assert "goes on" in (study / "server.txt").read_text()
        with partita("resume", study, log=study / "server.txt") as server:
            assert server.wait(300) == 0
    check(study, files)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", "synchronous", "asynchronous"])
def test_the_hospitals_come_to_what_they_do_in_one_process(method, tmp_path, none_left):
    """By the example's one command; asynchronous answers come in any order, so that only the end is the same."""
    study, port = tmp_path / "hospitals", processes.free_port()
    subprocess.run(
        [sys.executable, EXAMPLE, str(study), "--method", method, "--port", str(port)], check=True, timeout=1200
    )
    files = {name: study / "rows" / f"{name}.csv" for name in config.load(study).clients}
    if method != "asynchronous":
        check(study, files)
    else:
        check_the_end(study, files, 0.1)
