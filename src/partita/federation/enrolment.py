"""Enrolment: clients introduce themselves, and agree in stages on how rows become numbers; some come later."""

import hashlib
import json
import logging
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from partita.engines.remote import Delivery, Transport
from partita.errors import FederationError, InputError
from partita.federation.beginning import beginning
from partita.federation.config import Federation
from partita.federation.scheme import Answer, Scheme
from partita.io.wire import Message, sanitise
from partita.storage.ledger import Ledger

__all__ = ["Attended", "Enrolment"]

_LOG = logging.getLogger("partita")
_ROSTER = "roster"
RETRY_SECONDS, RETRY_INCOMPATIBLE_SECONDS = 60.0, 10.0
"""Seconds until a client that has not answered, or is incompatible, is invited again."""
_LOOK = 10.0
"""Seconds between two polls for newcomers during a run."""
_UNFIT, _GONE = "incompatible", "gone"
"""The ledger's events of a client that stays out."""
_SAID = {_UNFIT: "does not fit: ", _GONE: ""}
"""How a sentence about that client goes on, before the reason."""
_FAR = 10.0
"""Sds from the medians of all beyond which a warning names the client, which is not refused for it."""
_MOST_ROWS = 2**53
"""The largest number of rows: exact as integer and as float."""
_LEFT = "did not answer while clients agreed on the design, so that the others went on without it"


class _Doubt(NamedTuple):
    """A stage of round 0 in which a client's sums were refused."""

    agreed: dict[str, Any]
    """What was agreed on before."""
    others: dict[str, Answer]
    """The answers of the others, with which the client's are compared; empty if its own could not be by themselves."""


