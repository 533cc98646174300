"""What a client has agreed to, and has answered, in a run: it refuses a server that asks for more."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from partita.engines.endpoint import ELL, ESTIMATE
from partita.errors import DamagedFileError, FederationError, InputError
from partita.federation.config import Federation
from partita.io import atomic
from partita.io.settings import build
from partita.io.wire import Message, pack

__all__ = ["Guard", "agreed_visits"]

_PRIVATE = 0o600
_AGAIN = 2
"""How many visits a client answers for each round of a run, since failed ones are repeated."""
_SENT = 3
"""How many times a client sends sums of a stage of round 0, since their differences tell of fewer rows than they do."""
_QUESTIONS = 20
"""How many questions about expected log-likelihoods it answers for each of these visits."""
_TIGHTER = 1000.0
"""How many times as precise a posterior may be as the client's own factor, for its share of all rows."""
_LEAST_SHARE = 1e-5
_REMEMBERED = 500
"""How many messages are remembered, so that a repeated one is not counted twice."""
_ANEW = "for a new run its owner starts it once with --anew"


@dataclasses.dataclass(frozen=True)
class _Answered:
    """What a client has answered in a run."""

    encoding: str = ""
    """The digest of the encoding that was first accepted."""
    stages: tuple[str, ...] = ()
    """Each stage whose sums were sent: how many stages were left, and the digest of what was agreed on."""
    visits: int = 0
    questions: int = 0
    share: float = 0.0
    """The share of all rows that the server first said is the client's."""
    precision: float = 0.0
    """The largest ratio of the precision of its own factor with the prior to that of the prior, or its rows."""
    messages: tuple[str, ...] = ()
    """The digests of the last messages that were answered."""


class Guard:
    """Checks every message before it is answered and every answer before it leaves; keeps an account in a file."""

    def __init__(
        self, federation: Federation, path: Path | None = None, visits: int | None = None, anew: bool = False
    ) -> None:
        self.path = path
        self.visits = agreed_visits(federation) if visits is None else visits
        self._times = min(len(federation.clients), _SENT)
        """How often sums of a stage are sent: whenever round 0 begins again, a client has been lost."""
        self.answered = _Answered()
        if path is not None and anew:
            path.unlink(missing_ok=True)
        elif path is not None:
            self.answered = _read(path)

    def check(self, message: Message, left: Callable[[Message], int]) -> None:
        """Raises an `InputError` where a message asks for more than was agreed to.

        Args:
            message: What is asked.
            left: How many stages of round 0 are left by a message.

        """
        known, agreed, kind = self.answered, message.header.get("agreed", {}), message.header.get("kind")
        if kind == "hello":
            stage = _stage(message, left(message))
            if stage in known.stages or _digest(agreed) == known.encoding:
                return
            if known.encoding:
                raise _refused(f"has agreed on an encoding already, and sends no other sums; {_ANEW}")
            if sum(sent.partition(".")[0] == stage.partition(".")[0] for sent in known.stages) >= self._times:
                raise _refused(f"has sent these sums {self._times} times, and does not send them again; {_ANEW}")
            return
        if known.encoding not in ("", _digest(agreed)):
            raise _refused(f"has accepted another encoding, and refuses a second; {_ANEW}")
        if _digest_of(message) in known.messages:
            return
        if kind == "update" and known.visits >= self.visits:
            raise _refused(f"has answered {known.visits} tasks, as many as were agreed on; its owner may allow more")
        if kind in (ELL, ESTIMATE) and known.questions >= _QUESTIONS * self.visits:
            raise _refused(f"has answered {known.questions} questions, as many as its visits allow")

    def record(self, message: Message, left: int) -> None:
        """Records sums of round 0 before they leave."""
        known, stage = self.answered, _stage(message, left)
        if stage not in known.stages and _digest(message.header.get("agreed", {})) != known.encoding:
            self._keep(dataclasses.replace(known, stages=(*known.stages, stage)))

    def release(self, message: Message, precision: float, own: float) -> None:
        """Records an answer before it leaves; an `InputError` where it must not.

        Args:
            message: What is answered.
            precision: The largest ratio of the precision of the posterior that was sent to that of the prior.
            own: The same of the client's own factor with the prior, as it has just been found; at least its rows.

        """
        known, kind, agreed = self.answered, message.header.get("kind"), _digest(message.header.get("agreed", {}))
        claimed = message.header.get("share")
        share = known.share or (float(claimed) if isinstance(claimed, int | float) and 0 < claimed <= 1 else 0.0)
        largest = max(known.precision, own)
        if largest and precision > _TIGHTER * largest / max(share, _LEAST_SHARE):
            raise _refused("was sent a posterior much tighter than this run's can be, and does not answer at it")
        digest = _digest_of(message)
        new = digest not in known.messages
        self._keep(
            dataclasses.replace(
                known,
                encoding=known.encoding or agreed,
                visits=known.visits + (new and kind == "update"),
                questions=known.questions + (new and kind in (ELL, ESTIMATE)),
                share=share,
                precision=largest,
                messages=(*known.messages, digest)[-_REMEMBERED:] if new else known.messages,
            )
        )

    def _keep(self, answered: _Answered) -> None:
        if answered != self.answered and self.path is not None:
            atomic.write_text(self.path, json.dumps(dataclasses.asdict(answered)), _PRIVATE)
        self.answered = answered


def agreed_visits(federation: Federation) -> int:
    """How many tasks a client answers in a run: twice the rounds, and where clients do not wait those of all."""
    together = len(federation.clients) if federation.method["name"] == "asynchronous" else 1
    return math.ceil(_AGAIN * federation.run.rounds * together)


def _read(path: Path) -> _Answered:
    if not path.exists():
        return _Answered()
    try:
        return build(_Answered, json.loads(path.read_bytes()), str(path))
    except (ValueError, TypeError, AttributeError, RecursionError, InputError):
        raise DamagedFileError(
            f"{path}, which counts what this client has answered, is damaged: begin a new run with --anew."
        ) from None


def _refused(reason: str) -> FederationError:
    return FederationError(f"The client {reason}.", f"The client {reason}.")


def _digest(agreed: Any) -> str:
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:32]


def _stage(message: Message, left: int) -> str:
    """A stage of round 0: how many are left, and what was agreed on."""
    return f"{left}.{_digest(message.header.get('agreed', {}))}"


def _digest_of(message: Message) -> str:
    return hashlib.sha256(pack(message)).hexdigest()[:32]
