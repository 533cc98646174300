"""What Flower runs: the server's app once for a run, the client's for every message, in processes of its own."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import jax

from partita.engines.flower import FlowerLink, from_records, to_records
from partita.errors import InputError, MissingExtraError
from partita.federation import config
from partita.federation.client import Client
from partita.federation.serve import LEDGER_FILE, SERVER_LOCK, serve
from partita.io.lock import hold
from partita.io.wire import Message
from partita.storage.ledger import Ledger

__all__ = ["client_app", "server_app"]

try:
    from flwr.app import Context
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """The server app; the federation's folder is in the run's configuration."""
    jax.config.update("jax_enable_x64", True)
    folder = Path(str(context.run_config["folder"]))
    federation = config.load(folder)
    with hold(folder / SERVER_LOCK):
        ledger = Ledger(folder / LEDGER_FILE)
        try:
            serve(folder, federation, FlowerLink(grid, federation.clients, ledger.said("nodes")))
        except Exception as error:
            with contextlib.suppress(InputError):  # such as a full disk: the error before is the one to tell
                ledger.say("ended", {"status": "failed", "message": f"The server failed: {error}"})
            raise


@client_app.query("partita")
def _name(envelope: Envelope, context: Context) -> Envelope:
    """Tells the server which client this node is."""
    answer = Message({"kind": "name", "name": str(context.node_config["client"])}, {})
    return Envelope(to_records(answer), reply_to=envelope)


@client_app.train("partita")
def _answer(envelope: Envelope, context: Context) -> Envelope:
    """The client app: answers a message using the data file in the node's configuration."""
    jax.config.update("jax_enable_x64", True)
    about: Any = context.node_config
    name = str(about["client"])
    try:
        client = Client(name, config.load(Path(str(about["folder"]))), Path(str(about["data"])))
        message = from_records(envelope.content)
    except InputError as error:
        logging.getLogger("partita").warning("%s: %s", name, error)
        raise
    return Envelope(to_records(client.handle(message)), reply_to=envelope)
