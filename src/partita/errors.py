"""The errors a user's mistake can cause: one sentence that names the culprit and the remedy.

All are `InputError`s. Nothing was changed when one is raised.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator

__all__ = [
    "DamagedFileError",
    "DataError",
    "DiskError",
    "FederationError",
    "InputError",
    "MissingExtraError",
    "SettingsError",
    "exit_with_sentence",
    "unknown",
]


class InputError(ValueError):
    """Invalid input; nothing was changed."""

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = public
        """A version without any of the client's data, safe to send to the server; None if there is none."""


class SettingsError(InputError):
    """A setting, a name, or a combination of parts of a method is invalid."""


class DataError(InputError):
    """Rows, columns or a division of them cannot be used."""


class MissingExtraError(InputError):
    """A package is needed that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: pip install '.[{extra}]' in a checkout of partita.")


class DamagedFileError(InputError):
    """A file or a message is missing, damaged, or of another run."""


class DiskError(InputError, OSError):
    """A file cannot be written, such as on a full disk. What was there before is unchanged."""

    def __init__(self, path: object, reason: object) -> None:
        super().__init__(
            f"{path} cannot be written ({reason}): free some space or choose another place, then run again; "
            "what it held before is unchanged."
        )


class FederationError(InputError):
    """A federation cannot be set up, or cannot go on."""


def unknown(kind: str, name: object, known: Iterable[object]) -> SettingsError:
    """The error for an unknown name; it lists the known ones."""
    choices = ", ".join(str(choice) for choice in known)
    return SettingsError(f"There is no {kind} named {name!r}: choose one of {choices}.")


@contextlib.contextmanager
def exit_with_sentence(program: str) -> Iterator[None]:
    """Ends a command where the user made a mistake: one sentence on stderr, and exit code 2."""
    try:
        yield
    except InputError as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"{error.filename or 'a file'} cannot be used ({error.strerror}): choose another place."
    else:
        return
    print(f"{program}: {sentence}", file=sys.stderr)
    sys.exit(2)
