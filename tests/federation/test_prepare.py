"""A client compiles before the first task: what it prepares is what the task takes."""

import numpy as np
import pytest

from partita.engines.endpoint import update_message
from partita.engines.remote import BINDING
from partita.federation import config
from partita.federation.client import Client
from partita.io.wire import Message
from partita.local.client import answer
from partita.server.state import init
from partita.server.step import dispatch
from support.clinic_files import TOML, clinic, write
from support.remote_runs import METHODS, PRIOR, endpoints


def test_a_task_compiles_nothing_that_was_prepared():
    method = METHODS["sequential"]
    site = endpoints(method)["client 0"]
    site.prepare()
    traces = answer.traces
    task = dispatch(method, init(PRIOR, ["client 0"]), np.zeros(1, bool)).in_flight[0]
    message = update_message(task, 1.0)
    reply = site.handle(Message(message.header | {BINDING: site.binding}, message.arrays))
    assert reply.header["kind"] == "update"
    assert answer.traces == traces


@pytest.mark.slow
def test_round_0_shows_a_client_what_to_prepare(tmp_path):
    """By its own answer, before the others' are known; an answer that cannot be foreseen is no error."""
    write(tmp_path / "east.csv", clinic(0))
    (tmp_path / config.CONFIG_FILE).write_text(TOML)
    federation = config.load(tmp_path)
    client = Client("east", federation, tmp_path / "east.csv")
    client.prepare()
    traces = answer.traces
    hello = Message({"kind": "hello", "task": "h", "digest": federation.digest, "agreed": {}}, {})
    assert client.handle(hello).header["kind"] == "hello"
    client.prepare()
    assert answer.traces == traces + 1
    client.prepare()
    assert answer.traces == traces + 1
