"""The errors a user's mistake can cause: one sentence that names the culprit and the remedy."""

from collections.abc import Iterable
from typing import Any


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


def check_part(what: str, value: Any) -> None:
    """Raises an `InputError` unless a number is above 0 and at most 1; one that is traced was looked at before."""
    import jax  # here, since the command line needs errors before it needs JAX

    if isinstance(value, jax.core.Tracer):
        return
    try:
        within = 0 < float(value) <= 1 and not isinstance(value, str)
    except (TypeError, ValueError):
        within = False
    if not within:
        raise InputError(f"The {what} is a number above 0 and at most 1, not {value}.")
