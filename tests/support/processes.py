"""Starts servers and clients as separate processes, as a user does, and kills them."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from partita.errors import InputError
from partita.federation import config
from partita.federation.initialise import initialise
from partita.federation.status import read_status
from support.clinic_files import ILL


def federation(folder, names, rows, schedule="sequential", rounds=None):
    """The folder of a federation on this machine, and its clients' files; `rows` writes those of a client."""
    files = {name: folder / f"{name}.csv" for name in names}
    for name, path in files.items():
        rows(path, name)
    study = folder / "study"
    initialise(study, names, ILL, [files[names[0]]], f"127.0.0.1:{free_port()}", schedule)
    if rounds is not None:
        for path in (study, *(study / "clients" / name for name in names)):
            text = (path / config.CONFIG_FILE).read_text()
            (path / config.CONFIG_FILE).write_text(text.replace("rounds = 20", f"rounds = {rounds}"))
    return study, files


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def partita(*arguments, log):
    """Runs a command, and terminates it on exit if it is still running."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "partita", *map(str, arguments)], stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(40)
        finally:
            process.kill()


@contextlib.contextmanager
def clients(study, files):
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                partita(
                    *("client", study / "clients" / name, "--name", name, "--data", path), log=study / f"{name}.txt"
                )
            )
            for name, path in files.items()
        ]


def until(condition, seconds=240.0):
    """Polls a condition until it is true, and returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{condition} did not come true in {seconds} seconds")


def member(study, name):
    """The status of a client; None before the ledger exists."""
    with contextlib.suppress(InputError):
        about = config.load(study)
        return next(one for one in read_status(study, about.name, about.clients).members if one.name == name)
    return None


def of(folder, doing=""):
    """Ids of processes whose command line or environment names the folder and whose command line contains `doing`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, environment = (path / "cmdline").read_text(), (path / "environ").read_text()
            if str(folder) in command + environment and doing in command and int(path.name) != os.getpid():
                found.append(int(path.name))
    return found
