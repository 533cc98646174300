"""Flower's own programs, started and watched so that nobody need know them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from partita import atomic
from partita.errors import InputError
from partita.federation.config import Federation
from partita.federation.ledger import Ledger
from partita.federation.serve import LEDGER

_APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "partita-federation"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "partita"

[tool.flwr.app.components]
serverapp = "partita_federation:server_app"
clientapp = "partita_federation:client_app"

[tool.flwr.app.config]
folder = ""
"""
_MODULE = '''"""What Flower runs: all of it is partita's."""

from partita.engines.flower import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


def environment(home: Path) -> dict[str, str]:
    """Variables for Flower's programs: a home of their own, no telemetry, nothing installed on the way."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def program(name: str) -> str:
    """The path of one of Flower's programs."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise InputError("Flower is not installed: pip install 'partita[flower]'.")
    return found


@contextlib.contextmanager
def running(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, with everything that it starts; all of it ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, env=dict(env), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """Ends a program and its children: politely first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            if sign == signal.SIGTERM and not _group_alive(process.pid, 2.0):
                return


def _group_alive(group: int, patience: float) -> bool:
    """Whether anybody of a group of processes is still there after a while."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def serve(folder: Path, federation: Federation, log: Path | None = None, module: str = _MODULE) -> str:
    """Runs the server of a federation until its run has ended; returns how. The module holds Flower's two apps."""
    home = folder / ".flower"
    app = home / "app"
    atomic.write_text(app / "pyproject.toml", _APP)
    atomic.write_text(app / "partita_federation.py", module)
    address = federation.server.address
    host, port = _host_and_port(address)
    security = _server_security(folder, federation)
    local = f"127.0.0.1:{port}" if host in ("0.0.0.0", "::") else address
    trust = f'root-certificates = "{folder / "ca.crt"}"' if federation.server.secure else "insecure = true"
    atomic.write_text(home / "config.toml", f'[superlink.partita]\naddress = "{local}"\n{trust}\n')
    env, logs = environment(home), log or folder / "server.log"
    ledger = Ledger(folder / LEDGER)
    ledger.say("ended", None)
    command = [program("flower-superlink"), "--host", host, "--port", str(port), *security]
    with running(command, env, logs) as link:
        _await_health(local, federation.server.secure, folder, link, logs)
        if federation.server.secure:
            _register(folder, federation, env)
        _submit(app, folder, env)
        while True:
            ended = ledger.said("ended")
            if ended is not None:
                return str(ended["message"])
            if link.poll() is not None:
                raise InputError(f"Flower's server stopped; {logs} says why. `partita resume` goes on.")
            time.sleep(0.2)


def attend(folder: Path, federation: Federation, name: str, data: Path) -> None:
    """Runs a client until it is interrupted, and starts it again when it stops by itself."""
    if name not in federation.clients:
        raise InputError(f"{name!r} is not among the clients of {federation.name}: {', '.join(federation.clients)}.")
    home = folder / f".flower-{name}"
    about = {"client": name, "folder": str(folder.resolve()), "data": str(data.resolve())}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in about.items())
    command = [program("flower-supernode"), "--superlink", federation.server.address, "--node-config", config]
    command += ["--port", str(free_port()), *_client_security(folder, federation, name)]
    while True:
        with running(command, environment(home), folder / f"client-{name}.log") as node:
            node.wait()
        time.sleep(5.0)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"The address {address!r} is not a host and a port, such as 127.0.0.1:9092.")
    return host, int(port)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _server_security(folder: Path, federation: Federation) -> list[str]:
    if not federation.server.secure:
        return ["--insecure"]
    files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
    return [*(part for flag, file in files.items() for part in (flag, str(folder / file))), "--enable-supernode-auth"]


def _client_security(folder: Path, federation: Federation, name: str) -> list[str]:
    if not federation.server.secure:
        return ["--insecure"]
    key = folder / "keys" / name
    return ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(key)]


def _await_health(
    address: str, secure: bool, folder: Path, link: subprocess.Popen[bytes], log: Path, patience: float = 60.0
) -> None:
    """Waits until Flower's server is ready."""
    until = time.monotonic() + patience
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt")) if secure else None
    url = f"http{'s' if secure else ''}://{address}/health"
    while time.monotonic() < until and link.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2.0, context=trust) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise InputError(f"Flower's server did not start at {address}: {log} says why; is the port in use?")


def _register(folder: Path, federation: Federation, env: Mapping[str, str]) -> None:
    """Tells Flower's server whose keys to accept."""
    for name in federation.clients:
        key = folder / "keys" / f"{name}.pub"
        _flwr(["supernode", "register", str(key), "partita", "--name", name], env, f"the key of {name}")


def _submit(app: Path, folder: Path, env: Mapping[str, str]) -> None:
    """Starts the run."""
    config = f"folder={json.dumps(str(folder.resolve()))}"
    said = json.loads(_flwr(["run", str(app), "partita", "--format", "json", "--run-config", config], env, "the run"))
    if not said.get("success"):
        raise InputError(f"Flower did not take the run: {str(said.get('error-message', said)).strip()}")


def _flwr(arguments: list[str], env: Mapping[str, str], what: str) -> str:
    """What one of Flower's commands prints. One that prints JSON may fail and return 0 all the same."""
    command = [program("flwr"), *arguments]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InputError(f"Flower did not take {what}: {' '.join(last)}")
    return done.stdout
