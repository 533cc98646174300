"""A federation of three clinics, one of which sends hostile text, interrupted during its run."""

import json

import pytest

from partita.federation import config
from partita.federation.client import Client
from partita.federation.serve import serve
from partita.federation.status import read_status
from partita.io import wire
from support.clinic_files import TOML, clinic, write
from support.weather import CrashAfter, FaultyLink, ServerKilled

NAMES = ("hungarian", "switzerland", "long-beach")
HOSTILE = "[/bold]\x1b[2J<img src=x onerror=\"document.title='caught'\">"


class Failing:
    """A client that answers one task with an error and a given reason."""

    def __init__(self, client, reason):
        self.client, self.reason = client, reason

    def handle(self, message):
        if message.header["kind"] != "update" or not self.reason:
            return self.client.handle(message)
        answer = wire.Message({"kind": "error", "task": message.header["task"], "reason": self.reason}, {})
        self.reason = ""
        return answer


def federate(folder, reason=HOSTILE):
    """A federation with its configuration and clients, the last of which fails once."""
    text = TOML.replace('["east", "north", "west"]', json.dumps(NAMES))
    (folder / "federation.toml").write_text(text)
    federation = config.load(folder)
    for seed, name in enumerate(NAMES):
        write(folder / f"{name}.csv", clinic(seed))
    clients = {name: Client(name, federation, folder / f"{name}.csv") for name in NAMES}
    return federation, clients | {NAMES[-1]: Failing(clients[NAMES[-1]], reason)}


def current_status(folder):
    return read_status(folder, "clinics", NAMES)


def stopped(folder):
    """A federation whose server was killed after all clients had answered, and the link to resume it with."""
    federation, clients = federate(folder)
    link = FaultyLink(clients, crash_after=CrashAfter(26))
    with pytest.raises(ServerKilled):
        serve(folder, federation, link)
    link.crash_after = CrashAfter()
    return federation, link
