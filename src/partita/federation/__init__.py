"""A federation: clients on their own machines, and a server that loses nothing."""

from partita.federation.ledger import Ledger

__all__ = ["Ledger"]
