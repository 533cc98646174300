"""The server of a federation, whatever link its clients are behind: it assembles them, runs, and keeps the result."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita import atomic
from partita.engines.remote import Letter, Link, RemoteEngine
from partita.errors import InputError
from partita.federation.config import Federation
from partita.federation.ledger import Ledger
from partita.preprocess import Encoding, Summary, encoding, merge
from partita.pvi import Result, run
from partita.server import Rules
from partita.wire import Message

LEDGER = "ledger.sqlite"
SERVING = ".serving"
"""A file that the server holds while it runs."""


class Encoded(Link):
    """A link whose tasks carry the encoding on which everybody agreed, so that clients need remember nothing."""

    def __init__(self, link: Link, agreed: Encoding) -> None:
        self.link, self.agreed = link, agreed.to_dict()

    def post(self, name: str, message: Message) -> None:
        self.link.post(name, Message(message.header | {"encoding": self.agreed}, message.arrays))

    def poll(self, timeout: float) -> Letter | None:
        return self.link.poll(timeout)

    def present(self) -> Sequence[str]:
        return self.link.present()

    def now(self) -> float:
        return self.link.now()


def serve(folder: Path, federation: Federation, link: Link) -> Result:
    """Runs the federation in its folder to the end, or goes on with it."""
    ledger = Ledger(folder / LEDGER)
    began = link.now()
    roster = assemble(federation, link, ledger)
    agreed = Encoding.from_dict(roster["encoding"])
    model = federation.built_model(len(agreed.names))
    prior = federation.built_prior(model, len(agreed.names))
    about = federation.run
    rules = Rules(
        deadline=about.deadline,
        quorum=about.quorum,
        until=began + about.timeout,
        admission=federation.built_admission(),
    )
    engine = RemoteEngine(Encoded(link, agreed), prior, roster["rows"], ledger)
    result = run(
        federation.built_method(),
        model,
        prior,
        engine=engine,
        journal=ledger,
        rules=rules,
        rounds=about.rounds,
        tolerance=about.tolerance,
        seed=federation.seed,
        evaluate_every=0,
        progress=False,
    )
    write_result(folder, result, agreed.names)
    ledger.say("ended", {"status": result.status.value, "message": result.message})
    return result


def assemble(federation: Federation, link: Link, ledger: Ledger) -> dict[str, Any]:
    """Who takes part, with how many rows, and the encoding that all of them agree on; once found, it is kept."""
    found = ledger.said("roster")
    if found is not None:
        return found
    until = link.now() + federation.run.assemble
    waiting, summaries, rows = set(federation.clients), dict[str, Summary](), dict[str, int]()
    asked: dict[str, float] = {}
    while waiting and link.now() < until:
        for name in waiting & set(link.present()):
            if link.now() >= asked.get(name, -1.0):
                link.post(name, Message({"kind": "hello", "task": f"hello.{name}", "digest": federation.digest}, {}))
                asked[name] = link.now() + 60.0
        letter = link.poll(min(1.0, max(until - link.now(), 0.0)))
        if letter is None or letter.name not in waiting:
            continue
        message = letter.message or Message({"reason": letter.reason}, {})
        header = message.header
        try:
            if header.get("kind") != "hello":
                raise InputError(message.words("reason", "did not introduce itself"))
            summary: Any = header.get("summary")
            summaries[letter.name] = Summary.from_dict(summary)
            rows[letter.name] = _count(header.get("rows"))
            merge(summaries.values())
        except InputError as error:
            summaries.pop(letter.name, None)
            rows.pop(letter.name, None)
            ledger.note(letter.name, "unfit", str(error))
            asked[letter.name] = link.now() + 10.0
            continue
        waiting.discard(letter.name)
        ledger.note(letter.name, "joined", f"{rows[letter.name]} rows")
    if not rows:
        raise InputError("No client has joined in time: start clients, and the server again.")
    order = [name for name in federation.clients if name in rows]
    agreed = encoding(merge(summaries[name] for name in order))
    found = {"rows": {name: rows[name] for name in order}, "encoding": agreed.to_dict()}
    ledger.say("roster", found)
    return found


def write_result(folder: Path, result: Result, names: tuple[str, ...]) -> None:
    """The posterior, a table of it, and the history, beside the ledger."""
    result.posterior.save(folder / "posterior.npz", names)
    rows = result.posterior.summary(names)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(folder / "summary.csv", text.getvalue())
    ended = {"status": result.status.value, "message": result.message}
    atomic.write_text(folder / "result.json", json.dumps({**ended, "history": result.history.rows}, indent=2))


def _count(rows: Any) -> int:
    if type(rows) is not int or rows < 1:
        raise InputError(f"has {rows!r} rows")
    return rows
