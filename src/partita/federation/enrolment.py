"""Enrolment: clients introduce themselves before the first round, or later."""

from typing import Any

import numpy as np

from partita.data.labels import Labels, agreed
from partita.data.preprocess import Encoding, Summary, encoding, merge
from partita.engines.remote import Delivery, Transport
from partita.errors import FederationError, InputError
from partita.federation.config import Federation
from partita.io.wire import Message
from partita.storage.ledger import Ledger

__all__ = ["Attended", "Enrolment"]

_ROSTER = "roster"
RETRY_SECONDS, RETRY_INCOMPATIBLE_SECONDS = 60.0, 10.0
"""Seconds until a client that has not answered, or is incompatible, is invited again."""
_LOOK = 10.0
"""Seconds between two polls for newcomers during a run."""


class Enrolment:
    """Enrols clients whose columns are compatible, and stores the encoding agreed on by the first ones."""

    def __init__(self, federation: Federation, link: Transport, ledger: Ledger) -> None:
        self.federation, self.link, self.ledger = federation, link, ledger
        found = ledger.said(_ROSTER) or {"rows": {}, "encoding": None}
        if found.get("digest", federation.digest) != federation.digest:
            raise FederationError(
                "federation.toml has changed since this run started (columns, model, method, solver, prior or seed): "
                "restore it, or start a new run in another folder."
            )
        self.rows: dict[str, int] = found["rows"]
        """The number of rows of each enrolled client."""
        self.imputed: dict[str, dict[str, int]] = found.get("imputed", {})
        """The numbers that are missing at each enrolled client, by column."""
        self.encoding = None if found["encoding"] is None else Encoding.from_dict(found["encoding"])
        self._summaries: dict[str, Summary] = {}
        self._ask: dict[str, float] = {}
        """When each client may be invited again."""
        self.unfit: dict[str, str] = {}
        """Why clients could not enrol."""

    def assemble(self) -> Encoding:
        """Waits for all clients, up to the configured timeout, and fixes the encoding, which is then stored."""
        if self.encoding is None:
            until = self.link.now() + self.federation.run.assemble
            while len(self.rows) < len(self.federation.clients) and self.link.now() < until:
                self.greet()
                letter = self.link.poll(min(1.0, max(until - self.link.now(), 0.0)))
                if letter is not None:
                    self.welcome(letter)
            if not self.rows:
                why = "".join(f" {name} does not fit: {reason}" for name, reason in sorted(self.unfit.items()))
                raise FederationError(f"No client enrolled in time: start the clients, then the server again.{why}")
            self.rows = {name: self.rows[name] for name in self.federation.clients if name in self.rows}
            self._settle_labels()
            self.encoding = encoding(merge(self._summaries[name] for name in self.rows))
            self._keep()
        return self.encoding

    def greet(self) -> None:
        """Invites online clients that are not enrolled to introduce themselves."""
        for name in set(self.federation.clients) & set(self.link.present()) - set(self.rows):
            if self.link.now() >= self._ask.get(name, -np.inf):
                about = {"kind": "hello", "task": f"hello.{name}", "digest": self.federation.digest}
                self.link.post(name, Message(about, {}))
                self._ask[name] = self.link.now() + RETRY_SECONDS

    def welcome(self, letter: Delivery) -> None:
        """Enrols a client if its columns are compatible; otherwise logs the reason and tells the client."""
        name, message = letter.name, letter.message or Message({"reason": letter.reason}, {})
        if name in self.rows or message.header.get("kind") == "ack":
            return
        try:
            if message.header.get("kind") != "hello":
                raise FederationError(message.words("reason", "did not introduce itself"))
            contents: Any = message.header.get("summary")
            summary, rows = Summary.from_dict(contents), message.header.get("rows")
            if type(rows) is not int or rows < 1:
                raise FederationError(f"has {rows!r} rows")
            self._expected(summary)
            if self.encoding is not None:
                self.encoding.check(summary)
        except InputError as error:
            return self._refuse(name, str(error))
        self._summaries[name], self.rows[name] = summary, rows
        missing = {column: about.missing(rows) for column, about in summary.columns.items()}
        self.imputed[name] = {column: count for column, count in missing.items() if count}
        self.unfit.pop(name, None)
        self.ledger.note(name, "joined", f"{rows} rows")
        if self.encoding is not None:
            self._keep()

    def _refuse(self, name: str, reason: str) -> None:
        """Logs why a client does not fit and tells it, once; later it is invited again."""
        if self.unfit.get(name) != reason:
            self.ledger.note(name, "incompatible", reason)
            self.link.post(name, Message({"kind": "refused", "reason": f"does not fit: {reason}"}, {}))
        self.unfit[name], self._ask[name] = reason, self.link.now() + RETRY_INCOMPATIBLE_SECONDS

    def _settle_labels(self) -> None:
        """Where no label is declared to count as 0, that of most clients does; those with another one do not fit."""
        own = {name: labels for name in self.rows if (labels := self._summaries[name].labels) is not None}
        found = [labels for labels in own.values() if labels.zeros]
        for name, labels in own.items() if found else ():
            try:
                agreed([max(found, key=found.count), labels])
            except InputError as error:
                del self.rows[name], self.imputed[name], self._summaries[name]
                self._refuse(name, str(error))

    def _expected(self, summary: Summary) -> None:
        """Raises an `InputError` if a summary does not match the federation's columns."""
        expected = self.federation.data.columns
        if list(summary.columns) != list(expected):
            raise FederationError("Its columns are not those of federation.toml.")
        for name, (kind, levels) in expected.items():
            if type(summary.columns[name]) is not kind:
                raise FederationError(f"Column {name!r} has another type than in federation.toml.")
            if not summary.columns[name].declares(levels):
                raise FederationError(f"Column {name!r} has other levels than in federation.toml.")
        data, labels = self.federation.data, summary.labels
        declared = Labels(data.positive, data.negative) if data.positive else None
        if declared is not None and not declared.zeros and labels is not None:
            declared = Labels(declared.ones, labels.zeros[:1])
        if labels != declared:
            raise FederationError(f"The response {data.response!r} has other labels than in federation.toml.")

    def _keep(self) -> None:
        assert self.encoding is not None
        agreed = {"encoding": self.encoding.to_dict(), "digest": self.federation.digest}
        self.ledger.say(_ROSTER, {"rows": self.rows, "imputed": self.imputed, **agreed})


class Attended(Transport):
    """The link used during a run: adds the encoding to tasks, so that clients are stateless, and enrols newcomers."""

    def __init__(self, reception: Enrolment, newcomers: bool) -> None:
        self.reception, self.link, self.newcomers = reception, reception.link, newcomers
        self._agreed = {"encoding": reception.assemble().to_dict(), "digest": reception.federation.digest}

    def post(self, name: str, message: Message) -> None:
        self.link.post(name, Message(message.header | self._agreed, message.arrays))

    def poll(self, timeout: float) -> Delivery | None:
        if self.newcomers:
            self.reception.greet()
        letter = self.link.poll(min(timeout, _LOOK))
        if letter is None or letter.name in self.reception.rows:
            return letter
        self.reception.welcome(letter)
        return None

    def present(self) -> list[str]:
        return [name for name in self.link.present() if name in self.reception.rows]

    def now(self) -> float:
        return self.link.now()
