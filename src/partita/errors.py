"""The errors a user's mistake can cause: one sentence that names the culprit and the remedy."""

from collections.abc import Iterable


class InputError(ValueError):
    """Something handed to partita cannot be used; nothing was changed."""


def unknown(kind: str, name: object, known: Iterable[object]) -> InputError:
    """The error for a name that is not one of those known."""
    choices = ", ".join(str(choice) for choice in known)
    return InputError(f"There is no {kind} named {name!r}: choose one of {choices}.")
