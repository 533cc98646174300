"""Creates a federation's folder: federation.toml, and a folder with config and credentials for each client."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from partita.errors import DataError, FederationError
from partita.federation import certificates
from partita.federation.config import CONFIG_FILE, host_of, read
from partita.federation.credentials import issue_credentials
from partita.io import atomic, private
from partita.tables.reading import columns_of, frame_of
from partita.tables.spec import Settings

__all__ = ["initialise"]

_TOML = """# A federation of partita. Server and clients have the same file.
name = {name}
clients = {clients}
seed = 0

[fit]  # as of `partita fit`: see docs/fit.md
formula = {formula}
family = {family}
prior = {prior}  # of the coefficients of standardised columns
covariance = {covariance}  # automatic, full, mean-field (the nearest to full) or mean-field-optimum
weights = {weights}  # a column of row weights, or empty
positive = {positive}  # the label of the response that counts as 1; empty for the last in the alphabet
{further}
[method]
name = {schedule}  # sequential, synchronous, asynchronous, or another of partita's methods

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
moments = 10.0  # in round 0: a column in another unit; sites may differ more by design, as in their years

[disclosure]  # no client discloses sums of fewer rows, or of a cell of fewer; an owner may set stricter limits
rows = 10
cell = 5

[server]
address = {address}
"""


def initialise(
    folder: Path,
    clients: Sequence[str],
    settings: Settings,
    examples: Sequence[Path] = (),
    address: str = "127.0.0.1:9092",
    schedule: str = "sequential",
) -> list[Path]:
    """Writes the folder of a federation that fits a formula; example files must have the columns that it names."""
    if (folder / CONFIG_FILE).exists():
        raise FederationError(f"{folder / CONFIG_FILE} already exists: choose another folder, or edit it.")
    host = host_of(address)
    for path in examples:
        _check_example(path, settings)
    about = {"name": folder.resolve().name, "clients": list(clients), **dataclasses.asdict(settings)}
    there = {"schedule": schedule, "address": address}
    values = {key: _toml(value) for key, value in (about | there).items()}
    text = _TOML.format(**values, further=_further(settings))
    read(_encoded(text), CONFIG_FILE)
    private.folder(folder)
    certificates.make_authority(folder, host)
    atomic.write_text(folder / CONFIG_FILE, text)  # last, since a folder that has it is not made again
    made = ("ca.crt", "server.pem", "server.key", "keys")
    return [folder / CONFIG_FILE, *(folder / name for name in made), *issue_credentials(folder)]


def _toml(value: object) -> str:
    """A value as TOML has it: as JSON, but for texts beyond the basic plane and the one character that JSON leaves."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FederationError("A name or the formula has characters that are no text: write them in UTF-8.") from None


def _further(settings: Settings) -> str:
    """The lines of the settings that the template does not name, where they differ from what they are by default."""
    others = [field for field in dataclasses.fields(settings) if f"{{{field.name}}}" not in _TOML]
    said = {field.name: getattr(settings, field.name) for field in others}
    given = {field.name: said[field.name] for field in others if said[field.name] != field.default}
    return "".join(f"{name} = {_toml(value)}\n" for name, value in given.items())


def _check_example(path: Path, settings: Settings) -> None:
    """Raises where an example file lacks a column of the formula, or has one of a kind that cannot be read."""
    try:
        columns_of(frame_of(path), settings.columns)
    except DataError as error:
        raise FederationError(f"The example {path.name} does not fit the formula: {error}") from None
