"""The status of a federation, read from its ledger while the server may be writing to it."""

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from partita.errors import FederationError
from partita.federation.serve import LEDGER_FILE
from partita.io.wire import sanitise
from partita.storage.records import exists, opened, records, snapshot

__all__ = ["KINDS", "MAX_ERROR_LENGTH", "ClientStatus", "FederationStatus", "read_status", "to_json"]

KINDS = ("accepted", "refused", "late", "failed")
_ERROR_PREFIXES = {
    "refused": "an answer was refused: it",
    "failed": "a task failed:",
    "incompatible": "it does not fit:",
    "gone": "it",
    **{f"could not {change}": f"it could not {change}:" for change in ("leave", "retire", "join")},
}
_BEFORE = {"joined": "enrolled", "incompatible": "incompatible", "gone": "expected"}
"""The state of a client that has not been asked, by the last of these events."""
MAX_ERROR_LENGTH = 300
"""Characters of a client's text that are shown."""


@dataclasses.dataclass(frozen=True)
class ClientStatus:
    """A client as the server sees it."""

    name: str
    state: str
    """working, waiting, left; before it is asked: expected, enrolled, or incompatible."""
    rows: int | None
    rounds: int
    """The number of accepted answers."""
    residual: float | None
    accepted: int
    refused: int
    late: int
    failed: int
    last_seen: float | None
    """Seconds ago."""
    last_error: str
    """The last refusal or failure, with the reason."""


@dataclasses.dataclass(frozen=True)
class FederationStatus:
    """A snapshot of a federation's status."""

    name: str
    ended: str
    """The run's final message; empty while it is running."""
    assembled: bool
    """Whether the server waits no longer for clients to agree on the design with."""
    agreed: bool
    """Whether they have agreed on it."""
    step: int
    rounds: float
    communications: int
    free_energy: float | None
    """The sum of what clients reported with their last answers, less the divergence from the prior."""
    free_energy_error: float | None
    """Its standard error, where the model's expectation is sampled."""
    residual: float | None
    traffic: int
    """Bytes of arrays sent and received, up to the last answer."""
    members: tuple[ClientStatus, ...]
    history: tuple[dict[str, Any], ...]


def read_status(folder: Path, name: str, clients: tuple[str, ...]) -> FederationStatus:
    """Reads the status from the ledger in the folder."""
    path = folder / LEDGER_FILE
    if not path.exists():
        raise FederationError(f"There is no {path} yet: start the run with `partita server {folder}`.")
    with (
        contextlib.closing(opened(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10.0)) as db,
        snapshot(db, path),
    ):
        about = {key: json.loads(value) for key, value in records(db, path, "about", "key")}
        begun = exists(db, "clients")
        if begun:
            records(db, path, "clients", "k")
        clients_of = "SELECT name, versions, residual, inactive FROM clients ORDER BY k"
        rows = db.execute(clients_of).fetchall() if begun else []
        tasks = db.execute("SELECT client FROM tasks WHERE reply IS NULL").fetchall() if begun else []
        busy = {client for (client,) in tasks}
        history = [json.loads(row) for _, row in records(db, path, "history", "place")]
        events = [row[1:] for row in records(db, path, "events", "place")]
    known = {row[0]: (k, *row[1:]) for k, row in enumerate(rows)}
    roster = about.get("roster") or {}
    counted = roster.get("rows", {})
    members = [
        _member(client, known.get(client), counted.get(client), busy, [event for event in events if event[1] == client])
        for client in (*known, *(client for client in clients if client not in known))
    ]
    last = history[-1] if history else {}
    reported = [row for row in history if "reported_free_energy" in row]
    energy = reported[-1] if reported else {}
    return FederationStatus(
        name=name,
        ended=(about.get("ended") or {}).get("message", ""),
        assembled=bool(roster),
        agreed=roster.get("complete") is True,
        step=int(last.get("step", 0)),
        rounds=float(last.get("rounds", 0.0)),
        communications=int(about.get("state", {}).get("communications", 0)),
        free_energy=_finite(energy.get("reported_free_energy")),
        free_energy_error=_finite(energy.get("reported_free_energy_error")),
        residual=_finite(last.get("residual")),
        traffic=about.get("traffic", 0),
        members=tuple(members),
        history=tuple(history),
    )


def _member(name: str, row: Any, rows: int | None, busy: set[int], events: list[Any]) -> ClientStatus:
    counts = {kind: sum(event[2] == kind for event in events) for kind in KINDS}
    seen = [event[0] for event in events if event[2] in ("joined", "accepted", "refused", "late")]
    last_error = [f"{_ERROR_PREFIXES[event[2]]} {event[3]}" for event in events if event[2] in _ERROR_PREFIXES]
    if row is None:
        last = [event[2] for event in events if event[2] in _BEFORE]
        state = _BEFORE[last[-1]] if last else "expected"
    else:
        state = "left" if row[3] else "working" if row[0] in busy else "waiting"
    return ClientStatus(
        name=name,
        state=state,
        rows=rows,
        rounds=0 if row is None else row[1],
        residual=None if row is None else _finite(row[2]),
        last_seen=time.time() - seen[-1] if seen else None,
        last_error=_legible(last_error[-1]) if last_error else "",
        **counts,
    )


def to_json(now: FederationStatus, indent: int | None = None) -> str:
    """The status as one JSON object; non-finite numbers become null."""
    finite = json.loads(json.dumps(dataclasses.asdict(now)), parse_constant=lambda _: None)
    return json.dumps(finite, indent=indent)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def _legible(text: str) -> str:
    """Sanitises a client's text: no control characters, truncated with an ellipsis."""
    return sanitise(text, MAX_ERROR_LENGTH) + "…" * (len(text) > MAX_ERROR_LENGTH)
