"""Creates a federation's folder: federation.toml, and a folder with config and credentials for each client."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from partita.errors import FederationError, unknown
from partita.federation.config import CONFIG_FILE, load, loopback, read
from partita.io import atomic


class Columns(NamedTuple):
    """The columns of a data file by type."""

    numbers: tuple[str, ...]
    categories: dict[str, list[str]]
    positive: tuple[str, ...]


def initialise(
    folder: Path,
    clients: Sequence[str],
    response: str,
    example: Path,
    address: str,
    model: str,
    schedule: str,
    secure: bool | None = None,
) -> list[Path]:
    """Writes the folder of a federation with the columns of an example file; returns the paths written.

    By default certificates and keys are made if the address is not on loopback.
    """
    if (folder / CONFIG_FILE).exists():
        raise FederationError(f"{folder / CONFIG_FILE} already exists: choose another folder, or edit it.")
    columns = _columns(example, response)
    host = address.rpartition(":")[0]
    secure = not loopback(host) if secure is None else secure
    text = _text(folder.resolve().name, clients, response, columns, model, schedule, address, secure)
    read(text.encode(), CONFIG_FILE)
    atomic.write_text(folder / CONFIG_FILE, text)
    written = [folder / CONFIG_FILE]
    if secure:
        from partita.federation.certificates import make_authority

        make_authority(folder, host)
        written += [folder / "ca.crt", folder / "server.pem", folder / "server.key", folder / "keys"]
    return written + issue_credentials(folder)


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


def _columns(example: Path, response: str) -> Columns:
    """Classifies the columns of a file as numeric or categorical (text)."""
    from partita.federation.rows import text, whole

    table = whole(example)
    if response not in table.columns:
        raise unknown(f"column of {example.name}", response, table.columns)
    numbers, categories = [], {}
    for name in table.columns:
        if name == response:
            continue
        if table[name].dtype.is_numeric():
            numbers.append(name)
        else:
            categories[name] = sorted({text(value) for value in table[name].drop_nulls().to_list()})
    positive: tuple[str, ...] = ()
    if not table[response].dtype.is_numeric():
        positive = (max(text(value) for value in table[response].drop_nulls().to_list()),)
    return Columns(tuple(numbers), categories, positive)


def _text(
    name: str,
    clients: Sequence[str],
    response: str,
    columns: Columns,
    model: str,
    schedule: str,
    address: str,
    secure: bool,
) -> str:
    levels = "\n".join(f"{json.dumps(column)} = {json.dumps(some)}" for column, some in columns.categories.items())
    ones = f"positive = {json.dumps(list(columns.positive))}  # these values count as 1, all others as 0\n"
    positive = ones if columns.positive else ""
    return f"""# A federation of partita. Server and clients have the same file.
name = {json.dumps(name)}
clients = {json.dumps(list(clients))}
seed = 0

[data]
response = {json.dumps(response)}
{positive}numbers = {json.dumps(list(columns.numbers))}

[data.categories]  # with their levels; [] to collect them from clients at enrolment
{levels}

[model]
kind = {json.dumps(model)}  # linear, logistic, probit, poisson, classifier or regressor (networks)

[prior]
family = "mean-field"  # or "full": with covariances
scale = 1.0  # the standard deviation of every parameter

[method]
name = {json.dumps(schedule)}  # sequential, synchronous, asynchronous, or another of partita's methods

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
address = {json.dumps(address)}
secure = {json.dumps(secure)}
"""
