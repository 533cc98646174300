"""Where a federation begins: the scheme that its file asks for."""

from collections.abc import Sequence

from partita.data.disclosure import Limits
from partita.federation.config import Federation
from partita.federation.encoded import Encoded
from partita.federation.regression import Regression
from partita.federation.scheme import Own, Scheme

__all__ = ["agreed", "beginning"]


def beginning(federation: Federation) -> Scheme:
    """The scheme before clients have agreed on anything: of the formula if there is one."""
    return Encoded(federation) if federation.fit is None else Regression.begun(federation)


def agreed(scheme: Scheme, clients: Sequence[Own], limits: Limits) -> Scheme:
    """All of round 0, where the clients' rows are in this process, with the federation's limits."""
    while not scheme.complete:
        scheme = scheme.taken([scheme.released(own, limits) for own in clients])
    return scheme
