"""`partita rehearse`: a federation in one process, from the clients' files."""

import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from partita.cli.beginning import begin
from partita.errors import FederationError, unknown
from partita.federation import config
from partita.federation.client import Client
from partita.federation.loop import Loop, Sent
from partita.federation.result import account, shown, summary
from partita.federation.serve import serve
from partita.io import atomic
from partita.server.run import Result

__all__ = ["run_rehearsal"]

_STAGES = "hello"
"""The kind of the messages of round 0."""


def run_rehearsal(folder: Path, pairs: Sequence[str], as_json: bool, output: Path | None) -> None:
    """Runs all of a federation but the network, prints what a real run would, and keeps its folder if asked to."""
    if output is not None and output.exists():
        raise FederationError(f"{output} already exists: choose another folder for the rehearsed run.")
    begin()
    federation = config.load(folder)
    files = _files(pairs, federation.clients)
    clients = {name: Client(name, federation, path) for name, path in files.items()}
    for client in clients.values():
        client.check()
    link = Loop(clients)
    with contextlib.ExitStack() as stack:
        there = output or Path(stack.enter_context(tempfile.TemporaryDirectory())) / folder.resolve().name
        atomic.write_text(there / config.CONFIG_FILE, (folder / config.CONFIG_FILE).read_text(encoding="utf-8"))
        result = serve(there, federation, link)
        rows, table, lines = summary(there), shown(there), account(there)
    if as_json:
        sent = {name: {"messages": one.messages, "bytes": one.bytes} for name, one in link.sent.items()}
        print(json.dumps({"status": result.status.value, "summary": rows, "sent": sent, "account": lines}, indent=2))
        return
    print(table, "", *lines, "", *_messages(result, link.sent), sep="\n")


def _files(pairs: Sequence[str], clients: Sequence[str]) -> dict[str, Path]:
    """The file of every client of the federation, in its order."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (equals and name and path):
            raise FederationError(f"{pair!r} is not a client and its file: write it as leeds=leeds.csv.")
        if name not in clients:
            raise unknown("client", name, clients)
        if name in found:
            raise FederationError(f"{name} has two files: give it one.")
        found[name] = Path(path)
    if not found:
        raise FederationError("There is no file to rehearse with: add one of each client, as leeds=leeds.csv.")
    return {name: found[name] for name in clients if name in found}


def _messages(result: Result, sent: dict[str, Sent]) -> list[str]:
    """What each client would send, and what follows."""
    rounds = result.state.answers / max(len(result.state.names), 1)
    lines = [f"The run took {rounds:.0f} rounds. What each client would send to the server:"]
    for name, one in sent.items():
        stages, answers = one.messages.get(_STAGES, 0), sum(one.messages.values()) - one.messages.get(_STAGES, 0)
        first, rest = one.bytes.get(_STAGES, 0), sum(one.bytes.values()) - one.bytes.get(_STAGES, 0)
        lines.append(
            f"{name}: {_counted(stages, 'summary', 'summaries')} of its columns ({first:,} bytes), then "
            f"{_counted(answers, 'answer', 'answers')} ({rest:,} bytes)."
        )
    return [*lines, "A real run with these files sends the same messages, and gives the same posterior."]


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
