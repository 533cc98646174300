"""A new federation's folder: a file that a person can read, and what each client is to be given."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from partita.errors import FederationError, unknown
from partita.federation.config import FILE, load, loopback, read
from partita.io import atomic


class Columns(NamedTuple):
    """What a file's columns look like."""

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
    """Writes the folder of a federation whose columns are those of an example file; returns what was written.

    Without `secure`, there are certificates and keys if the server can be reached from other machines.
    """
    if (folder / FILE).exists():
        raise FederationError(f"{folder / FILE} is there already: choose another folder, or edit it.")
    columns = _columns(example, response)
    host = address.rpartition(":")[0]
    secure = not loopback(host) if secure is None else secure
    text = _text(folder.resolve().name, clients, response, columns, model, schedule, address, secure)
    read(text.encode(), FILE)
    atomic.write_text(folder / FILE, text)
    written = [folder / FILE]
    if secure:
        from partita.federation.certificates import make_authority

        make_authority(folder, host)
        written += [folder / "ca.crt", folder / "server.pem", folder / "server.key", folder / "keys"]
    return written + hand(folder)


def hand(folder: Path) -> list[Path]:
    """Writes what every client is to be given, as the folder's federation.toml is now; new clients get new keys."""
    federation = load(folder)
    written = []
    for name in federation.clients:
        handed = folder / "clients" / name
        handed.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / FILE, handed / FILE)
        if federation.server.secure:
            from partita.federation.certificates import PRIVATE, make_key

            if not (folder / "keys" / name).exists():
                make_key(folder / "keys", name)
            shutil.copy(folder / "ca.crt", handed / "ca.crt")
            atomic.write_text(handed / "keys" / name, (folder / "keys" / name).read_text(encoding="utf-8"), PRIVATE)
        written.append(handed)
    return written


def _columns(example: Path, response: str) -> Columns:
    """Which columns of a file hold numbers and which categories: texts."""
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
    ones = f"positive = {json.dumps(list(columns.positive))}  # these count as 1, all others as 0\n"
    positive = ones if columns.positive else ""
    return f"""# A federation of partita. Server and clients have the same file.
name = {json.dumps(name)}
clients = {json.dumps(list(clients))}
seed = 0

[data]
response = {json.dumps(response)}
{positive}numbers = {json.dumps(list(columns.numbers))}

[data.categories]  # with their levels; [] for those that clients name before the first round
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
tolerance = 1e-6  # in nats: when every client's answer is that near, it has converged
deadline = 600
quorum = 0.5
assemble = 600
timeout = 86400

[admission]  # bounds on answers, 0 for none: see docs/federation.md
change = 0.0
dominance = 0.0
prominence = 0.0
deficit = 0.0

[server]
address = {json.dumps(address)}
secure = {json.dumps(secure)}
"""
