"""The server of a federation, for any link: enrols clients, runs the method, and writes the result."""

import json
from collections.abc import Sequence
from pathlib import Path

from partita.data.preprocess import Encoding
from partita.engines.remote import RemoteEngine, Transport
from partita.expectations.capabilities import Template
from partita.federation.config import Federation
from partita.federation.enrolment import Attended, Enrolment
from partita.io import atomic
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.run import Result, run
from partita.storage.ledger import Ledger

__all__ = ["LEDGER_FILE", "SERVER_LOCK", "serve"]

LEDGER_FILE = "ledger.sqlite"
SERVER_LOCK = ".serving"
"""The server's lock file."""


def serve(folder: Path, federation: Federation, link: Transport) -> Result:
    """Runs the federation in a folder to the end, resuming it if it was interrupted."""
    ledger = Ledger(folder / LEDGER_FILE)
    began = link.now()
    reception = Enrolment(federation, link, ledger)
    agreed = reception.assemble()
    model = federation.built_model(len(agreed.names))
    prior = federation.built_prior(model, len(agreed.names))
    method = federation.built_method(model)
    about = federation.run
    bounds = federation.built_admission()
    rules = Rules(deadline=about.deadline, quorum=about.quorum, until=began + about.timeout, admission=bounds)
    engine = RemoteEngine(Attended(reception, method.aggregation.keeps_product), reception.rows, ledger)
    result = run(
        method,
        model,
        prior,
        engine=engine,
        store=ledger,
        requests=ledger,
        rules=rules,
        rounds=about.rounds,
        tolerance=about.tolerance,
        seed=federation.seed,
        monitor=Monitor(every=0, progress=False),
    )
    _write_result(folder, result, agreed, None if isinstance(model, Template) else agreed.names)
    ledger.say("ended", {"status": result.status.value, "message": result.message})
    return result


def _write_result(folder: Path, result: Result, agreed: Encoding, names: Sequence[str] | None) -> None:
    """Writes the posterior, its summary, and the history with the encoding to the federation's folder."""
    result.posterior.save(folder / "posterior.npz", names)
    atomic.write_csv(folder / "summary.csv", result.posterior.summary(names))
    about = {
        "status": result.status.value,
        "message": result.message,
        "encoding": agreed.to_dict(),
        "history": result.history.rows,
    }
    atomic.write_text(folder / "result.json", json.dumps(about, indent=2))
