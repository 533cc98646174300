"""What keeps a run from being lost: told of every state on the way, and asked for the last one."""

from partita.results.history import History
from partita.server.aggregation import Aggregation
from partita.server.state import State


class Journal:
    """Keeps nothing. What does keep something says here what it is told."""

    def load(self, fresh: State) -> tuple[State, History]:
        """Where to begin: the last state kept and its history, or a fresh state."""
        return fresh, History()

    def keep(self, state: State) -> None:
        """A state within a step: tasks have been sent, or an answer has come."""

    def close(self, state: State, history: History, last: bool) -> None:
        """The state after a step, with the history to which the step has added a row; `last` when the run is over."""

    def note(self, name: str, event: str, text: str = "") -> None:
        """Something that happened to a client's answer, and left the state as it was."""

    def carried(self, size: int) -> None:
        """So many bytes of arrays were sent or received."""

    def asked(self) -> bool:
        """Whether something has been asked for from outside."""
        return False

    def amend(self, state: State, aggregation: Aggregation) -> State:
        """The state with what has been asked for from outside since the last step."""
        return state