class Enrolment:
    """Enrols clients that fit, and keeps what they have agreed on, stage by stage.

    Every message of round 0 carries what was agreed on so far, and its answer names the message: one that was lost is
    sent again, and answers that come twice, or to an earlier stage, change nothing. A stage is stored when it ends, so
    that a server that was killed goes on with the same clients and asks this stage again. If a client does not answer
    a later stage in time, or does not fit, the others begin again with their first answers, as if it had not come.
    """

    def __init__(self, federation: Federation, link: Transport, ledger: Ledger) -> None:
        self.federation, self.link, self.ledger = federation, link, ledger
        found = ledger.said(_ROSTER) or {}
        if found.get("digest", federation.digest) != federation.digest:
            raise FederationError(
                "federation.toml has changed since this run started (formula, columns, model, method, solver, prior or "
                "seed): restore it, or start a new run in another folder."
            )
        self.rows: dict[str, int] = found.get("rows", {})
        """The number of rows of each enrolled client."""
        self.incomplete: dict[str, int] = found.get("incomplete", {})
        """How many rows each of them left out since a value is missing."""
        self.imputed: dict[str, dict[str, int]] = found.get("imputed", {})
        """The numbers that are missing at each enrolled client, by column."""
        self.scheme: Scheme = beginning(federation).restored(found.get("agreed") or {})
        """What was agreed on so far."""
        self._first: dict[str, Answer] = found.get("first", {})
        """The enrolled clients' answers to the first stage, once it has ended."""
        self._answers: dict[str, Answer] = {}
        """Answers to the present stage."""
        self._doubted: dict[str, _Doubt] = {name: _Doubt(**doubt) for name, doubt in found.get("doubted", {}).items()}
        """Clients whose sums were refused; they are asked for the same sums again before they may enrol."""
        self._ask: dict[str, float] = {}
        """When each client may be invited again."""
        self._why: dict[str, tuple[str, str]] = {}
        """Event and reason of the last refusal of each client that has not answered well since."""
        self.unfit: dict[str, str] = {}
        """Why clients could not enrol, as the rest of a sentence about each."""

    @property
    def summed(self) -> Collection[str]:
        """The clients from whose answers the scheme follows."""
        return self._first.keys()

    def assemble(self) -> Scheme:
        """Waits for all clients, up to the configured timeout a stage, until the scheme is complete."""
        while not self.scheme.complete:
            until = self.link.now() + self.federation.run.assemble
            while self._awaited() and self.link.now() < until:
                self.greet()
                letter = self.link.poll(min(1.0, max(until - self.link.now(), 0.0)))
                if letter is not None:
                    self.welcome(letter)
            self._end_stage()
        return self.scheme

    def greet(self) -> None:
        """Asks online clients that are awaited for their next answer."""
        for name in set(self._awaited()) & set(self.link.present()):
            if self.link.now() >= self._ask.get(name, -np.inf):
                about = {"kind": "hello", "task": self._task(name), "digest": self.federation.digest}
                self.link.post(name, Message({**about, "agreed": self._agreed_with(name)}, {}))
                self._ask[name] = self.link.now() + RETRY_SECONDS

    def welcome(self, letter: Delivery) -> None:
        """Takes a client's answer if it fits; otherwise logs the reason and notifies the client."""
        name, message = letter.name, letter.message or Message({"reason": letter.reason}, {})
        strange = letter.message is not None and message.words("task", "") != self._task(name)
        if name not in self._awaited() or message.header.get("kind") == "ack" or strange:
            return
        hello = message.header.get("kind") == "hello"
        try:
            if not hello:
                raise FederationError(message.words("reason", "did not introduce itself"))
            answer: Any = message.header.get("answer")
            counts: list[Any] = [message.header.get(key) for key in ("rows", "incomplete")]
            for what, count, least in zip(("rows", "incomplete rows"), counts, (1, 0), strict=True):
                if type(count) is not int or not least <= count <= _MOST_ROWS:
                    raise FederationError(f"has {count!r:.30} {what}")
            if name in self._doubted:
                return self._settle(name, answer, counts[0])
            self.scheme.check(answer, counts[0])
            if name in self.rows and [self.rows[name], self.incomplete[name]] != counts:
                raise FederationError("has other rows than when it introduced itself")
        except InputError as error:
            if hello and name not in self._doubted and not self.scheme.complete:
                self._doubted[name] = _Doubt(self.scheme.to_dict(), {})
            return self._refuse(name, _UNFIT, str(error))
        self._answers[name] = answer
        self._ask.pop(name, None)
        self._why.pop(name, None)
        if name not in self.rows:
            self.rows[name], self.incomplete[name] = counts
            self.imputed[name] = {}
            self.ledger.note(name, "joined", f"{counts[0]} rows")
        self.imputed[name] |= self.scheme.imputed(answer, counts[0])
        self.unfit.pop(name, None)
        if self.scheme.complete:
            self._keep()

    def _settle(self, name: str, answer: Answer, rows: int) -> None:
        """Takes the sums of a client whose earlier ones were refused, if they are better; then it may enrol."""
        agreed, others = self._doubted[name]
        scheme = beginning(self.federation).restored(agreed)
        scheme.check(answer, rows)
        reason = scheme.misfits({**others, name: answer}).get(name)
        if reason is not None:
            raise FederationError(reason)
        del self._doubted[name], self._ask[name]
        self._keep()

    def _agreed_with(self, name: str) -> dict[str, Any]:
        """What was agreed on so far, as it is sent to a client."""
        return self._doubted[name].agreed if name in self._doubted else self.scheme.to_dict()

    def _awaited(self) -> list[str]:
        """The clients whose answer to the present stage, or whose introduction, is missing."""
        if self.scheme.complete:
            return [name for name in self.federation.clients if name not in self.rows]
        return [name for name in self._first or self.federation.clients if name not in self._answers]

    def _task(self, name: str) -> str:
        """The name of the message to a client in the present stage."""
        agreed = json.dumps(self._agreed_with(name), sort_keys=True)
        return f"hello.{hashlib.sha256(agreed.encode()).hexdigest()[:16]}.{name}"

    def _end_stage(self) -> None:
        """All have answered, or their time is over: the next stage, or a new beginning where somebody is lost."""
        begun = bool(self._first)
        unfit = self.scheme.misfits(self._answers)
        others = {name: answer for name, answer in self._answers.items() if name not in unfit}
        if not self.federation.admission.moments:
            for name, reason in self.scheme.outlying(others, _FAR).items():
                _LOG.warning("%s %s; it takes part, since admission.moments is 0: look at its units.", name, reason)
        for name, reason in unfit.items():
            self._doubted[name] = _Doubt(self.scheme.to_dict(), others)
            self._lose(name, _UNFIT, reason)
        gone = self._awaited() if begun else []
        for name in gone:
            self._lose(name, *self._why.get(name, (_GONE, _LEFT)))
        if not (self._first or self._answers):
            why = "".join(f" {name} {reason}" for name, reason in sorted(self.unfit.items()))
            start = "Every client left in round 0" if begun else "No client enrolled in time"
            raise FederationError(f"{start}: start the clients, then the server again.{why}")
        if begun and not (unfit or gone):
            return self._agree(self.scheme.taken([self._answers[name] for name in self._first]))
        if not begun:
            self.rows = {name: self.rows[name] for name in self.federation.clients if name in self._answers}
            self._first = {name: self._answers[name] for name in self.rows}
        self._agree(beginning(self.federation).taken(list(self._first.values())))

    def _agree(self, scheme: Scheme) -> None:
        self.scheme, self._answers = scheme, {}
        self._keep()

    def _lose(self, name: str, event: str, reason: str) -> None:
        """Takes a client out of round 0; it may come again later."""
        for known in (self.rows, self.incomplete, self.imputed, self._answers, self._first):
            known.pop(name, None)
        self._refuse(name, event, reason)

    def _refuse(self, name: str, event: str, reason: str) -> None:
        """Logs why a client stays out and notifies it, once; later it is invited again."""
        reason = sanitise(reason)
        said = _SAID[event] + reason
        self._why[name] = event, reason
        if self.unfit.get(name) != said:
            self.ledger.note(name, event, reason)
            self.link.post(name, Message({"kind": "refused", "reason": said}, {}))
        self.unfit[name], self._ask[name] = said, self.link.now() + RETRY_INCOMPATIBLE_SECONDS

    def _keep(self) -> None:
        known = {"rows": self.rows, "incomplete": self.incomplete, "imputed": self.imputed, "first": self._first}
        known["doubted"] = {name: doubt._asdict() for name, doubt in self._doubted.items()}
        agreed = {"agreed": self.scheme.to_dict(), "complete": self.scheme.complete, "digest": self.federation.digest}
        self.ledger.say(_ROSTER, known | agreed)


class Attended(Transport):
    """The link used during a run: adds the design to tasks, so that clients are stateless, and enrols newcomers."""

    def __init__(self, reception: Enrolment, newcomers: bool) -> None:
        self.reception, self.link, self.newcomers = reception, reception.link, newcomers
        self._agreed = {"agreed": reception.assemble().to_dict(), "digest": reception.federation.digest}

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
