"""A federation: clients on their own machines, and a server that loses nothing."""

from partita.federation.ledger import Ledger
from partita.federation.result import Fitted, fitted

__all__ = ["Fitted", "Ledger", "fitted"]
