"""The errors a user's mistake can cause: one sentence that names the culprit and the remedy."""

from collections.abc import Iterable


class InputError(ValueError):
    """Something handed to partita cannot be used; nothing was changed."""

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = public
        """The same without anything of a client's rows, for the server to read; None where that was not seen to."""


def unknown(kind: str, name: object, known: Iterable[object]) -> InputError:
    """The error for a name that is not one of those known."""
    choices = ", ".join(str(choice) for choice in known)
    return InputError(f"There is no {kind} named {name!r}: choose one of {choices}.")
