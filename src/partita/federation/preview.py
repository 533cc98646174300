"""What a client would send, before anything leaves: a run with it alone, in this process."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from partita.errors import InputError
from partita.federation.client import Client
from partita.federation.config import Federation
from partita.federation.guard import agreed_visits
from partita.federation.loop import Loop
from partita.federation.sent import in_words
from partita.federation.serve import serve
from partita.io.wire import Message

__all__ = ["preview"]


class _Shown:
    """A client's end that keeps the words for what it answers, each once."""

    def __init__(self, client: Client) -> None:
        self.client, self.words, self.numbers = client, list[str](), 0

    def handle(self, message: Message) -> Message:
        answer = self.client.handle(message)
        words = in_words(answer)
        if words not in self.words:
            self.words.append(words)
        self.numbers = max(self.numbers, sum(array.size for array in answer.arrays.values()))
        return answer


def preview(federation: Federation, client: Client, visits: int | None) -> Iterator[str]:
    """Lines about what the client would send to the server if it were alone; nothing leaves.

    What others send changes which levels and knots there are, and so the sizes of later messages.
    """
    shown, limits = _Shown(client), client.limits
    run = dataclasses.replace(federation.run, rounds=1.0, assemble=1.0)
    alone = dataclasses.replace(federation, clients=(client.name,), run=run)
    yield f"{client.name} would send of {client.path.name} to {federation.server.address}, if it were alone:"
    rest = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            serve(Path(folder), alone, Loop({client.name: shown}))
    except InputError as error:
        rest = [f"- What follows depends on the other clients: alone, {error}"]
    yield from (f"- {words}" for words in shown.words)
    yield from rest
    least = f"of at least {limits.rows} rows (--least-rows), in cells of at least {limits.cell} (--least-cell)"
    yield f"It sends sums {least}."
    most = agreed_visits(federation) if visits is None else visits
    numbers = f", with {most * shown.numbers:,} numbers about {client.rows:,} rows" if shown.numbers else ""
    yield f"It answers {most} tasks at most{numbers} (--visits). Nothing has left, and no row ever does."
