"""Starts and supervises Flower's programs."""

import contextlib
import errno
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partita.errors import FederationError, MissingExtraError
from partita.federation.config import Federation, host_and_port, load, loopback
from partita.federation.keeper import PATIENCE
from partita.federation.serve import LEDGER_FILE, SERVER_LOCK
from partita.federation.status import read_status
from partita.federation.waiting import waiting
from partita.io import atomic
from partita.io.lock import held, hold
from partita.storage.ledger import Ledger

__all__ = ["START", "environment", "free_port", "program", "run_client", "running", "serve"]

START = 120.0
"""Timeout in seconds for a program to start."""
_LOOK = 5.0
"""Seconds between two looks at what the server waits for."""
_PATIENCE, _RESTART = 5.0, 5.0
"""Seconds that a program at an address has to answer, and until a client that stopped by itself is started again."""
_FREED = PATIENCE + 5.0
"""Seconds in which an earlier server that was killed has left its port."""
_REFUSED = "[code: 2004]"
"""What Flower logs of a client whose key is in use already, or not registered; it does not tell the two apart."""
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
_MODULE = '''"""The Flower apps, which are implemented in partita."""

from partita.federation.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


def environment(home: Path) -> dict[str, str]:
    """Environment variables for Flower's programs: a separate home, no telemetry, no runtime installation."""
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
        raise MissingExtraError("Flower", "flower")
    return found


@contextlib.contextmanager
def running(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program whose whole process group ends with the block, or when this process dies."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = [sys.executable, str(Path(__file__).with_name("keeper.py")), *command]
    with log.open("ab") as file:
        process = subprocess.Popen(
            kept, env=dict(env), stdout=file, stderr=file, stdin=subprocess.PIPE, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait()


def serve(folder: Path, federation: Federation, log: Path | None = None, module: str = _MODULE) -> str:
    """Runs a federation's server until the run ends; returns the final message. `module` holds Flower's two apps."""
    folder, secure = folder.resolve(), federation.server.secure
    host, port = host_and_port(federation.server.address)
    home, logs = folder / ".flower", log or folder / "server.log"
    env = environment(home)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(folder / ".server", wait=False))
        except BlockingIOError:
            raise FederationError(
                f"A server of {folder} is running already: `partita status {folder}` shows it."
            ) from None
        _await_earlier(folder)
        _await_free(_listens_on(host), port)
        ledger = Ledger(folder / LEDGER_FILE)
        ledger.say("ended", None)
        local = f"127.0.0.1:{free_port()}" if secure else federation.server.address
        trust = f"root-certificates = {json.dumps(str(folder / 'ca.crt'))}" if secure else "insecure = true"
        app = _write_app(home, module)
        atomic.write_text(home / "config.toml", f'[superlink.partita]\naddress = "{local}"\n{trust}\n')
        inner_host, inner_port = host_and_port(local)
        link = [program("flower-superlink"), "--host", inner_host, "--port", str(inner_port)]
        started = [stack.enter_context(running([*link, *_server_security(folder, federation)], env, logs))]
        _await_health(local, secure, folder, started, logs)
        ledger.say("nodes", _register(folder, federation, env) if secure else None)
        if secure:
            started.append(stack.enter_context(running(_gate(folder, host, port, local), env, logs)))
            _await_health(f"127.0.0.1:{port}", secure, folder, started, logs)
        _submit(app, folder, env)
        return _await_end(folder, ledger, started, logs)


def _await_earlier(folder: Path) -> None:
    """Waits until the server app of a previous server has ended: it runs in its own session and ends last."""
    until = time.monotonic() + START
    while held(folder / SERVER_LOCK):
        if time.monotonic() > until:
            raise FederationError(
                f"What an earlier server of {folder} ran has not ended: end its flwr-serverapp first."
            )
        time.sleep(0.2)


def _write_app(home: Path, module: str) -> Path:
    """Writes the app that Flower distributes to the server's and the clients' processes."""
    atomic.write_text(home / "app" / "pyproject.toml", _APP)
    atomic.write_text(home / "app" / "partita_federation.py", module)
    return home / "app"


def _listens_on(host: str) -> str:
    """Where the server listens: unless its host is on loopback, on all interfaces."""
    return host if loopback(host) else "0.0.0.0"


def _await_free(host: str, port: int) -> None:
    """Waits until the server can listen at a port of this machine; raises an `InputError` if it cannot."""
    until = time.monotonic() + _FREED
    while True:
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
                return tried.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise FederationError(
                    f"The server cannot listen at port {port} ({error.strerror}): end the program that does, or choose "
                    "another in server.address of federation.toml and hand out the clients' folders again."
                ) from None
            time.sleep(0.2)


def _gate(folder: Path, host: str, port: int, inner: str) -> list[str]:
    """The proxy's command."""
    where = ["--host", _listens_on(host), "--port", str(port), "--inner", inner]
    return [sys.executable, "-m", "partita.federation.gate", str(folder), *where]


def _await_end(folder: Path, ledger: Ledger, started: list[subprocess.Popen[bytes]], logs: Path) -> str:
    """The run's final message; raises an `InputError` if one of the programs has died. Prints what it waits for."""
    began, until = False, time.monotonic() + START
    about, said, look = load(folder), "", time.monotonic()
    while True:
        at_work = held(folder / SERVER_LOCK)
        began = began or at_work
        gone = any(process.poll() is not None for process in started) or (began and not at_work)
        ended = ledger.said("ended")
        if ended is not None and ended["status"] == "failed":
            raise FederationError(f"{ended['message']} Continue with `partita resume {folder}`.")
        if ended is not None:
            return str(ended["message"])
        if time.monotonic() >= look:
            line, look = waiting(read_status(folder, about.name, about.clients)), time.monotonic() + _LOOK
            if line != said:
                print(line, flush=True)
            said = line
        if gone or (not began and time.monotonic() > until):
            ledger.say("ended", None)  # on a full disk, where the app could write no ending, this tells of it
            raise FederationError(f"The server stopped; see {logs}. Continue with `partita resume {folder}`.")
        time.sleep(0.2)


def run_client(folder: Path, federation: Federation, name: str, data: Path) -> None:
    """Runs a client until it is interrupted; restarts it if it stops by itself."""
    if name not in federation.clients:
        raise FederationError(
            f"{name!r} is not among the clients of {federation.name}: {', '.join(federation.clients)}."
        )
    try:
        with hold(folder / f".client-{name}", wait=False):
            _keep_running(folder, federation, name, data)
    except BlockingIOError:
        raise FederationError(
            f"The client {name} is running already in {folder}: stop that one first, or give each its own folder."
        ) from None


def _keep_running(folder: Path, federation: Federation, name: str, data: Path) -> None:
    home = folder / f".flower-{name}"
    about = {"client": name, "folder": str(folder.resolve()), "data": str(data.resolve())}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in about.items())
    command = [program("flower-supernode"), "--superlink", federation.server.address, "--node-config", config]
    command += _client_security(folder, federation, name)
    log = folder / f"client-{name}.log"
    trouble = _trouble(folder, federation)
    if trouble:
        print(f"{name}: {trouble} in federation.toml; the client goes on trying.", file=sys.stderr, flush=True)
    told: set[str] = set()
    while True:
        with running([*command, "--port", str(free_port())], environment(home), log) as node:
            _echo(node, log, f"{name}: ", told)  # the prefix of partita's own log lines
        time.sleep(_RESTART)


def _echo(process: subprocess.Popen[bytes], log: Path, mark: str, told: set[str]) -> None:
    """Prints new log lines that start with `mark` until the program ends, and that Flower refuses it, once."""
    with log.open(errors="replace") as file:
        file.seek(0, os.SEEK_END)
        rest = ""
        while True:
            ended = process.poll() is not None
            *lines, rest = (rest + file.read()).split("\n")
            for line in lines:
                if line.startswith(mark):
                    print(line, file=sys.stderr, flush=True)
                elif _REFUSED in line and _REFUSED not in told:
                    told.add(_REFUSED)
                    print(
                        f"{mark}the server does not accept its key: stop another client that uses it, or use the "
                        "folder that `partita federation credentials` wrote for it; the client goes on trying.",
                        file=sys.stderr,
                        flush=True,
                    )
            if ended:
                return
            time.sleep(0.5)


def _trouble(folder: Path, federation: Federation) -> str:
    """The beginning of a sentence on a server that does not answer, or that is another one; empty if it answers."""
    address = federation.server.address
    try:
        socket.create_connection(host_and_port(address), timeout=_PATIENCE).close()
    except OSError:
        return f"nothing answers at {address} yet: start the server, or correct server.address"
    error = _unhealthy(address, federation.server.secure, folder)
    if error is None:
        return ""
    why = getattr(error, "verify_message", str(error))
    return f"what answers at {address} is not the server of this federation ({why}): correct server.address"


def free_port() -> int:
    """A free port on this machine."""
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


def _await_health(address: str, secure: bool, folder: Path, started: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Waits until Flower's server is ready."""
    until = time.monotonic() + START
    while time.monotonic() < until and all(process.poll() is None for process in started):
        error = _unhealthy(address, secure, folder)
        if error is None:
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            raise FederationError(
                f"The certificate at {address} is not signed by {folder / 'ca.crt'} "
                f"({error.verify_message}): is another server, or an earlier version of partita, running there?"
            )
        time.sleep(0.1)
    raise FederationError(f"Flower's server did not start at {address}: see {log}; is the port in use?")


def _unhealthy(address: str, secure: bool, folder: Path) -> Exception | None:
    """What goes wrong where Flower's server is asked whether it is ready; None if it is."""
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt")) if secure else None
    url = f"http{'s' if secure else ''}://{address}/health"
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE, context=trust):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None)
        return reason if isinstance(reason, Exception) else error


def _register(folder: Path, federation: Federation, env: Mapping[str, str]) -> dict[str, int]:
    """Registers the clients' public keys with Flower's server; returns each client's node id."""
    return {
        name: int(
            _flwr(["supernode", "register", str(folder / "keys" / f"{name}.pub"), "partita"], env, name)["node-id"]
        )
        for name in federation.clients
    }


def _submit(app: Path, folder: Path, env: Mapping[str, str]) -> None:
    """Starts the run."""
    config = f"folder={json.dumps(str(folder.resolve()))}"
    _flwr(["run", str(app), "partita", "--run-config", config], env, "the run")


def _flwr(arguments: list[str], env: Mapping[str, str], what: str) -> dict[str, Any]:
    """The JSON output of a Flower command; its exit code may be 0 even if it failed."""
    command = [program("flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False, timeout=START)
    try:
        answer = dict(json.loads(done.stdout))
    except ValueError:
        answer = {"error-message": (done.stderr or done.stdout).strip().splitlines()[-1:]}
    if not answer.get("success"):
        raise FederationError(f"Flower rejected {what}: {answer.get('error-message', 'no reason given')}")
    return answer
