"""The server of a federation, for any link: enrols clients, runs the method, and writes the result."""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.engines.remote import RemoteEngine, Transport
from partita.federation.attendance import Attendance, attendance, remarks, sizes
from partita.federation.config import CONFIG_FILE, Federation
from partita.federation.enrolment import Attended, Enrolment
from partita.federation.scheme import Scheme
from partita.io import atomic
from partita.io.wire import Message
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.run import Result, run
from partita.storage.ledger import Ledger

__all__ = ["LEDGER_FILE", "SERVER_LOCK", "serve"]

LEDGER_FILE = "ledger.sqlite"
SERVER_LOCK = ".serving"
"""The server's lock file."""
_FINISHED = "finished"


def serve(folder: Path, federation: Federation, link: Transport) -> Result:
    """Runs the federation in a folder to the end, resuming it if it was interrupted.

    A run that has finished, and for which nothing is left to do, asks nobody: its stored result says so.
    """
    ledger = Ledger(folder / LEDGER_FILE)
    began = link.now()
    reception = Enrolment(federation, link, ledger)
    scheme = reception.assemble()
    for name in reception.rows:
        about_it = {"kind": "agreed", "task": f"agreed.{name}", "digest": federation.digest}
        link.tell(name, Message(about_it | {"agreed": scheme.to_dict()}, {}))
    method = scheme.method()
    about = federation.run
    bounds = federation.built_admission()
    rules = Rules(deadline=about.deadline, quorum=about.quorum, until=began + about.timeout, admission=bounds)
    engine = RemoteEngine(Attended(reception, method.aggregation.keeps_product), reception.rows, ledger)
    result = run(
        method,
        scheme.model(),
        scheme.prior(),
        engine=engine,
        store=ledger,
        requests=ledger,
        rules=rules,
        rounds=about.rounds,
        tolerance=about.tolerance,
        seed=federation.seed,
        monitor=Monitor(every=0, progress=False),
    )
    earlier, ending = ledger.said(_FINISHED), {"status": result.status.value, "steps": len(result.history)}
    if earlier is not None and earlier["ending"] == ending:
        result = dataclasses.replace(result, message=_stored(folder, earlier))
    else:
        members = attendance(reception, result)
        said = [result.message, *remarks(members), *scheme.remarks(result, sizes(members))]
        result = dataclasses.replace(result, message=" ".join(filter(None, said)))
        _write_result(folder, result, members, scheme)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d at %H:%M UTC")
        ledger.say(_FINISHED, {"ending": ending, "time": now, "message": result.message})
    ledger.say("ended", {"status": result.status.value, "message": result.message})
    return result


def _stored(folder: Path, earlier: Mapping[str, Any]) -> str:
    """What is said of a run that had finished before."""
    return (
        f"This run finished on {earlier['time']}, and no client was asked again. Its stored result: "
        f"{earlier['message']} See it with `partita result {folder}`; to go on, allow more rounds or a smaller "
        f"tolerance in {folder / CONFIG_FILE} and use `partita resume {folder}`; for a new run, make another folder."
    )


def _write_result(folder: Path, result: Result, members: Sequence[Attendance], scheme: Scheme) -> None:
    """Writes the posterior, its summary, and the history with what was agreed on to the federation's folder."""
    result.posterior.save(folder / "posterior.npz", scheme.names)
    atomic.write_csv(folder / "summary.csv", scheme.summary(result, sizes(members)))
    about = {
        "status": result.status.value,
        "message": result.message,
        "clients": [dataclasses.asdict(member) for member in members],
        "agreed": scheme.to_dict(),
        "history": list(result.history.rows),
    }
    atomic.write_text(folder / "result.json", json.dumps(about, indent=2))
