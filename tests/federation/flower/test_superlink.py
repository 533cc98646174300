"""A federation over an organisation's own SuperLink: Flower's programs, our server as its app, and our clients."""

import contextlib
import importlib.metadata
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from partita.federation import config
from partita.federation.rehearse import Rehearsal
from support import processes
from support.clinic_files import clinic, write

NAMES = ("east", "west")
ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "superlink"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
QUIET |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONPATH": str(ROOT / "src")}


def rows(path, name):
    columns = ("age", "pressure", "pain", "ill")
    write(path, [(*row[:3], row[4]) for row in clinic(NAMES.index(name))], columns)


def environment(folder):
    """That of Flower's programs, which keep their files in a folder, and find one another on the path."""
    (found,) = (file for file in importlib.metadata.files("flwr") if file.name == "flower-superlink")
    programs = Path(found.locate()).resolve().parent
    return os.environ | QUIET | {"FLWR_HOME": str(folder), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def superlink(study, port, about, log):
    """Flower's server with TLS and node keys, until the block ends; it stops what it has started."""
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", port, "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", study / "ca.crt", "--ssl-certfile", study / "server.pem"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--ssl-keyfile", study / "server.key"], stdout=file, stderr=file, env=about
        )
    try:
        processes.until(lambda: not socket.socket().connect_ex(("127.0.0.1", int(port))), 90.0)
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_federation_over_a_superlink_is_that_of_one_process(tmp_path):
    study, files = processes.federation(tmp_path, NAMES, rows)
    address = config.load(study).server.address
    about = environment(tmp_path / "flower")
    (tmp_path / "flower").mkdir()
    here = f'[superlink.here]\naddress = "{address}"\nroot-certificates = "{study / "ca.crt"}"\n'
    (tmp_path / "flower" / "config.toml").write_text(here)

    def flwr(*arguments):
        subprocess.run(["flwr", *map(str, arguments)], env=about, check=True, timeout=120)

    with superlink(study, address.rpartition(":")[2], about, tmp_path / "superlink.txt"):
        for name in NAMES:
            flwr("supernode", "register", study / "keys" / f"{name}.pub", "here", "--name", name)
        with processes.clients(study, files):
            flwr("run", APP, "here", "--run-config", f'folder="{study}"')
            processes.until((study / "result.json").exists, 240.0)
    rehearsal = Rehearsal.read(config.load(study), files)
    there, here = rehearsal.posterior(study), rehearsal.run().posterior.q
    for far, near in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_array_equal(far, near)
    for written in ("ledger.sqlite", "result.json", "posterior.npz", "summary.csv"):
        assert not (study / written).stat().st_mode & 0o077, written
