"""What keeps a run from being lost, and what may be asked of it from outside; by default nothing."""

from partita.results.history import History
from partita.server.aggregation import Aggregation
from partita.server.state import State

__all__ = ["Requests", "Store"]


class Store:
    """Keeps states; this one keeps nothing. `str` of it is its place, for messages."""

    def load(self, fresh: State) -> tuple[State, History]:
        """The last saved state and its history, or the fresh state."""
        return fresh, History()

    def keep(self, state: State) -> None:
        """Keeps a state within a step: tasks have been sent, or an answer has arrived."""

    def close(self, state: State, history: History, last: bool) -> None:
        """Keeps the state after a step, and the history with the row that the step has added; `last` at the end."""


class Requests:
    """Changes of membership that were asked for from outside, between steps; here there are none."""

    def pending(self) -> bool:
        """Whether something has been asked for."""
        return False

    def apply(self, state: State, aggregation: Aggregation) -> State:
        """The state with what has been asked for; the same object where nothing was."""
        return state
