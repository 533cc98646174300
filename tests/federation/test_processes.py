"""Federations of real processes on this machine, over TLS: what listens, and who is let in."""

import contextlib
import os
import pwd
import stat
import subprocess
import sys
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
    """The posterior is that of the same federation in one process, to the last bit."""
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = rehearsal.posterior(study), rehearsal.run().posterior.q
    for far, near in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_array_equal(far, near)


def check_the_end(study, files, tolerance=1e-3):
    """Free energies are those of one process, to the nats that are left when it has converged."""
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = (rehearsal.free_energy(q) for q in (rehearsal.posterior(study), rehearsal.run().posterior.q))
    assert there == pytest.approx(here, abs=tolerance)


def listening(process):
    """The TCP ports at which a process listens."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(link))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in lines if row[3] == "0A" and f"socket:[{row[9]}]" in found}


WRITTEN = ("*.log", "*.json", "*.sqlite", "*.npz", "summary.csv", "server.key", "keys/east")


def readable_to_others(folder):
    """What server and clients have written in a folder that `nobody` could read, if all folders were open."""
    written = [path for pattern in WRITTEN for path in folder.rglob(pattern)]
    assert len(written) > 8
    inside = {parent for path in written for parent in path.parents if parent.is_relative_to(folder)}
    for place in (*inside, *(parent for parent in folder.parents if parent.name.startswith(("pytest-", "test_")))):
        place.chmod(0o755)
    nobody = pwd.getpwnam("nobody").pw_uid
    done = subprocess.run(["find", *written, "-readable"], user=nobody, cwd="/", capture_output=True, check=True)
    return done.stdout.decode().split()


def test_a_federation_of_processes_over_tls(tmp_path, none_left):
    """One port is open, a client with another key is told, no process starts another, and the posterior is the same."""
    study, files = processes.federation(tmp_path, NAMES, rows)
    key = study / "clients" / "west" / "keys" / "west"
    key.rename(key.with_name("own"))
    make_key(key, key.with_suffix(".pub"))
    port = int(config.load(study).server.address.rpartition(":")[2])
    with partita("server", study, log=study / "server.txt") as server, clients(study, files) as (east, west):
        until(lambda: member(study, "east") and member(study, "east").last_seen is not None)
        until(lambda: "west: the server does not accept its key" in (study / "west.txt").read_text())
        assert member(study, "west").state == "expected"
        assert listening(server.pid) == {port}
        assert listening(east.pid) == listening(west.pid) == set()
        assert sorted(processes.of(tmp_path)) == sorted(one.pid for one in (server, east, west))
        west.kill()
        west.wait()
        key.with_name("own").replace(key)
        command = ("client", study / "clients" / "west", "--name", "west", "--data", files["west"])
        with partita(*command, log=study / "west.txt"):
            assert server.wait(240) == 0
    check(study, files)
    if os.getuid() == 0:  # who alone can become somebody else
        assert [stat.S_IMODE(path.stat().st_mode) for path in (study, study / "clients" / "east")] == [0o700] * 2
        assert readable_to_others(study) == []
    said = "".join(path.read_text() for path in study.glob("*.txt"))
    assert "PRIVATE KEY" not in said


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
