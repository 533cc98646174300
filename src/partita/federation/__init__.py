"""A federation: clients on their own machines, and a server that loses nothing."""

from partita.federation.encoded import FederationResult
from partita.federation.result import fitted
from partita.storage.ledger import Ledger

__all__ = ["FederationResult", "Ledger", "fitted"]
