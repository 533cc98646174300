"""The server app is partita's; the client app never runs, since partita's clients answer by themselves."""

from flwr.clientapp import ClientApp

from partita.federation.flower.superlink import server

__all__ = ["client", "server"]

client = ClientApp()
