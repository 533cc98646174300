"""A client's end of a mailbox: it watches its folder, or answers one letter that was brought by hand."""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from partita.engines.remote import LARGEST
from partita.errors import DamagedFileError, FederationError, InputError
from partita.federation.link import Letter, Link, UnreachableError
from partita.federation.mailbox.envelope import Correspondent, largest
from partita.federation.mailbox.office import ANSWERS, BEAT, TASKS
from partita.federation.mailbox.shared import Found, Shared
from partita.io import atomic
from partita.io.wire import Message, pack, unpack

__all__ = ["MailboxLink", "Reader", "answer_by_hand"]

T = TypeVar("T")
_BEAT = 5.0
"""Seconds between two signs of life."""
_AGAIN = 15.0
"""Seconds after which an answer that is gone, while its letter is still there, is written again."""
_SHORTEST, _LONGEST = 0.01, 0.1
"""Seconds between two looks for letters: at first, and after a while without any."""
_BAD = 1000
"""How many files that are no letters are remembered."""


class Reader:
    """Reads letters of the run that a client was first asked in; a file keeps which that is."""

    def __init__(self, who: Correspondent, pinned: Path) -> None:
        self.who, self.pinned = who, pinned

    def opened(self, data: bytes, name: str) -> Letter:
        """The message in a file of this name; a `DamagedFileError` for anything else."""
        about, content = self.who.opened(data)
        id, run = about.get("letter"), about.get("run")
        if not isinstance(run, str) or name != f"{id}.letter":
            raise DamagedFileError("This letter has another's name.")
        if self._run not in ("", run):
            raise DamagedFileError("This letter is of another run: for a new one start the client once with --anew.")
        message = unpack(content)
        if not self._run:
            atomic.write_text(self.pinned, json.dumps({"run": run}), 0o600)
        return Letter(str(id), message)

    def sealed(self, letter: Letter, answer: Message) -> bytes:
        """The answer to a letter, for the server."""
        return self.who.sealed({"run": self._run, "letter": letter.identity}, pack(answer))

    @property
    def _run(self) -> str:
        try:
            return str(json.loads(self.pinned.read_bytes())["run"]) if self.pinned.exists() else ""
        except (ValueError, TypeError, KeyError):
            raise FederationError(f"{self.pinned} is damaged: start the client once with --anew.") from None


class MailboxLink(Link):
    """Watches the folder of letters to this client, and says that it does by a sign of life."""

    def __init__(self, shared: Shared, reader: Reader) -> None:
        self.shared, self.reader, self.name = shared, reader, reader.who.name
        self._answered: dict[str, float] = {}
        """When each letter was answered."""
        self._bad: list[Found] = []
        self._beaten = -_BEAT

    def connect(self) -> None:
        self._beaten = -_BEAT
        _reached(self._beat)

    def pull(self, timeout: float) -> Letter | None:
        until, pause = time.monotonic() + timeout, _SHORTEST
        while True:
            _reached(self._beat)
            found = _reached(self._look)
            if found is not None or time.monotonic() >= until:
                return found
            time.sleep(min(pause, max(until - time.monotonic(), 0.0)))
            pause = min(1.2 * pause, _LONGEST)

    def push(self, letter: Letter, answer: Message) -> None:
        sealed = self.reader.sealed(letter, answer)
        _reached(lambda: self.shared.write((ANSWERS, self.name), f"{letter.identity}.letter", sealed))
        self._answered[letter.identity] = time.monotonic()

    def close(self) -> None:
        try:
            self.shared.remove((ANSWERS, self.name), BEAT)
        except InputError:
            return

    def _look(self) -> Letter | None:
        """The oldest letter that has no answer."""
        for found in self.shared.letters((TASKS, self.name)):
            answered = self._answered.get(found.name.removesuffix(".letter"), -_AGAIN)
            if found in self._bad or time.monotonic() < answered + _AGAIN:
                continue
            if self.shared.exists((ANSWERS, self.name), found.name):
                continue
            try:
                data = self.shared.read((TASKS, self.name), found.name, largest(LARGEST), self.reader.who.check)
                if data is not None:
                    return self.reader.opened(data, found.name)
            except DamagedFileError:
                self._bad = [*self._bad, found][-_BAD:]  # until it is written again: it may have come in pieces
        return None

    def _beat(self) -> None:
        if time.monotonic() >= self._beaten + _BEAT:
            letter = self.reader.who.sealed({"beat": secrets.token_hex(8)}, b"")
            self.shared.write((ANSWERS, self.name), BEAT, letter)
            self._beaten = time.monotonic()


def answer_by_hand(reader: Reader, handle: Callable[[Message], Message], letter: Path, folder: Path) -> Path:
    """Answers the letter in a file; the file of the answer, in a folder, which has the same name."""
    target = folder / letter.name
    if target.exists():
        raise FederationError(f"{target} is there already: name another folder for the answer.")
    data = Shared(letter.absolute().parent).read((), letter.name, largest(LARGEST), reader.who.check)
    if data is None:
        raise FederationError(f"There is no letter {letter}: name the file that was brought from the server.")
    found = reader.opened(data, letter.name)
    atomic.write_bytes(target, reader.sealed(found, handle(found.message)))
    return target


def _reached(action: Callable[[], T]) -> T:
    """Does something with the folder; a client goes on trying where it cannot be used."""
    try:
        return action()
    except DamagedFileError:
        raise
    except FederationError as error:
        raise UnreachableError(str(error)) from None
