"""Creates a federation's folder: federation.toml, and a folder with config and credentials for each client."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from partita.errors import FederationError
from partita.federation.config import CONFIG_FILE, host_and_port, load, loopback, read
from partita.federation.example import Example, of_files
from partita.io import atomic
from partita.models.named import KINDS

__all__ = ["initialise", "issue_credentials"]

_TOML = """# A federation of partita. Server and clients have the same file.
name = {name}
clients = {clients}
seed = 0

[data]
response = {response}
{labels}numbers = {numbers}

[data.categories]  # [] collects the levels from clients at enrolment; where levels are listed, others are refused
{categories}

[model]
kind = {model}  # {kinds}; classifier and regressor are networks

[prior]
family = "mean-field"  # or "full": with covariances
scale = 1.0  # the standard deviation of every parameter

[method]
name = {schedule}  # sequential, synchronous, asynchronous, or another of partita's methods

[solver]
kind = "newton"

[run]  # times are in seconds
rounds = 20
tolerance = 1e-6  # in nats: the run has converged when every client's residual is below it
deadline = 600
quorum = 0.5
assemble = 600
timeout = 86400

[admission]  # bounds on answers; 0 disables a bound: see docs/federation.md
change = 0.0
dominance = 0.0
prominence = 0.0
deficit = 0.0

[server]
address = {address}
secure = {secure}
"""


class _Initialised(NamedTuple):
    """What was made."""

    written: list[Path]
    left_out: list[str]
    """Columns of the example that look like identifiers."""


def initialise(
    folder: Path,
    clients: Sequence[str],
    response: str,
    example: Path | Sequence[Path],
    address: str,
    model: str,
    schedule: str,
    secure: bool | None = None,
) -> _Initialised:
    """Writes the folder of a federation with the columns of an example file, or of several.

    By default certificates and keys are made if the address is not on loopback.
    """
    if (folder / CONFIG_FILE).exists():
        raise FederationError(f"{folder / CONFIG_FILE} already exists: choose another folder, or edit it.")
    host, _ = host_and_port(address)
    found = of_files([example] if isinstance(example, Path) else example, response)
    secure = not loopback(host) if secure is None else secure
    about = {"name": folder.resolve().name, "clients": list(clients), "response": response, "model": model}
    there = {"schedule": schedule, "address": address, "secure": secure}
    known = {key: json.dumps(value) for key, value in (about | there).items()}
    text = _TOML.format(**known, **_written(found), kinds=", ".join(KINDS))
    read(text.encode(), CONFIG_FILE)
    written = [folder / CONFIG_FILE]
    if secure:
        from partita.federation.certificates import make_authority

        make_authority(folder, host)
        written += [folder / "ca.crt", folder / "server.pem", folder / "server.key", folder / "keys"]
    atomic.write_text(folder / CONFIG_FILE, text)  # last, since a folder that has it is not made again
    return _Initialised(written + issue_credentials(folder), found.left_out)


def issue_credentials(folder: Path) -> list[Path]:
    """Writes every client's folder from the current federation.toml; new clients get new keys."""
    federation = load(folder)
    written = []
    for name in federation.clients:
        handed = folder / "clients" / name
        handed.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / CONFIG_FILE, handed / CONFIG_FILE)
        if federation.server.secure:
            from partita.federation.certificates import PRIVATE, make_key

            if not (folder / "keys" / name).exists():
                make_key(folder / "keys", name)
            shutil.copy(folder / "ca.crt", handed / "ca.crt")
            atomic.write_text(handed / "keys" / name, (folder / "keys" / name).read_text(encoding="utf-8"), PRIVATE)
        written.append(handed)
    return written


def _written(example: Example) -> dict[str, str]:
    """An example's columns as TOML."""
    labels = ""
    if example.labels:
        *negative, positive = example.labels
        labels = (
            f"positive = {json.dumps([positive])}  # these values count as 1\n"
            f"negative = {json.dumps(negative)}  # these count as 0; a client with others is refused\n"
        )
    levels = (f"{json.dumps(name)} = []  # {json.dumps(some)[1:-1]}" for name, some in example.categories.items())
    return {"numbers": json.dumps(example.numbers), "categories": "\n".join(levels), "labels": labels}
